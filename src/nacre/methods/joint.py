"""Joint training: all classes and all labels in one step, the upper bound (eq. 2)."""

from typing import Literal

from pydantic import Field

from nacre.methods.base import MethodConfig
from nacre.methods.ft import FineTuning


class JointConfig(MethodConfig):
    """Joint training has nothing to set."""

    name: Literal["joint"] = Field("joint", description="joint training")


class Joint(FineTuning):
    """Fine-tuning on a scenario whose steps are merged into one."""

    name = "joint"
    summary = "all classes at once, with all labels; the upper bound"
    paper = "baseline Joint"
    Config = JointConfig
    merges_steps = True
