"""Duo: the ledger and a decoder learned by MiB, both on one frozen backbone, their scores added.

Two parts that fail differently. The decoder has context and edges, and forgets: images of sheep
alone say no more what a cow looks like. The ledger (`nacre.methods.ledger`) keeps the sums of every
class, and sees one point of its grid at a time. With the decoder's logits z and the ledger's l

    score[c] = log softmax(z)[c] + weight * l[c]      (`nacre.models.ledger`)

First come the sums (`begin_step`): one pass over the step's images, in which is also counted what
the decoder takes the new classes for, their origins. After it the model is of use (`is_usable`):
the decoder says how likely the origins of a class are, and the ledger decides between these and the
class. Then decoder and classifier learn MiB's losses (`nacre.methods.mib`: eq. 3 to 9), as they
would without a ledger.

In the end (`fit`) images of which no update was made, one of ten, decide two things. A decoder that
has hardly seen a rare class vetoes it: a new class whose IoU on them is not greater by its own
logit than by its origins' has not been learned by the decoder. And where their mean IoU has not
grown by the updates, after step 0 by two points, the decoder becomes again what it was before them:
these images do not show the old classes, which pay for it. Classes that they do not show are judged
by the images learned from, which favors the decoder. In a step of fewer than 50 images none is held
out, and no update is made: on ten images a decoder learns by heart what it is judged by. The sums
are those of all images.
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
    count_pixels,
    joined,
    put_head,
    put_origins,
    total,
)
from nacre.methods.mib import Mib
from nacre.models.config import ModelConfig
from nacre.models.decoders import StageGrid
from nacre.models.deeplab import DeepLab
from nacre.models.ledger import LedgerHead
from nacre.models.network import Network, Output

PRICE = 0.02
"""What updates after step 0 must gain: held-out images do not show the old classes."""


class DuoConfig(DistillingConfig, SumsConfig):
    """The weights of the distillation and of the ledger; its grid has 8 pixels per point."""

    refused = {
        "freeze_step_0": "the ledger's sums are of the backbone's features",
        "init": "new rows start from the background's",
    }

    name: Literal["duo"] = Field("duo", description="the ledger, and a decoder learned by mib")
    weight: float = Field(10.0, ge=0, description="weight of the distillation")
    ledger_weight: float = Field(
        1.0, ge=0, description="weight of the ledger's scores over the decoder's"
    )

    freeze: Freeze = ("backbone", "batch_norm")
    freeze_step_0: bool = True


class Duo(Ledger):
    """MiB's losses for the decoder, sums for the ledger beside it."""

    name = "duo"
    Config = DuoConfig
    # The ledger holds old classes, too: what holds the decoder may be lighter than in `mib`.
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
        self._judging: Sums
        self._first: dict[str, Tensor] = {}

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Declare that step 0 depends on the ledger's weight too."""
        assert isinstance(config, DuoConfig)
        return f"{super().step_0_of(config)}, weight {config.ledger_weight}"

    def network_config(self, model: ModelConfig) -> ModelConfig:
        """Return the network with a ledger beside its decoder."""
        if getattr(model, "decoder", None) == "stages":
            raise NacreError(
                "model.decoder: 'stages' has no weights that method 'duo' could learn; use "
                "'light' or 'aspp', or method 'ledger'"
            )
        return self.with_grid(model)

    def grow(self, network: Network, num_new: int) -> None:
        """Share the background's probability among the new classes, eq. 8 and 9."""
        if isinstance(network, DeepLab) and isinstance(network.decoder, StageGrid):
            raise NacreError(
                "the model was learned by the ledger alone and has no decoder; continue it with "
                "method 'ledger'"
            )
        super().grow(network, num_new)

    def prepare(self, step: Step) -> None:
        """Freeze the backbone, and the ledger, whose rows are solved for."""
        super().prepare(step)
        ledger = _ledger(step.network)
        ledger.requires_grad_(False).eval()
        ledger.weight.fill_(self.config.ledger_weight)

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return MiB's losses of the decoder."""
        if not self.num_old:
            return label_cross_entropy(batch, student)
        seen = require_teacher(teacher)
        return label_losses(self.config, batch, student, seen, ce="unbiased", kd="unbiased")

    @torch.no_grad()
    def begin_step(self, step: Step) -> None:
        """Add up the images, and solve for the ledger: a model before the first update."""
        before, network, ridge = self.sums, deeplab(step.network), self.config.ridge
        for known in self.passes(step):
            count = partial(count_pixels, known=known)
            learned_from = total(step, step.map_images(count))
            held_out = total(step, [count(network, step.held_out())])
            put_origins(step, learned_from)
            self._judging = joined(before, step, learned_from.products)
            put_head(network, self._judging, ridge)
        self.sums = joined(before, step, _plus(learned_from.products, held_out.products))
        put_head(network, self.sums, ridge)
        self._first = _decoder(network)
        self.is_usable = True

    @torch.no_grad()
    def fit(self, step: Step) -> None:
        """Find what the decoder has learned; the ledger is solved for by then."""
        assert self.sums is not None
        network, ledger = deeplab(step.network), _ledger(step.network)
        put_head(network, self._judging, self.config.ridge)
        first, learned = ledger.learned.clone(), self._learned(step)
        after, updated = _mean_iou(step, learned), _decoder(network)
        network.load_state_dict(self._first, strict=False)
        before = _mean_iou(step, first)
        kept = after > before + (PRICE if self.num_old else 0)
        if kept:
            network.load_state_dict(updated, strict=False)
            ledger.learned.copy_(learned)
        if not math.isnan(after):
            by_decoder = [c for c, one in enumerate(ledger.learned.tolist()) if c and one]
            self.judged = Judged(before, after, kept, by_decoder)
        put_head(network, self.sums, self.config.ridge)

    def _learned(self, step: Step) -> Tensor:
        """Return which classes the decoder has learned, those known before the step as before."""
        ledger, first = _ledger(step.network), self.growth.first_new
        own, by_origins = ledger.learned.clone(), ledger.learned.clone()
        own[0] = by_origins[0] = True
        own[first:], by_origins[first:] = True, False
        iou = _compare(step, step.held_out(), own, by_origins)
        if bool(iou[:, first:].isnan().any()):
            # Of a class that held-out images do not show, those that were learned from tell.
            iou = torch.where(iou.isnan(), _compare(step, step.images(), own, by_origins), iou)
        own[first:] = (iou[0] > iou[1])[first:].to(own.device)
        return own


