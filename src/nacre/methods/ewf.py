"""Endpoint weight fusion (EWF): an interpolation of old and new weights after each step.

A step is learned as in `mib`, with the old rows of the classifier frozen, and then

    W = (1 - a) W_old + a W_new,     a = sqrt(N / (O + N))

for everything that the old network has: weights, batch norm with its running statistics, old rows.
O is the number of old channels, background included, and N that of new ones, whose rows do not
change. Training takes no additional time or memory. With a single new class a is so small that the
step hardly learns; `fusion` can also be a number.

As in the released scripts MiB's weight is 10, also in VOC 15-1, and 100 in ADE20K's 100-10 and
100-5. With `fusion=sqrt` and `freeze=[old_rows]` any other method does the same; with `plop` it is
the PLOP + EWF of published tables.
"""

from typing import Literal

from pydantic import Field

from nacre.methods.base import Freeze, Fusion
from nacre.methods.mib import Mib, MibConfig


class EwfConfig(MibConfig):
    """MiB's config with fusion and frozen old rows."""

    name: Literal["ewf"] = Field("ewf", description="endpoint weight fusion")  # type: ignore[assignment]
    weight: float = Field(10.0, ge=0, description="weight of mib's distillation")
    freeze: Freeze = ("old_rows",)
    fusion: Fusion = "sqrt"


class Ewf(Mib):
    """MiB with a fusion of old and new weights after each step."""

    name = "ewf"
    Config = EwfConfig
    presets = {
        "paper ade20k/100-10": {"weight": 100},
        "paper ade20k/100-5": {"weight": 100},
    }
    train_presets = {"paper ade20k/100-50": {"batch_size": 48}}
