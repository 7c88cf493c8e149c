"""Joint training: all classes and labels in one step, the upper bound (eq. 2)."""

from typing import Literal

from pydantic import Field

from nacre.methods.base import Method, MethodConfig


class JointConfig(MethodConfig):
    """The config of joint training, without keys of its own."""

    refused = dict.fromkeys(
        ("freeze", "fusion", "pseudo_labels", "init"), "it has no step after step 0"
    )

    name: Literal["joint"] = Field("joint", description="joint training")


class Joint(Method):
    """Cross-entropy in a single step that merges those of a scenario."""

    name = "joint"
    Config = JointConfig
    is_joint = True
