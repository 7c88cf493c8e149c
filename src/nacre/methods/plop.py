"""PLOP: pseudo-labels where the teacher is certain, and distillation of features (local POD).

    loss = factor * cross-entropy (eq. 2) on pseudo-labels + local POD

Background pixels get the teacher's class where it is certain and are ignored elsewhere. The factor
of an image is the share of its background with pseudo-labels (`nacre.methods.components`). Local
POD squares the features of the backbone's stages (before their last activation), of the decoder,
and the logits, and compares the means over rows and columns of the whole map, its quarters and its
sixteenths (`nacre.losses.distillations`):

    pod = sqrt(T/N) / layers * sum over the layers of factor * mean over images of |Phi - Phi_old|

with T all channels and N the new ones; the logits of new channels are added to the background's.
New rows start from the background's (eq. 8, 9).

The threshold of a class is the median of the teacher's normalized entropy over the class's pixels.
PLOP's implementation computes something else (it divides the entropy once too often and adds bin
numbers in the median), and its published results are for that: `pseudo_labels=released`. On ADE20K
this accepts every pixel. PLOP's factors are 0.01 for features and 0.0005 for logits on VOC, 0.001
and 0.00001 on ADE20K, for ResNet-101 with in-place ABN.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from nacre.losses.distillations import merge_new_into_background, pod_loss
from nacre.methods.base import (
    Batch,
    Method,
    MethodConfig,
    NewRows,
    PseudoLabels,
    label_cross_entropy,
    require_teacher,
)
from nacre.models.network import Output


class PlopConfig(MethodConfig):
    """The factors of local POD, and PLOP's components."""

    name: Literal["plop"] = Field("plop", description="pseudo-labels and local POD")
    pod: float = Field(0.01, ge=0, description="factor of the distance of features (VOC: 0.01)")
    pod_logits: float = Field(
        0.0005, ge=0, description="factor of the distance of logits (VOC: 0.0005)"
    )

    pseudo_labels: PseudoLabels = "entropy"
    init: NewRows = "background"


class Plop(Method):
    """Cross-entropy on pseudo-labels and local POD."""

    name = "plop"
    Config: ClassVar[type[MethodConfig]] = PlopConfig
    presets = {"paper ade20k": {"pod": 0.001, "pod_logits": 0.00001}}
    train_presets = {"paper voc/10-1": {"incremental_epochs": 10}}
    tunable = ("pod",)
    uses_teacher = True
    uses_stages = True
    weight_by_acceptance = True
    requires = frozenset({"features", "stages"})
    config: PlopConfig

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy on pseudo-labels and local POD."""
        losses = label_cross_entropy(batch, student)
        if self.num_old:
            losses["pod"] = self.pod(student, require_teacher(teacher))
        return losses

    def pod(self, student: Output, teacher: Output) -> Tensor:
        """Return the distance of stages, decoder features and logits from the teacher's."""
        pairs = [
            *zip(student.stages, teacher.stages, strict=True),
            (student.decoder_features, teacher.decoder_features),
        ]
        layers = [(own, old, self.config.pod) for own, old in pairs]
        logits = merge_new_into_background(student.logits, self.num_old)
        layers.append((logits, teacher.logits, self.config.pod_logits))
        num_new = student.logits.shape[1] - self.num_old
        return pod_loss(layers, num_old=self.num_old, num_new=num_new)
