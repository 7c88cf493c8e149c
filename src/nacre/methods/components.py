"""Components that combine with any method: functions that `nacre.training.loop` calls by name.

    freeze           freeze modules: no backward pass, and the teacher's features are reused
    pseudo_labels    replace background labels by the teacher's class where it is certain
    auxiliary_row    train a row to be negative on every pixel; new rows are its copies (DKD)
    fuse             after a step interpolate W = (1 - a) W_old + a W_new for all old weights,
                     batch norm statistics and old rows (EWF); a = sqrt(N / (O + N)) with O old
                     channels, background included, and N new ones, or a given number

Their keys are beside the method's own: `method.freeze`, `method.pseudo_labels`, `method.init`,
`method.fusion`. (The learning rate of the backbone is `train.backbone_lr_scale`.)

Pseudo-labels, with H the entropy of the teacher's softmax over its O channels, divided by log O:

    a number    the greatest probability (of sigmoids if the method has them) >= the number
    entropy     H < the median of H over the background pixels of the same predicted class, found
                in a pass over the images before the first update, but at least 0.001 (PLOP)
    released    the same as PLOP's implementation computes it, see `nacre.losses.pseudo_labels`

Pixels where the teacher is not certain are ignored, or remain background if the method's loss
models what the background may be. The divisor of the loss does not change.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.losses.distillations import auxiliary_loss
from nacre.losses.pseudo_labels import (
    RELEASED_BINS,
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
from nacre.methods.base import Method, backbone_of, classifier_of, deeplab
from nacre.methods.step import Batch, Step
from nacre.models.network import Capability, Network, Output, Shared
from nacre.models.norm import ABN

NUM_BINS = 10_000
"""Bins of the entropy's histogram; the median is interpolated within a bin."""

NORMS = (ABN, nn.modules.batchnorm._BatchNorm)


def required_by(method: Method) -> frozenset[Capability]:
    """Return what a method and its components need of a network beside logits."""
    config = method.config
    wanted: set[Capability] = set(method.requires)
    if not method.learns_by_gradient:
        return frozenset(wanted)  # nothing has to be frozen
    if {"decoder", "old_rows"} & {*config.freeze} or config.init == "auxiliary":
        wanted.add("classifier")
    if "backbone" in config.freeze or config.freeze_step_0:
        wanted.add("backbone")
    return frozenset(wanted)


def shared_modules_of(method: Method) -> Shared:
    """Return which modules the student shares with its teacher, as they are frozen."""
    if not method.num_old or not method.freezes_backbone:
        return "nothing"
    return "decoder" if "decoder" in method.config.freeze else "backbone"


def freeze(method: Method, step: Step) -> list[nn.Parameter]:
    """Freeze the modules that the config names; return the parameters that this froze."""
    frozen: list[nn.Parameter] = []
    for module in _frozen_modules(method, step.network):
        frozen += [value for value in module.parameters() if value.requires_grad]
        module.requires_grad_(False)
        for norm in _norms(module):
            norm.eval()
    if method.freezes_backbone:
        backbone_of(step.network).eval()  # external ones may drop paths, too
    return frozen


def unfreeze(frozen: Iterable[nn.Parameter]) -> None:
    """Unfreeze the parameters that `freeze` returned."""
    for parameter in frozen:
        parameter.requires_grad_(True)


def _frozen_modules(method: Method, network: Network) -> Iterator[nn.Module]:
    if method.freezes_backbone:
        yield backbone_of(network)
    if not method.num_old:
        return
    if "decoder" in method.config.freeze:
        yield deeplab(network).decoder
    if "batch_norm" in method.config.freeze:
        yield from _norms(network)
    if "old_rows" in method.config.freeze:
        yield from list(classifier_of(network).rows)[:-1]


def _norms(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.modules() if isinstance(child, NORMS)]


@torch.no_grad()
def find_thresholds(method: Method, step: Step) -> None:
    """Find the thresholds of pseudo-labels by entropy in one pass over the step's images."""
    rule, num_old = method.config.pseudo_labels, method.num_old
    if not num_old or rule not in ("entropy", "released"):
        return
    assert step.teacher is not None
    bins = RELEASED_BINS if rule == "released" else NUM_BINS
    counts = torch.zeros(num_old, bins, dtype=torch.int64, device=step.dist.device)
    for batch in step.images():
        prediction = _predict(method, step.teacher(batch.images).logits, batch)
        counts += score_histogram(prediction, batch.targets == 0, num_old, bins=bins)
    counts = step.dist.sum(counts)
    find = released_thresholds if rule == "released" else median_thresholds
    step.thresholds = find(counts)


