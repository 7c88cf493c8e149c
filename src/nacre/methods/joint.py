"""Joint training: all classes and all labels in one step, the upper bound (eq. 2)."""

from typing import Literal

from pydantic import Field

from nacre.methods.base import Method, MethodConfig


class JointConfig(MethodConfig):
    """Joint training has nothing to set."""

    refused = dict.fromkeys(
        ("freeze", "fusion", "pseudo_labels", "init"), "it has no step after step 0"
    )

    name: Literal["joint"] = Field("joint", description="joint training")


class Joint(Method):
    """Cross-entropy on a scenario whose steps are merged into one."""

    name = "joint"
    Config = JointConfig
    is_joint = True
