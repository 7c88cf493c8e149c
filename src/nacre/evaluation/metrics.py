"""Metrics: figures of class maps, added up batch by batch, and the figures of a table.

    IoU = hit / (pixels of the truth + pixels predicted - hit)

A class that the tested truth never contains has no IoU and takes no part in a mean. The paper
leaves the background out of every mean, later papers put it in. Both are always computed and their
names say which is which.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import ignore_value
from nacre.labels.space import BACKGROUND
from nacre.scenarios.classes import ClassSchedule, StepLabels
from nacre.utils.distributed import Distributed

WITHOUT, WITH = "without_background", "with_background"

Ious = dict[str, float | None]


class Metric(Protocol):
    """A figure of class maps, added up batch by batch."""

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Add a batch: channels N,H,W, of which some targets may be ignored."""

    def merge(self, dist: Distributed) -> None:
        """Add what other processes have."""

    def compute(self) -> Any:
        """Return the figure."""


def iou(hit: int, truth: int, predicted: int) -> float | None:
    """Return the intersection over union of a class by its pixels; None without any in the truth.

    >>> iou(hit=2, truth=3, predicted=3)
    0.5
    """
    return hit / (truth + predicted - hit) if truth else None


def iou_by_class(confusion: Tensor) -> list[float | None]:
    """Return the IoU of each class of a confusion matrix."""
    counts = zip(confusion.diagonal(), confusion.sum(1), confusion.sum(0), strict=True)
    return [iou(int(hit), int(truth), int(predicted)) for hit, truth, predicted in counts]


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that exist; None without any."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def confusion_matrix(targets: Tensor, predicted: Tensor, channels: int) -> Tensor:
    """Count pixels by true and predicted channel.

    Args:
        targets: Channel numbers of any integer type and shape; what is ignored does not count.
        predicted: Channel numbers of the same shape.
        channels: How many channels there are.

    Returns:
        int64 of shape (channels, channels).

    Raises:
        NacreError: a target is no channel.
    """
    cell = _cell_of_pixels(targets, predicted, channels)
    return _matrix(torch.bincount(cell, minlength=channels * channels + 2), channels)


class ConfusionMatrix:
    """The confusion matrix of all batches, counted where they are.

    Args:
        channels: How many channels there are.
        device: Where the batches are.
    """

    def __init__(self, channels: int, device: torch.device) -> None:
        self.channels = channels
        self._counts = torch.zeros(channels * channels + 2, dtype=torch.int64, device=device)

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Count the pixels of a batch, as `confusion_matrix` does."""
        cell = _cell_of_pixels(targets, predicted, self.channels)
        if cell.is_cuda:  # which `bincount` asks twice how far it has to count
            self._counts.index_add_(0, cell, torch.ones_like(cell))
        else:
            self._counts += torch.bincount(cell, minlength=len(self._counts))

    def merge(self, dist: Distributed) -> None:
        """Add what other processes counted."""
        self._counts = dist.sum(self._counts)

    def counts(self) -> Tensor:
        """Return the matrix, int64 in the CPU's memory.

        Raises:
            NacreError: a target was no channel.
        """
        return _matrix(self._counts.cpu(), self.channels)

    def compute(self) -> list[float | None]:
        """Return the IoU of each class."""
        return iou_by_class(self.counts())


def _cell_of_pixels(targets: Tensor, predicted: Tensor, channels: int) -> Tensor:
    """Return the cell of each pixel: 0 if ignored, the matrix's row by row, the last if no channel.

    Ignored pixels have a cell, which is faster than to select the others first.
    """
    targets, predicted = targets.reshape(-1), predicted.reshape(-1)
    cell = (targets.to(torch.int64) * channels).add_(predicted).add_(1)
    cell = torch.where(targets == ignore_value(targets), 0, cell)
    return cell.clamp_(max=channels * channels + 1)


def _matrix(counts: Tensor, channels: int) -> Tensor:
    if counts[-1]:
        raise NacreError(
            f"{int(counts[-1]):,} pixels have a target that is none of the {channels} channels; "
            "map labels to channels first"
        )
    return counts[1:-1].view(channels, channels)


def compute_metrics(
    classes: ClassSchedule, groups: StepLabels, step: int, confusion: Tensor
) -> dict[str, Any]:
    """Return the metrics of a network after a step.

    Args:
        classes: Which class is which channel.
        groups: The classes of each step of the task, also where joint training merged them.
        step: The last step learned.
        confusion: Of all channels.
    """
    names = classes.names(step)
    iou: Ious = dict(zip(names, iou_by_class(confusion), strict=True))
    correct, total = confusion.diagonal().sum(), confusion.sum()
    return {
        "step": step,
        "classes": list(names),
        "iou": iou,
        "mean_iou": group_means(iou, class_groups(classes, groups, step)),
        "pixel_accuracy": float(correct / total) if total else None,
        "confusion": confusion.tolist(),
    }


def class_groups(classes: ClassSchedule, groups: StepLabels, step: int) -> dict[str, list[str]]:
    """Return the class names that each mean covers, background aside."""
    name = classes.space.names
    known = set(classes.seen(step))
    by_step = [[name[label] for label in labels if label in known] for labels in groups]
    by_step = [names for names in by_step if names]
    old = [one for names in by_step[:-1] for one in names]
    found = {"old": old} if old else {}
    found |= {"new": by_step[-1], "all": old + by_step[-1]}
    return found | {f"step_{i}": names for i, names in enumerate(by_step)}


def group_means(iou: Ious, groups: dict[str, list[str]]) -> dict[str, float | None]:
    """Return each group's mean IoU, without the background and with it as one class more."""
    means: dict[str, float | None] = {}
    for group, names in groups.items():
        means[f"{group}_{WITHOUT}"] = mean_of([iou[one] for one in names])
        means[f"{group}_{WITH}"] = mean_of([iou[one] for one in (BACKGROUND, *names)])
    return means


def summarize(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what only several steps together show: the step x class matrix and forgetting.

    Forgetting of a class is its best IoU after an earlier step minus its IoU after the last.
    """
    names = steps[-1]["classes"]
    matrix = [[metrics["iou"].get(name) for name in names] for metrics in steps]
    forgetting: Ious = {}
    for i, name in enumerate(names):
        earlier = [row[i] for row in matrix[:-1] if row[i] is not None]
        last = matrix[-1][i]
        if earlier and last is not None:
            forgetting[name] = max(earlier) - last
    kept = [value for name, value in forgetting.items() if name != BACKGROUND]
    return {
        "classes": names,
        "iou_by_step_and_class": matrix,
        "forgetting": forgetting,
        f"mean_forgetting_{WITHOUT}": mean_of(kept),
        "mean_iou_by_step": [metrics["mean_iou"] for metrics in steps],
    }
