"""Frozen network, new rows only (DFT*): after step 0 nothing learns but the rows of new classes.

    loss = cross-entropy over all channels (eq. 2)

With everything else frozen, batch norm included, the gradient of a new row's logit is
q[c] - [y = c] whatever the other labels are: background shift vanishes, no teacher is needed, the
old classes stay as they are but for what new ones take from them, and there is no backward pass but
the last layer's.

The learning rate is the whole tuning: too large a rate finds new classes everywhere. The preset
`paper` has the released scripts' rates by task. In the released implementation the rows of all
future classes are there from step 0 on, which needs to know how many there will be; here they start
at random when their step begins.
"""

from typing import Literal

from pydantic import Field

from nacre.methods.base import Freeze, Method, MethodConfig


class DftConfig(MethodConfig):
    """Nothing of its own can be set."""

    name: Literal["dft"] = Field("dft", description="frozen network, new rows only")

    freeze: Freeze = ("backbone", "decoder", "batch_norm", "old_rows")


class Dft(Method):
    """Cross-entropy on a frozen network: only new rows learn."""

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
