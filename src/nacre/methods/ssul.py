"""SSUL: a frozen network, one sigmoid per class, and a row for unknown classes.

A pixel labeled background is *unknown* u: it may be any class that is not learned yet. (That is
SSUL's rule for ADE20K. On VOC it uses an external saliency network and leaves the rest background,
which is not implemented here.) With logits x, the target y and the teacher's sigmoids s over
background, unknown and old classes,

    y' = argmax s        if y is background, s[y'] >= 0.7 and y' is an old class, else y
    loss = sum over c in {b, u, new classes} of binary cross-entropy(x[c], [y' = c])

Old rows are frozen, so their terms have no gradient and are left out. After step 0 only the rows of
new classes and of unknown learn. New rows start as copies of unknown's. At inference unknown counts
as background: the score of b is logit(sigmoid(x[b]) + sigmoid(x[u])), before upsampling.

With `branches` each row, unknown's included, has a 3x3 convolution of its own (590,000 weights per
step with 256 features), which a new row copies from unknown's. This is the released network, and
the preset `paper` uses it.

Differences from the released implementation: it chooses the epoch by the score on test images, and
its background row learns at 1/10,000 of the learning rate, while it is frozen here. On ADE20K its
learning rate rises over the first tenth of a step (`train.warmup_iterations`).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import ignore_value
from nacre.losses.reference import binary_cross_entropy, pixel_count
from nacre.losses.strips import by_strips
from nacre.methods.base import (
    Batch,
    Freeze,
    Method,
    MethodConfig,
    PseudoLabels,
    Step,
    classifier_of,
)
from nacre.models.network import Network, Output

NO_CHANNEL = -1
"""The target of a pixel of an old class, which is none of the channels."""

NOT_COUNTED = -2
"""The target of an ignored pixel."""


class SsulConfig(MethodConfig):
    """SSUL's config, with an optional convolution for each row."""

    has_sigmoids = True
    refused = {"init": "new rows start from the unknown row"}

    name: Literal["ssul"] = Field("ssul", description="frozen network and an unknown class")
    branches: bool = Field(
        False, description="give each row a 3x3 convolution of its own, as in the released code"
    )
    freeze: Freeze = ("backbone", "decoder", "batch_norm", "old_rows")
    pseudo_labels: PseudoLabels = 0.7


class Ssul(Method):
    """Sigmoids on a frozen network, with a row for unknown classes."""

    name = "ssul"
    Config = SsulConfig
    train_presets = {
        "paper": {"lr": 0.01, "incremental_lr": 0.01, "backbone_lr_scale": 0.1},
        "paper voc": {"epochs": 50, "batch_size": 32},
        "paper ade20k": {"epochs": 100, "incremental_lr": 0.05},
    }
    presets = {"paper": {"branches": True}}
    step_0 = "binary cross-entropy with unknown"
    requires = frozenset({"classifier"})
    extra_rows = frozenset({"unknown"})
    unsure = "kept"
    config: SsulConfig

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Describe how step 0 is learned, including the branches."""
        assert isinstance(config, SsulConfig)
        return super().step_0_of(config) + (", branches" if config.branches else "")

    def grow(self, network: Network, num_new: int) -> None:
        """Add new rows as copies of the unknown row."""
        if classifier_of(network).unknown is None:
            raise NacreError(
                "the model has no row for unknown classes, which ssul copies for new ones; learn "
                "step 0 with ssul, too"
            )
        classifier_of(network).grow_from("unknown", num_new)

    def prepare(self, step: Step) -> None:
        """Add the unknown row in step 0, and the branches if the config has them."""
        if not self.num_old:
            classifier = classifier_of(step.network)
            if self.config.branches:
                classifier.add_branches()
            classifier.add_row("unknown")
        super().prepare(step)

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the binary cross-entropy over background, unknown and new classes."""
        assert student.unknown is not None
        first_new = self.growth.first_new
        channels = [student.logits[:, :1], student.unknown, student.logits[:, first_new:]]
        labeled = pixel_count(student.logits, batch.targets, batch.num_valid_pixels)

        def terms(x: Tensor, _: None, y: Tensor, hidden: Tensor | None) -> dict[str, Tensor]:
            bce = binary_cross_entropy(
                x,
                y,
                hidden=hidden,
                num_background=2,
                num_pixels=labeled,
                ignore_index=NOT_COUNTED,
            )
            return {"bce": bce}

        targets = unknown_targets(batch.targets, first_new)
        hidden = self._hidden(batch, first_new)
        return by_strips(terms, torch.cat(channels, 1), None, targets, hidden)

    def _hidden(self, batch: Batch, first_new: int) -> Tensor | None:
        """Return N,C: hidden classes among background, unknown (both never) and the new classes."""
        if batch.hidden is None:
            return None
        return F.pad(batch.hidden[:, first_new:], (2, 0), value=False)


def unknown_targets(targets: Tensor, num_old: int) -> Tensor:
    """Return targets over background 0, unknown 1 and the new classes from 2 on, int32.

    Background becomes unknown, old classes `NO_CHANNEL` and ignored pixels `NOT_COUNTED`. `num_old`
    is the number of old channels, background included, and 1 in step 0.
    """
    ignored = targets == ignore_value(targets)
    numbers = targets.to(torch.int32)
    channels = torch.where((numbers >= num_old) & ~ignored, numbers - num_old + 2, NO_CHANNEL)
    channels = torch.where(numbers == 0, 1, channels)
    return torch.where(ignored, NOT_COUNTED, channels).to(torch.int32)
