"""Metrics of class maps, updated batch by batch, and the values of a results table.

    IoU = hits / (target pixels + predicted pixels - hits)

A class without a target pixel has no IoU and is not part of a mean. The paper leaves the background
out of every mean, later papers include it. Both means are computed, and their names differ.
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
    """A metric of class maps, updated batch by batch."""

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Add a batch of channels N,H,W; some targets may be ignored."""

    def merge(self, dist: Distributed) -> None:
        """Add the counts of other processes."""

    def compute(self) -> Any:
        """Return the value."""


def iou(hit: int, targets: int, predicted: int) -> float | None:
    """Return the IoU of a class by its numbers of pixels; None if no target has the class.

    >>> iou(hit=2, targets=3, predicted=3)
    0.5
    """
    return hit / (targets + predicted - hit) if targets else None


def iou_by_class(confusion: Tensor) -> list[float | None]:
    """Return the IoU of each class of a confusion matrix."""
    counts = zip(confusion.diagonal(), confusion.sum(1), confusion.sum(0), strict=True)
    return [iou(int(hit), int(targets), int(predicted)) for hit, targets, predicted in counts]


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def confusion_matrix(targets: Tensor, predicted: Tensor, channels: int) -> Tensor:
    """Return the numbers of pixels by target (rows) and predicted channel (columns), int64.

    Both tensors have the same shape and any integer type; ignored targets do not count.

    Raises:
        NacreError: A target is not a channel.
    """
    cell = _cell_of_pixels(targets, predicted, channels)
    return _matrix(torch.bincount(cell, minlength=channels * channels + 2), channels)


class ConfusionMatrix:
    """The confusion matrix of all batches, counted on their device."""

    def __init__(self, channels: int, device: torch.device) -> None:
        self.channels = channels
        self._counts = torch.zeros(channels * channels + 2, dtype=torch.int64, device=device)

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Count the pixels of a batch, as `confusion_matrix` does."""
        cell = _cell_of_pixels(targets, predicted, self.channels)
        if cell.is_cuda:  # where `bincount` waits for the device twice
            self._counts.index_add_(0, cell, torch.ones_like(cell))
        else:
            self._counts += torch.bincount(cell, minlength=len(self._counts))

    def merge(self, dist: Distributed) -> None:
        """Add the counts of other processes."""
        self._counts = dist.sum(self._counts)

    def counts(self) -> Tensor:
        """Return the matrix, int64 on the CPU; raise NacreError if a target was not a channel."""
        return _matrix(self._counts.cpu(), self.channels)

    def compute(self) -> list[float | None]:
        """Return the IoU of each class."""
        return iou_by_class(self.counts())


def _cell_of_pixels(targets: Tensor, predicted: Tensor, channels: int) -> Tensor:
    """Return the bin of each pixel: 0 if ignored, the last if not a channel, else the matrix's.

    With a bin for ignored pixels, the others need not be selected first, which is slower.
    """
    targets, predicted = targets.reshape(-1), predicted.reshape(-1)
    cell = (targets.to(torch.int64) * channels).add_(predicted).add_(1)
    cell = torch.where(targets == ignore_value(targets), 0, cell)
    return cell.clamp_(max=channels * channels + 1)


def _matrix(counts: Tensor, channels: int) -> Tensor:
    if counts[-1]:
        raise NacreError(
            f"{int(counts[-1]):,} pixels have a target that is not one of the {channels} channels; "
            "map labels to channels first"
        )
    return counts[1:-1].view(channels, channels)


def compute_metrics(
    classes: ClassSchedule, groups: StepLabels, step: int, confusion: Tensor
) -> dict[str, Any]:
    """Return the metrics of a network after a step.

    Args:
        classes: The channel of each class.
        groups: The classes of each step of the task, also if joint training merged the steps.
        step: The number of the step.
        confusion: The confusion matrix of all channels.
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
    """Return the names of the classes in each mean, without the background."""
    name = classes.space.names
    known = set(classes.seen(step))
    by_step = [[name[label] for label in labels if label in known] for labels in groups]
    by_step = [names for names in by_step if names]
    old = [class_name for names in by_step[:-1] for class_name in names]
    result = {"old": old} if old else {}
    result |= {"new": by_step[-1], "all": old + by_step[-1]}
    return result | {f"step_{i}": names for i, names in enumerate(by_step)}


def group_means(iou: Ious, groups: dict[str, list[str]]) -> dict[str, float | None]:
    """Return the mean IoU of each group, without and with the background as another class."""
    means: dict[str, float | None] = {}
    for group, names in groups.items():
        means[f"{group}_{WITHOUT}"] = mean_of([iou[name] for name in names])
        means[f"{group}_{WITH}"] = mean_of([iou[name] for name in (BACKGROUND, *names)])
    return means


def summarize(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of several steps: the IoU by step and class, and forgetting.

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