@torch.no_grad()
def pseudo_labels(method: Method, step: Step, batch: Batch, teacher: Output | None) -> Batch:
    """Replace background labels by the teacher's classes where it is certain."""
    rule, num_old = method.config.pseudo_labels, method.num_old
    if not num_old or rule == "off" or teacher is None:
        return batch
    logits, unknown = teacher.logits, teacher.unknown if "unknown" in method.extra_rows else None
    logits = logits if unknown is None else torch.cat([logits, unknown], 1)
    prediction = _predict(method, logits, batch)
    if isinstance(rule, str):
        assert step.thresholds is not None
        certain = accept_by_entropy(prediction, step.thresholds)
    else:
        certain = prediction.scores >= rule
    targets = pseudo_targets(batch.targets, prediction.channels, certain, unsure=method.unsure)
    if unknown is not None:  # the unknown class is no label
        targets = targets.masked_fill((batch.targets == 0) & (targets == num_old), 0)
    weights = acceptance_rate(batch.targets, certain) if method.weight_by_acceptance else None
    may_be = batch.may_be
    if may_be is not None and method.unsure == "ignored":
        # The teacher knows the old classes and found none in what is still background.
        may_be = may_be.clone()
        may_be[:, 0, 1:num_old] = False
    return replace(
        batch, targets=targets, replaced_targets=batch.targets, weights=weights, may_be=may_be
    )


def _predict(method: Method, old_logits: Tensor, batch: Batch) -> TeacherPrediction:
    """Return the teacher's best channel of each pixel, with the score that the rule needs."""
    size = (batch.targets.shape[-2], batch.targets.shape[-1])
    rule = method.config.pseudo_labels
    if not isinstance(rule, str):
        score = "sigmoid" if method.config.has_sigmoids else "probability"
        return teacher_predictions(old_logits, size, score)  # type: ignore[arg-type]
    prediction = teacher_predictions(old_logits, size, "entropy")
    if rule == "released":
        scores = released_scores(prediction.scores, method.num_old, method.growth.num_new)
        prediction = prediction._replace(scores=scores)
    return prediction


def auxiliary_row(method: Method, batch: Batch, student: Output) -> dict[str, Tensor]:
    """Return the loss of the auxiliary row, if the config has one."""
    if method.config.init != "auxiliary":
        return {}
    assert student.auxiliary is not None
    height, width = batch.targets.shape[-2:]
    return {"auxiliary": auxiliary_loss(student.auxiliary, (height, width))}


def fuse(method: Method, step: Step) -> None:
    """Interpolate between the weights before and after the step, if the config has a fusion."""
    rule = method.config.fusion
    if rule == "off" or not step.weights_before:
        return
    factor = fusion_factor(method.num_old, step.num_new) if rule == "sqrt" else rule
    fuse_(step.network, step.weights_before, float(factor))
    step.weights_before = {}


def fusion_factor(num_old: int, num_new: int) -> float:
    """Return the share of the new weights by EWF's rule; `num_old` includes the background."""
    return math.sqrt(num_new / (num_old + num_new))


@torch.no_grad()
def fuse_(network: nn.Module, old: Mapping[str, Tensor], factor: float) -> None:
    """Interpolate in place between a network's tensors and those before the step.

    Args:
        network: The learned network; it has all tensors of `old`, some with more rows.
        old: The `state_dict` of the network before. Additional rows stay as they are.
        factor: The share of the new weights: 0 restores the old ones, 1 changes nothing.

    Raises:
        NacreError: A tensor grew in another way; nothing was changed.
    """
    fused: set[object] = set()  # a tied tensor has several names but is fused once
    for now, before in _old_slices(network, old):
        place = (now.data_ptr(), now.shape)
        if now.is_floating_point() and place not in fused:
            now.lerp_(before.to(now), 1 - factor)
            fused.add(place)


def check_fusible(network: nn.Module, old: Mapping[str, Tensor]) -> None:
    """Raise NacreError unless all tensors of the old network grew by rows alone."""
    _old_slices(network, old)


def _old_slices(network: nn.Module, old: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of each tensor, without its new rows, and its old value.

    New rows are at the end of dimension 0, or of dimension 1 in a transposed convolution.
    """
    state = network.state_dict()
    pairs: list[tuple[Tensor, Tensor]] = []
    for name, before in old.items():
        now = state.get(name)
        if now is not None and now.dim() == before.dim():
            grew = [i for i in range(now.dim()) if now.shape[i] > before.shape[i]]
            for dim in grew[:1]:
                now = now.narrow(dim, 0, before.shape[dim])
        if now is None or now.shape != before.shape:
            became = "is gone" if name not in state else f"is now {_size(state[name])}"
            raise NacreError(
                f"method.fusion: {name} was {_size(before)} and {became}, but only networks that "
                "grow by rows of their classifier can be fused; set method.fusion=off"
            )
        pairs.append((now, before))
    return pairs


def _size(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "a scalar"