def _decoder(network: DeepLab) -> dict[str, Tensor]:
    """Return a copy of the weights of a decoder and its rows."""
    parts = {"decoder": network.decoder, "classifier": network.classifier}
    return {
        f"{part}.{key}": value.clone()
        for part, module in parts.items()
        for key, value in module.state_dict().items()
    }


def _mean_iou(step: Step, learned: Tensor) -> float:
    """Return the mean IoU on the held-out images, or on those learned from if there are none."""
    (iou,) = _compare(step, step.held_out(), learned)
    if bool(iou.isnan().all()):
        (iou,) = _compare(step, step.images(), learned)
    return float(iou.nanmean())


def _compare(step: Step, batches: Iterable[Batch], *learned: Tensor) -> Tensor:
    """Return the IoU of each class by each choice of learned ones; NaN where it is not labeled."""
    network = deeplab(step.network)
    shape = (len(learned), 3, network.num_classes)
    counts = torch.zeros(shape, dtype=torch.long, device=step.dist.device)
    for batch in batches:
        targets = batch.sure_targets(step.growth.first_new)
        features, stages = network.read(batch.images)
        logits, scores = network.decode(features, stages).logits, _ledger(network)(stages)
        for i, one in enumerate(learned):
            counts[i] += _count(_ledger(network).add_to(logits, scores, one), targets)
    hits, found, labeled = step.dist.sum(counts).cpu().double().unbind(1)
    return torch.where(labeled > 0, hits / (found + labeled - hits), torch.nan)


def _count(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the pixels of each channel: found rightly, found, labeled; ignored ones left out."""
    total = scores.new_zeros(3, scores.shape[1], dtype=torch.long)
    for low, wanted in zip(torch.split(scores, 1), targets, strict=True):
        # One by one: scores of all channels at all pixels of a batch may not fit.
        channels = upsample(low, (wanted.shape[0], wanted.shape[1]))[0].argmax(0)
        counted = wanted != ignore_value(wanted)
        found, labels = channels[counted], wanted[counted].long()
        for row, some in zip(total, (labels[found == labels], found, labels), strict=True):
            row += torch.bincount(some, minlength=len(row))
    return total


def _plus(one: Products, other: Products) -> Products:
    """Return sums of two sets of images together."""
    shared = {place: one[place] + other[place] for place in one.keys() & other.keys()}
    return {**one, **other, **shared}


def _ledger(network: Network) -> LedgerHead:
    """Return the ledger of a network that has one: `network_config` and `grow` see to it."""
    found = deeplab(network).ledger
    assert found is not None
    return found
