"""Frozen network, new rows only (DFT*): after step 0 only the rows of new classes learn.

    loss = cross-entropy over all channels (eq. 2)

With everything else frozen, batch norm included, the gradient of a new row's logit is
q[c] - [y = c] whatever the other labels are. So there is no background shift, no teacher is needed,
old classes only lose pixels to new ones, and the backward pass stops at the last layer.

The learning rate is all there is to tune: if it is too large, new classes are predicted everywhere.
The preset `paper` has the learning rates of the released scripts for each task. The released
implementation has the rows of all future classes from step 0 on, so it must know their number; here
they are initialized at random when their step begins.
"""

from typing import Literal

from pydantic import Field

from nacre.methods.base import Freeze, Method, MethodConfig


class DftConfig(MethodConfig):
    """The config of DFT, without keys of its own."""

    name: Literal["dft"] = Field("dft", description="frozen network, new rows only")

    freeze: Freeze = ("backbone", "decoder", "batch_norm", "old_rows")


class Dft(Method):
    """Cross-entropy on a frozen network in which only new rows learn."""

    name = "dft"
    Config = DftConfig
    train_presets = {
        "paper": {"lr": 0.02},
        "paper voc/19-1": {"incremental_lr": 0.005},
        "paper voc/15-5": {"incremental_lr": 0.02},
        "paper voc/15-1": {"incremental_lr": 0.0005},
        "paper voc/10-1": {"incremental_lr": 0.0005},
        "paper ade20k": {"epochs": 30, "incremental_epochs": 60, "incremental_lr": 0.1},
        "paper ade20k/100-5": {"incremental_lr": 0.05},
    }
