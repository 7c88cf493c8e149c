"""Duo: the ledger and a decoder learned by MiB on one frozen backbone, with their scores added.

The two parts fail differently. The decoder has context and sharp edges but forgets. The ledger
(`nacre.methods.ledger`) keeps the sums of all classes but scores each point of its grid alone. With
the decoder's logits z and the ledger's l

    score[c] = log softmax(z)[c] + weight * l[c]      (`nacre.models.ledger`)

First the sums are counted in one pass over the images (`begin_step`), together with the decoder's
predictions on the pixels of the new classes: their origins. Now the model can be used
(`is_usable`): the decoder predicts the origins of a class, and the ledger decides between them and
the class. Then decoder and classifier learn MiB's losses (`nacre.methods.mib`, eq. 3 to 9), as
without a ledger.

At the end (`fit`) held-out images, one in ten, decide two things. First, which new classes the
decoder has learned: those whose IoU is greater with their own logit than with that of their
origins. (A decoder that has hardly seen a rare class would veto it.) Second, whether the decoder
keeps its updates: otherwise it is restored, if their mean IoU has not grown, after step 0 by two
points, as the images do not show the old classes, which pay for the updates. For classes that no
held-out image shows the training images decide, which favors the decoder. With fewer than 50 images
none is held out and no update is made: a decoder would learn ten images by heart. The sums are
those of all images.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import Growth, ignore_value
from nacre.losses.reference import upsample
from nacre.losses.ridge import Sums
from nacre.methods.base import (
    Batch,
    DistillingConfig,
    Freeze,
    Judged,
    MethodConfig,
    Step,
    deeplab,
    label_cross_entropy,
    label_losses,
    require_teacher,
)
from nacre.methods.ledger import (
    Ledger,
    Products,
    SumsConfig,
    append_sums,
    count_pixels,
    set_head,
    set_origins,
    total,
)
from nacre.methods.mib import Mib
from nacre.models.config import ModelConfig
from nacre.models.decoders import StageGrid
from nacre.models.deeplab import DeepLab
from nacre.models.ledger import LedgerHead
from nacre.models.network import Network, Output

MIN_GAIN = 0.02
"""Growth of the mean IoU for which updates after step 0 are kept."""


class DuoConfig(DistillingConfig, SumsConfig):
    """The weights of distillation and ledger, whose grid has 8 pixels per point by default."""

    refused = {
        "freeze_step_0": "the ledger needs a frozen backbone",
        "init": "new rows always start from the background's",
    }

    name: Literal["duo"] = Field("duo", description="ledger and a decoder learned by mib")
    weight: float = Field(10.0, ge=0, description="weight of the distillation")
    ledger_weight: float = Field(1.0, ge=0, description="weight of the ledger's scores")

    freeze: Freeze = ("backbone", "batch_norm")
    freeze_step_0: bool = True


class Duo(Ledger):
    """MiB's losses for the decoder, and sums for the ledger beside it."""

    name = "duo"
    Config = DuoConfig
    # The ledger keeps the old classes, too, so the distillation may weigh less than in `mib`.
    presets = {**Mib.presets, "small": {"weight": 10}}
    tunable = ("weight",)
    learns_by_gradient = True
    requires = frozenset({"classifier"})
    holds_out = True
    uses_teacher = True
    unsure = Mib.unsure
    step_0 = "cross-entropy, a frozen backbone, a ledger beside it"
    default_stride = 8
    config: DuoConfig

    def __init__(self, config: Any, growth: Growth) -> None:
        super().__init__(config, growth)
        self._trained_sums: Sums
        self._first: dict[str, Tensor] = {}

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Describe how step 0 is learned, including the weight of the ledger."""
        assert isinstance(config, DuoConfig)
        return f"{super().step_0_of(config)}, weight {config.ledger_weight}"

    def network_config(self, model: ModelConfig) -> ModelConfig:
        """Return the config with a ledger beside the decoder."""
        if getattr(model, "decoder", None) == "stages":
            raise NacreError(
                "model.decoder: 'stages' has no weights to learn; set 'light' or 'aspp', or use "
                "method 'ledger'"
            )
        return self.with_grid(model)

    def grow(self, network: Network, num_new: int) -> None:
        """Add channels to ledger and classifier, whose rows start from the background's."""
        if isinstance(network, DeepLab) and isinstance(network.decoder, StageGrid):
            raise NacreError(
                "method 'duo' cannot continue a model without a decoder, as method 'ledger' learns "
                "it; use method 'ledger'"
            )
        super().grow(network, num_new)

    def prepare(self, step: Step) -> None:
        """Freeze the ledger, whose rows are not learned by updates."""
        super().prepare(step)
        ledger = _ledger(step.network)
        ledger.requires_grad_(False).eval()
        ledger.weight.fill_(self.config.ledger_weight)

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return MiB's losses for the decoder."""
        if not self.num_old:
            return label_cross_entropy(batch, student)
        teacher = require_teacher(teacher)
        return label_losses(self.config, batch, student, teacher, ce="unbiased", kd="unbiased")

    @torch.no_grad()
    def begin_step(self, step: Step) -> None:
        """Sum over the images and solve for the ledger, before the first update."""
        before, network, ridge = self.sums, deeplab(step.network), self.config.ridge
        for known in self.passes(step):
            count = partial(count_pixels, known=known)
            trained = total(step, step.map_images(count))
            held_out = total(step, [count(network, step.held_out())])
            set_origins(step, trained)
            self._trained_sums = append_sums(before, step, trained.products)
            set_head(network, self._trained_sums, ridge)
        self.sums = append_sums(before, step, _add(trained.products, held_out.products))
        set_head(network, self.sums, ridge)
        self._first = _decoder_state(network)
        self.is_usable = True

    @torch.no_grad()
    def fit(self, step: Step) -> None:
        """Find which classes the decoder has learned, and whether it keeps its updates."""
        assert self.sums is not None
        network, ledger = deeplab(step.network), _ledger(step.network)
        set_head(network, self._trained_sums, self.config.ridge)
        first, learned = ledger.learned.clone(), self._learned(step)
        after, updated = _mean_iou(step, learned), _decoder_state(network)
        network.load_state_dict(self._first, strict=False)
        before = _mean_iou(step, first)
        kept = after > before + (MIN_GAIN if self.num_old else 0)
        if kept:
            network.load_state_dict(updated, strict=False)
            ledger.learned.copy_(learned)
        if not math.isnan(after):
            by_decoder = [c for c, known in enumerate(ledger.learned.tolist()) if c and known]
            self.judged = Judged(before, after, kept, by_decoder)
        set_head(network, self.sums, self.config.ridge)

    def _learned(self, step: Step) -> Tensor:
        """Return which classes the decoder has learned; for old classes this does not change."""
        ledger, first = _ledger(step.network), self.growth.first_new
        own, by_origins = ledger.learned.clone(), ledger.learned.clone()
        own[0] = by_origins[0] = True
        own[first:], by_origins[first:] = True, False
        iou = _compare(step, step.held_out(), own, by_origins)
        if bool(iou[:, first:].isnan().any()):
            # For a class that no held-out image shows the training images decide.
            iou = torch.where(iou.isnan(), _compare(step, step.images(), own, by_origins), iou)
        own[first:] = (iou[0] > iou[1])[first:].to(own.device)
        return own


