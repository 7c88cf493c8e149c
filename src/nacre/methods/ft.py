"""Fine-tuning: cross-entropy on the new labels and nothing that remembers (eq. 2)."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from nacre.methods.base import Batch, Method, MethodConfig, label_cross_entropy
from nacre.models.network import Output


class FineTuningConfig(MethodConfig):
    """Fine-tuning has nothing to set."""

    name: Literal["ft"] = Field("ft", description="fine-tuning")


class FineTuning(Method):
    """Cross-entropy alone: learns the new classes and forgets the old ones."""

    name = "ft"
    Config = FineTuningConfig

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy, eq. 2."""
        return label_cross_entropy(batch, student)
