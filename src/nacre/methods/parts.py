"""Parts that combine: what most methods since 2020 are made of, as options of any method.

    freeze           after step 0 the backbone does not learn, or backbone and decoder: what is
                     frozen has no backward pass, and the teacher takes its features over
    freeze_step_0    in step 0, too, the backbone stays as its weights are
    freeze_bn        after step 0 batch norm keeps its statistics, scale and shift
    freeze_old_rows  after step 0 the rows of old classes and of the background do not learn
    fusion           at the end of a step W = (1 - a) W_old + a W_new for all that is old (EWF),
                     with a = sqrt(N / (O + N)) or a number of one's own
    pseudo_labels    background that the teacher is sure of gets the teacher's class
    init             how new rows start; `auxiliary` learns, from step 0 on, a row that calls every
                     pixel negative, of which new rows are copies (DKD)

They stand under `method.parts`. A part that is off costs nothing and changes no bit. (That the
backbone has a rate of its own is a matter of the optimiser: `train.backbone_lr_scale`.)

Pseudo-labels, with H the entropy of the teacher's softmax over its O channels, divided by log O:

    probability   the greatest probability (of sigmoids where the method has them) >= threshold
    entropy       H < the median of H over the background pixels of the same teacher's class,
                  which a pass over the step's images finds before it begins, but at least 0.001
                  (PLOP)
    released      the same as PLOP's implementation computes it, see `nacre.losses.pseudo_labels`

Pixels of which the teacher is not sure are ignored, or stay background where the method's loss
knows what background may hide. The number of pixels that a loss is divided by stays that of the
data's labels.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.losses.distillations import auxiliary_loss
from nacre.losses.pseudo_labels import (
    RELEASED_BINS,
    Score,
    TeacherPrediction,
    accept_by_entropy,
    acceptance_rate,
    median_thresholds,
    pseudo_targets,
    released_scores,
    released_thresholds,
    score_histogram,
    teacher_predictions,
)
from nacre.methods.step import Batch, Step
from nacre.models.classifier import Classifier, ExtraRow
from nacre.models.deeplab import DeepLab
from nacre.models.fusion import check_fusible, fuse_, fusion_factor
from nacre.models.network import Network, Output, Part
from nacre.models.norm import ABN
from nacre.utils.config import Config

BINS = 10_000
"""Of the entropy's histogram; the median is interpolated within one."""

ParamGroup = dict[str, Any]
"""torch's: `params` and what is other for them, `lr_scale` or `weight_decay`."""

Shared = Literal["nothing", "backbone", "decoder"]
NORMS = (ABN, nn.modules.batchnorm._BatchNorm)


class PartsConfig(Config):
    """Options of any method; all off by default but where a method's paper has them on."""

    freeze: Shared = Field(
        "nothing", description="what does not learn after step 0: backbone, or decoder (both)"
    )
    freeze_step_0: bool = Field(
        False, description="freeze the backbone in step 0 too: it stays as its weights are"
    )
    freeze_bn: bool = Field(False, description="keep batch norm as step 0 left it")
    freeze_old_rows: bool = Field(
        False, description="keep the classifier's old rows, the background's too"
    )
    fusion: Literal["off", "sqrt"] | Annotated[float, Field(ge=0, le=1)] = Field(
        "off",
        description="fuse old and new weights after a step: sqrt (EWF), or the new one's part",
    )
    pseudo_labels: Literal["off", "probability", "entropy", "released"] = Field(
        "off", description="how sure the teacher must be to name what is labelled background"
    )
    threshold: float = Field(
        0.7, gt=0, le=1, description="least probability, where pseudo_labels=probability"
    )
    init: Literal["own", "random", "background", "auxiliary"] = Field(
        "own", description="new rows: the method's own way, random, from background or auxiliary"
    )


