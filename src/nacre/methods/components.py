"""Components of any method: functions that `nacre.training.loop` calls by name.

    freeze           what does not learn: no backward pass, and the teacher takes it over
    pseudo_labels    background that the teacher is sure of gets the teacher's class
    auxiliary_row    learns a row that calls every pixel negative; new rows are its copies (DKD)
    fuse             at the end of a step W = (1 - a) W_old + a W_new for all that is old (EWF),
                     with a = sqrt(N / (O + N)), O being the old channels, background included,
                     and N the new ones, or a number of one's own. Old are weights, the affine
                     parameters of norms and their running statistics, and old rows

Their keys stand beside the method's own: `method.freeze`, `method.fusion`, `method.pseudo_labels`,
`method.init`. (That the backbone has a rate of its own is `train.backbone_lr_scale`.)

Pseudo-labels, with H the entropy of the teacher's softmax over its O channels, divided by log O:

    a number    the greatest probability (of sigmoids where the method has them) >= the number
    entropy     H < the median of H over the background pixels of the same teacher's class,
                which a pass over the step's images finds before it begins, but at least 0.001
                (PLOP)
    released    the same as PLOP's implementation computes it, see `nacre.losses.pseudo_labels`

Pixels of which the teacher is not sure are ignored, or stay background where the method's loss
knows what background may hide. The number of pixels that a loss is divided by stays that of the
data's labels.
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

BINS = 10_000
"""Of the entropy's histogram; the median is interpolated within one."""

NORMS = (ABN, nn.modules.batchnorm._BatchNorm)


def required_by(method: Method) -> frozenset[Capability]:
    """Return what a method and its components ask of a network beside logits."""
    config = method.config
    wanted: set[Capability] = set(method.requires)
    if not method.learns_by_gradient:
        return frozenset(wanted)  # nothing learns that would have to be told apart
    if {"decoder", "old_rows"} & {*config.freeze} or config.init == "auxiliary":
        wanted.add("classifier")
    if "backbone" in config.freeze or config.freeze_step_0:
        wanted.add("backbone")
    return frozenset(wanted)


def shared_modules_of(method: Method) -> Shared:
    """Return up to where the student computes what its teacher does."""
    if not method.num_old or not method.freezes_backbone:
        return "nothing"
    return "decoder" if "decoder" in method.config.freeze else "backbone"


def freeze(method: Method, step: Step) -> list[nn.Parameter]:
    """Stop what does not learn in a step; return the parameters that learned until now."""
    stopped: list[nn.Parameter] = []
    for module in _frozen(method, step.network):
        stopped += [one for one in module.parameters() if one.requires_grad]
        module.requires_grad_(False)
        for norm in _norms(module):
            norm.eval()
    if method.freezes_backbone:
        backbone_of(step.network).eval()  # others drop paths, too
    return stopped


def unfreeze(stopped: Iterable[nn.Parameter]) -> None:
    """Unfreeze what `freeze` stopped, and nothing else."""
    for parameter in stopped:
        parameter.requires_grad_(True)


def _frozen(method: Method, network: Network) -> Iterator[nn.Module]:
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
    return [part for part in module.modules() if isinstance(part, NORMS)]


@torch.no_grad()
def find_thresholds(method: Method, step: Step) -> None:
    """Find the thresholds of pseudo-labels by entropy: one pass over the step's images."""
    rule, num_old = method.config.pseudo_labels, method.num_old
    if not num_old or rule not in ("entropy", "released"):
        return
    assert step.teacher is not None
    bins = RELEASED_BINS if rule == "released" else BINS
    counts = torch.zeros(num_old, bins, dtype=torch.int64, device=step.dist.device)
    for batch in step.images():
        view = _view(method, step.teacher(batch.images).logits, batch)
        counts += score_histogram(view, batch.targets == 0, num_old, bins=bins)
    counts = step.dist.sum(counts)
    find = released_thresholds if rule == "released" else median_thresholds
    step.thresholds = find(counts)


