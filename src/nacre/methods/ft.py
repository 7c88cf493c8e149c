"""Fine-tuning: the cross-entropy on the new labels alone (eq. 2)."""

from typing import Literal

from pydantic import Field

from nacre.methods.base import Method, MethodConfig


class FineTuningConfig(MethodConfig):
    """The config of fine-tuning, without keys of its own."""

    name: Literal["ft"] = Field("ft", description="fine-tuning")


class FineTuning(Method):
    """Cross-entropy on the new labels, which forgets the old classes."""

    name = "ft"
    Config = FineTuningConfig
