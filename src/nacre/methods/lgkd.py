"""Label-guided distillation (LGKD): PLOP and a distillation of all channels that uses the labels.

    loss = PLOP's + mean over pixels of weight(y) * (- sum over all channels of p'[c] log q[c])

with the student's softmax q over all channels. The teacher's p is 0 on the new channels; where the
label is a new class y, its background probability is moved to y (`nacre.losses.distillations`). The
weight is `new_weight` on pixels of new classes and `old_weight` elsewhere. The distillation uses
the labels of the data, not pseudo-labels, at the resolution of the logits.

The weights of the released scripts differ between tasks; the preset `paper` has them. Those for
ADE20K were chosen with twice the usual learning rates, which the preset has, too. It does not have
the scripts' batch sizes (12 or 16 on ADE20K, 16 in step 0 on VOC).
"""

from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from nacre.losses.distillations import label_guided_distillation
from nacre.losses.statistics import grid_targets
from nacre.methods.base import Batch, require_teacher
from nacre.methods.plop import Plop, PlopConfig
from nacre.models.network import Output


def _weights(old: float, new: float) -> dict[str, Any]:
    return {"old_weight": old, "new_weight": new}


class LgkdConfig(PlopConfig):
    """PLOP's config with the weights of the distillation."""

    name: Literal["lgkd"] = Field("lgkd", description="PLOP with label-guided distillation")  # type: ignore[assignment]
    old_weight: float = Field(10.0, ge=0, description="weight on pixels of no new class")
    new_weight: float = Field(1.0, ge=0, description="weight on pixels of new classes")


class Lgkd(Plop):
    """PLOP with a label-guided distillation of all channels."""

    name = "lgkd"
    Config = LgkdConfig
    presets = {
        "paper ade20k": {"pod": 0.001, "pod_logits": 0.00001},
        "paper voc/19-1": _weights(5, 0.5),
        "paper voc/15-5": _weights(5, 1),
        "paper voc/15-1": _weights(1, 0),
        "paper ade20k/100-50": _weights(1, 20),
        "paper ade20k/100-10": _weights(1, 1),
        "paper ade20k/50-50": _weights(2, 10),
        "small": {"old_weight": 1},
    }
    train_presets = {"paper ade20k": {"lr": 0.02, "incremental_lr": 0.002}}
    tunable = ("old_weight",)
    config: LgkdConfig

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return PLOP's losses and the distillation."""
        losses = super().losses(batch, student, teacher)
        if not self.num_old:
            return losses
        height, width = student.logits.shape[-2:]
        targets = grid_targets(
            batch.sure_targets(self.growth.first_new), (height, width), corner=True
        )
        pixels = batch.num_valid_pixels
        if pixels is not None:
            pixels *= targets.numel() / batch.targets.numel()
        losses["kd"] = label_guided_distillation(
            student.logits,
            require_teacher(teacher).logits,
            targets,
            old_weight=self.config.old_weight,
            new_weight=self.config.new_weight,
            num_pixels=pixels,
        )
        return losses