@torch.no_grad()
def pseudo_labels(method: Method, step: Step, batch: Batch, teacher: Output | None) -> Batch:
    """Put the teacher's classes in the place of background, where they are wanted."""
    rule, num_old = method.config.pseudo_labels, method.num_old
    if not num_old or rule == "off" or teacher is None:
        return batch
    logits, unknown = teacher.logits, teacher.unknown if "unknown" in method.extra_rows else None
    view = _view(method, logits if unknown is None else torch.cat([logits, unknown], 1), batch)
    if isinstance(rule, str):
        assert step.thresholds is not None
        certain = accept_by_entropy(view, step.thresholds)
    else:
        certain = view.scores >= rule
    targets = pseudo_targets(batch.targets, view.channels, certain, unsure=method.unsure)
    if unknown is not None:  # a teacher that is sure of it names nothing
        targets = targets.masked_fill((batch.targets == 0) & (targets == num_old), 0)
    weights = acceptance_rate(batch.targets, certain) if method.weighs_images else None
    may_be = batch.may_be
    if may_be is not None and method.unsure == "ignored":
        # What is background still is so in the eyes of a teacher that knows the old classes.
        may_be = may_be.clone()
        may_be[:, 0, 1:num_old] = False
    return replace(
        batch, targets=targets, replaced_targets=batch.targets, weights=weights, may_be=may_be
    )


def _view(method: Method, old_logits: Tensor, batch: Batch) -> TeacherPrediction:
    """Return what a teacher takes each pixel for, and how sure of it the rule makes it."""
    size = (batch.targets.shape[-2], batch.targets.shape[-1])
    rule = method.config.pseudo_labels
    if not isinstance(rule, str):
        score = "sigmoid" if method.config.has_sigmoids else "probability"
        return teacher_predictions(old_logits, size, score)  # type: ignore[arg-type]
    view = teacher_predictions(old_logits, size, "entropy")
    if rule == "released":
        num_old, num_new = method.num_old, method.growth.num_new
        view = view._replace(scores=released_scores(view.scores, num_old, num_new))
    return view


def auxiliary_row(method: Method, batch: Batch, student: Output) -> dict[str, Tensor]:
    """Return the loss of the auxiliary row, if there is one."""
    if method.config.init != "auxiliary":
        return {}
    assert student.auxiliary is not None
    height, width = batch.targets.shape[-2:]
    return {"auxiliary": auxiliary_loss(student.auxiliary, (height, width))}


def fuse(method: Method, step: Step) -> None:
    """Fuse what was learned with what was known before."""
    rule = method.config.fusion
    if rule == "off" or not step.weights_before:
        return
    factor = fusion_factor(method.num_old, step.num_new) if rule == "sqrt" else rule
    fuse_(step.network, step.weights_before, float(factor))
    step.weights_before = {}


def fusion_factor(num_old: int, num_new: int) -> float:
    """Return the share of what is new, by EWF's rule.

    Args:
        num_old: old channels, background included.
        num_new: new channels.
    """
    return math.sqrt(num_new / (num_old + num_new))


@torch.no_grad()
def fuse_(network: nn.Module, old: Mapping[str, Tensor], factor: float) -> None:
    """Mix a network's tensors with those of the network it was learned from, in place.

    Args:
        network: what was learned; it has all that `old` has, and may have grown.
        old: the old network's `state_dict`. A tensor that has more rows now keeps the new ones.
        factor: a, the share of what is new: 0 gives the old network back, 1 changes nothing.

    Raises:
        NacreError: a tensor did not grow by rows alone; nothing was mixed.
    """
    mixed: set[object] = set()  # a tied tensor has several names, and is mixed once
    for now, before in _old_slices(network, old):
        place = (now.data_ptr(), now.shape)
        if now.is_floating_point() and place not in mixed:
            now.lerp_(before.to(now), 1 - factor)
            mixed.add(place)


def check_fusible(network: nn.Module, old: Mapping[str, Tensor]) -> None:
    """Refuse a network that has grown in a way that cannot be fused with what it was.

    Raises:
        NacreError: a tensor of the old network did not grow by rows alone.
    """
    _old_slices(network, old)


def _old_slices(network: nn.Module, old: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return what each old tensor has become, without new rows, and the old tensor.

    Rows come at the end of one dimension: the first, or the second of a transposed convolution.
    """
    state = network.state_dict()
    parts: list[tuple[Tensor, Tensor]] = []
    for name, before in old.items():
        now = state.get(name)
        if now is not None and now.dim() == before.dim():
            grew = [i for i in range(now.dim()) if now.shape[i] > before.shape[i]]
            for dim in grew[:1]:
                now = now.narrow(dim, 0, before.shape[dim])
        if now is None or now.shape != before.shape:
            became = "gone" if name not in state else _size(state[name])
            raise NacreError(
                f"method.fusion: {name} was {_size(before)} and is {became} now, which "
                "cannot be fused: only networks that grow by rows of their classifier can; leave "
                "method.fusion=off"
            )
        parts.append((now, before))
    return parts


def _size(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "a number"