def _decoder_state(network: DeepLab) -> dict[str, Tensor]:
    """Return a copy of the weights of decoder and classifier, with the keys of the network."""
    modules = {"decoder": network.decoder, "classifier": network.classifier}
    return {
        f"{name}.{key}": value.clone()
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


def _mean_iou(step: Step, learned: Tensor) -> float:
    """Return the mean IoU on the held-out images, or on the training images if there are none."""
    (iou,) = _compare(step, step.held_out(), learned)
    if bool(iou.isnan().all()):
        (iou,) = _compare(step, step.images(), learned)
    return float(iou.nanmean())


def _compare(step: Step, batches: Iterable[Batch], *choices: Tensor) -> Tensor:
    """Return the IoU of each class for each choice of learned classes; NaN if not labeled."""
    network = deeplab(step.network)
    shape = (len(choices), 3, network.num_classes)
    counts = torch.zeros(shape, dtype=torch.long, device=step.dist.device)
    for batch in batches:
        targets = batch.sure_targets(step.growth.first_new)
        features, stages = network.read(batch.images)
        logits, scores = network.decode(features, stages).logits, _ledger(network)(stages)
        for i, learned in enumerate(choices):
            counts[i] += _count(_ledger(network).add_to(logits, scores, learned), targets)
    hits, predicted, labeled = step.dist.sum(counts).cpu().double().unbind(1)
    return torch.where(labeled > 0, hits / (predicted + labeled - hits), torch.nan)


def _count(scores: Tensor, targets: Tensor) -> Tensor:
    """Return 3,C: how many pixels of each channel are correct, predicted and labeled."""
    counts = scores.new_zeros(3, scores.shape[1], dtype=torch.long)
    for low, target in zip(torch.split(scores, 1), targets, strict=True):
        # One image at a time, as the scores of all pixels of a batch may not fit the memory.
        predicted = upsample(low, (target.shape[0], target.shape[1]))[0].argmax(0)
        is_counted = target != ignore_value(target)
        predicted, labels = predicted[is_counted], target[is_counted].long()
        correct = labels[predicted == labels]
        for row, channels in zip(counts, (correct, predicted, labels), strict=True):
            row += torch.bincount(channels, minlength=len(row))
    return counts


def _add(left: Products, right: Products) -> Products:
    """Return the sums of two sets of images together."""
    shared = {key: left[key] + right[key] for key in left.keys() & right.keys()}
    return {**left, **right, **shared}


def _ledger(network: Network) -> LedgerHead:
    """Return the ledger of a network; `network_config` and `grow` ensure that it has one."""
    ledger = deeplab(network).ledger
    assert ledger is not None
    return ledger
