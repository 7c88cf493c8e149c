"""Testing of networks: metrics over batches of images, and a comparison of two networks.

`report_forgetting` compares two networks in a training loop of your own; `nacre run` and `nacre
learn` measure the same in `nacre.runs.testing`.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.evaluation.metrics import Metric, confusion_matrix, iou_by_class
from nacre.evaluation.predictor import NOT_FINITE, Predictor, check_finite
from nacre.evaluation.upsampling import predict_classes, whole_maps
from nacre.models.network import Output
from nacre.models.probe import scores_of, undisturbed
from nacre.utils.device import FLOAT32, Precision

Scorer = nn.Module | Callable[[Tensor], Any]


@torch.inference_mode()
def evaluate(
    predictor: Predictor,
    batches: Iterable[tuple[Tensor, Tensor]],
    metrics: Sequence[Metric],
    device: torch.device,
    on_images: Callable[[int], None] = lambda count: None,
    precision: Precision = FLOAT32,
) -> None:
    """Predict batches of images and add the class maps to metrics.

    Args:
        predictor: The network and how it predicts.
        batches: Images N,3,H,W and their targets N,H,W.
        metrics: The metrics to update.
        device: The device of the network, which is only waited for at the end.
        on_images: Called with the number of images of each batch.
        precision: The precision of the network; scores are upsampled in float32.

    Raises:
        NacreError: The network's scores are not finite.
    """
    all_finite = torch.ones((), dtype=torch.bool, device=device)

    def note_finite(scores: Tensor) -> Tensor:
        all_finite.logical_and_(scores.isfinite().all())
        return scores

    predictor = replace(predictor, check=note_finite)
    with undisturbed(predictor.network):
        for images, targets in batches:
            with precision.mixed(device):
                predicted = predictor.classes(images.to(device, non_blocking=True))
            targets = targets.to(device, non_blocking=True)
            for metric in metrics:
                metric.update(targets, predicted)
            on_images(len(images))
    if not all_finite:
        raise NacreError(NOT_FINITE)


@dataclass(frozen=True)
class Forgetting:
    """The IoU of each class before and after a step.

    Attributes:
        names: The names of the channels after the step.
        before: IoU of each old channel with the network before; None without a pixel of it.
        after: IoU of each channel with the network after.
        agreement: IoU of the two predictions with each other for each old channel, which needs no
            labels.
    """

    names: tuple[str, ...]
    before: tuple[float | None, ...]
    after: tuple[float | None, ...]
    agreement: tuple[float | None, ...]

    def __str__(self) -> str:
        width = max(map(len, (*self.names, "class")))
        lines = [f"{'class':{width}}  before   after  agreement"]
        columns = (self.names, self.before, self.after, self.agreement)
        for name, *values in itertools.zip_longest(*columns):
            lines.append("  ".join([f"{name:{width}}", *map(_percent, values)]))
        return "\n".join(lines)


@torch.no_grad()
def report_forgetting(
    before: Scorer,
    after: Scorer,
    data: Iterable[tuple[Tensor, Tensor]],
    *,
    names: Sequence[str] = (),
) -> Forgetting:
    """Compare a network before and after it learned new classes.

    Args:
        before: The network or teacher of the old classes.
        after: The network of old and new classes, the old channels first.
        data: Batches of images, as both networks take them, and of targets N,H,W: channels of
            `after`, or 255 for pixels without a label.
        names: The names of the channels of `after`; by default their numbers.
    """
    of_before = of_after = of_both = torch.zeros(0, 0, dtype=torch.int64)
    num_old = num_new = 0
    with contextlib.ExitStack() as stack:
        for model in (before, after):
            if isinstance(model, nn.Module):
                stack.enter_context(undisturbed(model))
        for images, targets in data:
            size = (targets.shape[-2], targets.shape[-1])
            old, new = (_scores(model(images)) for model in (before, after))
            if not num_new:
                num_old, num_new = old.shape[1], new.shape[1]
                of_before, of_after, of_both = (
                    torch.zeros(num_new, num_new).long() for _ in range(3)
                )
            was, now = (predict_classes(whole_maps(check_finite(x)), size) for x in (old, new))
            targets = targets.to(now.device)
            of_before += confusion_matrix(targets, was, num_new).cpu()
            of_after += confusion_matrix(targets, now, num_new).cpu()
            of_both += confusion_matrix(was, now, num_new).cpu()
    return Forgetting(
        names=tuple(names) or tuple(str(i) for i in range(num_new)),
        before=tuple(iou_by_class(of_before)[:num_old]),
        after=tuple(iou_by_class(of_after)),
        agreement=tuple(iou_by_class(of_both)[:num_old]),
    )


def _scores(output: Any) -> Tensor:
    """Return the class scores in the output of a network of nacre or of an external one."""
    return output.scores if isinstance(output, Output) else scores_of(output)


def _percent(value: float | None) -> str:
    return "     -" if value is None else f"{100 * value:6.1f}"
