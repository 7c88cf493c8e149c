"""Endpoint weight fusion (EWF): after a step, old and new weights in one.

A step is learned as `mib` learns it, with the old rows of the classifier frozen, and then

    W = (1 - a) W_old + a W_new,     a = sqrt(N / (O + N))

for everything the old network had: weights, batch norm with its running statistics, old rows. O are
the old channels, background included, N the new ones, whose rows stay as they were learned. It
takes no time and no memory in training. A single step of one class hardly learns, as a is small:
`fusion` can be a number.

MiB's weight is 10 also in VOC 15-1, 100 in ADE20K's 100-10 and 100-5, as in the released scripts.
Any other method has the same with `fusion=sqrt` and `freeze=[old_rows]`: with `plop`
it is the PLOP + EWF of published tables.
"""

from typing import Literal

from pydantic import Field

from nacre.methods.base import Freeze, Fusion
from nacre.methods.mib import Mib, MibConfig


class EwfConfig(MibConfig):
    """MiB's config with what is fused and frozen."""

    name: Literal["ewf"] = Field("ewf", description="endpoint weight fusion")  # type: ignore[assignment]
    weight: float = Field(10.0, ge=0, description="weight of mib's distillation")
    freeze: Freeze = ("old_rows",)
    fusion: Fusion = "sqrt"


class Ewf(Mib):
    """MiB whose steps end with a fusion of the weights."""

    name = "ewf"
    Config = EwfConfig
    presets = {
        "paper ade20k/100-10": {"weight": 100},
        "paper ade20k/100-5": {"weight": 100},
    }
    train_presets = {"paper ade20k/100-50": {"batch_size": 48}}