class Parts:
    """The parts of one method in one step.

    Args:
        config: Which.
        num_old: Channels known before the step; 0 in step 0.
        score: What the method's teacher is sure by, where `pseudo_labels` is `probability`.
        unsure: What becomes of background pixels that the teacher is not sure of.
        weigh_images: Whether images weigh by how much of their background was accepted.
        extra_rows: Rows that are no classes and that the method learns.
    """

    def __init__(
        self,
        config: PartsConfig,
        num_old: int,
        *,
        score: Score = "probability",
        unsure: Literal["ignored", "kept"] = "ignored",
        weigh_images: bool = False,
        extra_rows: frozenset[ExtraRow] = frozenset(),
    ) -> None:
        self.config, self.num_old = config, num_old
        self.extra_rows = extra_rows
        if config.init == "auxiliary":
            self.extra_rows |= {"auxiliary"}
        self.score, self.unsure, self.weigh_images = score, unsure, weigh_images
        self.state: dict[str, Tensor] = {}
        """What must survive an interruption of the step: the thresholds."""
        self._old: dict[str, Tensor] = {}

    @property
    def labels_anew(self) -> bool:
        """Whether there are pseudo-labels in this step, for which a teacher is needed."""
        return bool(self.num_old) and self.config.pseudo_labels != "off"

    @property
    def shared(self) -> Shared:
        """Up to where the student computes what its teacher does."""
        if not self.num_old:
            return "nothing"
        if self.config.freeze == "nothing" and self.config.freeze_step_0:
            return "backbone"
        return self.config.freeze

    @property
    def needs(self) -> frozenset[Part]:
        """What the parts ask of a network beside logits."""
        config = self.config
        ours = config.freeze == "decoder" or config.freeze_old_rows or config.init == "auxiliary"
        wanted: list[Part] = ["classifier"] if ours else []
        wanted += ["backbone"] if config.freeze != "nothing" or config.freeze_step_0 else []
        return frozenset(wanted)

    def remember(self, network: Network) -> None:
        """Called with the network of the step before, as long as it has not grown."""
        if self.config.fusion != "off":
            state = network.state_dict()
            self._old = {name: value.detach().clone() for name, value in state.items()}

    def check_grown(self, network: Network) -> None:
        """Refuse a grown network that `end_step` could not fuse, before anything is learned."""
        check_fusible(network, self._old)

    def grow(self, network: Network, num_new: int) -> bool:
        """Give the network its new channels, unless that is the method's own business."""
        init = self.config.init
        if init in ("random", "background"):
            network.grow(num_new, init)
        elif init == "auxiliary":
            classifier = classifier_of(network)
            if classifier.auxiliary is None:
                raise NacreError(
                    "method.parts.init: the model has no auxiliary row to start new classes from; "
                    "learn step 0 with init=auxiliary too"
                )
            classifier.grow_from("auxiliary", num_new)
        return init != "own"

    def prepare(self, step: Step) -> None:
        """Set up what learns and what does not, before optimizer and distribution are made."""
        # What is frozen from now on must not keep the last gradient of the step before.
        step.network.requires_grad_(True).zero_grad()
        if isinstance(step.network, DeepLab):
            # Of a model that another method learnt: nothing would train them here.
            step.network.classifier.keep_rows(self.extra_rows)
        if self.config.init == "auxiliary":
            classifier_of(step.network).add_row("auxiliary")
        for module in self._frozen(step.network):
            module.requires_grad_(False)
            for norm in _norms(module):
                norm.eval()
        if self.freezes_backbone:
            backbone_of(step.network).eval()  # others drop paths, too

    @property
    def freezes_backbone(self) -> bool:
        """Whether the backbone does not learn in this step."""
        return self.config.freeze_step_0 or bool(self.num_old and self.config.freeze != "nothing")

    def _frozen(self, network: Network) -> Iterator[nn.Module]:
        if self.freezes_backbone:
            yield backbone_of(network)
        if not self.num_old:
            return
        if self.config.freeze == "decoder":
            yield deeplab(network).decoder
        if self.config.freeze_bn:
            yield from _norms(network)
        if self.config.freeze_old_rows:
            yield from list(classifier_of(network).rows)[:-1]

    @torch.no_grad()
    def survey(self, step: Step) -> None:
        """Find the thresholds of pseudo-labels: one pass over the step's images."""
        if not self.labels_anew or self.config.pseudo_labels == "probability":
            return
        assert step.teacher is not None
        bins = RELEASED_BINS if self.config.pseudo_labels == "released" else BINS
        counts = torch.zeros(self.num_old, bins, dtype=torch.int64, device=step.dist.device)
        for batch in step.batches():
            view = self._view(step.teacher(batch.images).logits, batch, step.num_new)
            counts += score_histogram(view, batch.targets == 0, self.num_old, bins=bins)
        counts = step.dist.sum(counts)
        find = released_thresholds if self.config.pseudo_labels == "released" else median_thresholds
        self.state["thresholds"] = find(counts)

    @torch.no_grad()
    def relabel(self, batch: Batch, student: Output, teacher: Output | None) -> Batch:
        """Put pseudo-labels in the place of background, where they are wanted."""
        if not self.labels_anew or teacher is None:
            return batch
        num_new = student.logits.shape[1] - self.num_old
        view = self._view(teacher.logits, batch, num_new)
        if self.config.pseudo_labels == "probability":
            certain = view.scores >= self.config.threshold
        else:
            certain = accept_by_entropy(view, self.state["thresholds"])
        targets = pseudo_targets(batch.targets, view.channels, certain, unsure=self.unsure)
        weights = acceptance_rate(batch.targets, certain) if self.weigh_images else None
        may_be = batch.may_be
        if may_be is not None and self.unsure == "ignored":
            # What is background still is so in the eyes of a teacher that knows the old classes.
            may_be = may_be.clone()
            may_be[:, 0, 1 : self.num_old] = False
        return replace(
            batch,
            targets=targets,
            replaced_targets=batch.targets,
            weights=weights,
            may_be=may_be,
        )

    def _view(self, old_logits: Tensor, batch: Batch, num_new: int) -> TeacherPrediction:
        size = (batch.targets.shape[-2], batch.targets.shape[-1])
        by_probability = self.config.pseudo_labels == "probability"
        view = teacher_predictions(old_logits, size, self.score if by_probability else "entropy")
        if self.config.pseudo_labels == "released":
            view = view._replace(scores=released_scores(view.scores, self.num_old, num_new))
        return view

    def losses(self, batch: Batch, student: Output) -> dict[str, Tensor]:
        """Return the losses of the parts: the auxiliary row's."""
        if self.config.init != "auxiliary":
            return {}
        assert student.auxiliary is not None
        height, width = batch.targets.shape[-2:]
        return {"auxiliary": auxiliary_loss(student.auxiliary, (height, width))}

    def end_step(self, step: Step) -> None:
        """Fuse what was learnt with what was known before."""
        if self._old:
            rule = self.config.fusion
            factor = fusion_factor(self.num_old, step.num_new) if rule == "sqrt" else rule
            assert isinstance(factor, float | int)
            fuse_(step.network, self._old, float(factor))
            self._old = {}

    def step_0(self) -> list[str]:
        """Say in which ways step 0 is learnt otherwise."""
        found = []
        if self.config.init == "auxiliary":
            found.append("an auxiliary row")
        if self.config.freeze_step_0:
            found.append("a frozen backbone")
        return found


def deeplab(network: Network) -> DeepLab:
    """Return a network of ours: `needs` sees to it that there is no other."""
    assert isinstance(network, DeepLab), type(network)
    return network


def backbone_of(network: Network) -> nn.Module:
    """Return the backbone of a network that has one apart: `needs` sees to it."""
    assert network.pretrained_part is not None
    return network.pretrained_part


def classifier_of(network: Network) -> Classifier:
    """Return the classifier of a network of ours."""
    return deeplab(network).classifier


def _norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, NORMS)]


def fill_parts(given: Any, own: dict[str, Any]) -> Any:
    """Lay what a user says of the parts over a method's own."""
    return {**own, **given} if isinstance(given, dict) else given
