"""Learning without forgetting (LwF): cross-entropy and distillation of the old channels.

With the student's softmax q over all channels, the teacher's p over the old channels Y, and q^ the
student's softmax over Y alone, the loss of a pixel labeled y is (eq. 2, 5, 6)

    -log q[y]  -  weight * 1/|Y| * sum over c in Y of p[c] log q^[c]

Both terms ignore background shift: the label of an old class's pixel is background, and so is the
teacher's prediction on a new class's pixel. `mib` models both.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from nacre.methods.base import (
    Batch,
    DistillingConfig,
    Method,
    label_cross_entropy,
    label_losses,
    require_teacher,
)
from nacre.models.network import Output

LWF_WEIGHT = 100.0
"""The paper's weight of LwF's distillation, in every task."""


class LwfConfig(DistillingConfig):
    """The weight of the distillation."""

    name: Literal["lwf"] = Field("lwf", description="learning without forgetting")
    weight: float = Field(LWF_WEIGHT, ge=0, description="weight of the distillation (paper: 100)")


class Lwf(Method):
    """Cross-entropy and plain distillation."""

    name = "lwf"
    Config = LwfConfig
    # What `nacre tune` chooses: docs/results.md.
    presets = {
        "text": {"average": "pixels"},
        "small": {"weight": 1000},
        "demo": {"weight": 100},
    }
    tunable = ("weight",)
    uses_teacher = True
    config: LwfConfig

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy, eq. 2, and the distillation, eq. 5 and 6."""
        if not self.num_old:
            return label_cross_entropy(batch, student)
        return label_losses(self.config, batch, student, require_teacher(teacher))
