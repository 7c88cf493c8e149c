"""Fine-tuning: cross-entropy on the new labels and nothing that remembers (eq. 2)."""

from typing import Literal

from pydantic import Field

from nacre.methods.base import Method, MethodConfig


class FineTuningConfig(MethodConfig):
    """Fine-tuning has nothing to set."""

    name: Literal["ft"] = Field("ft", description="fine-tuning")


class FineTuning(Method):
    """Cross-entropy alone: learns the new classes and forgets the old ones."""

    name = "ft"
    Config = FineTuningConfig
