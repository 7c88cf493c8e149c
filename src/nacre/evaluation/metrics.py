"""From confusion matrices to the figures of a table: means over groups, and forgetting.

The paper leaves the background out of every mean, later papers put it in. Both are always
computed and their names say which is which. A class that the tested truth never holds has no
IoU and takes no part in a mean.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nacre.evaluation.confusion import iou_by_class, mean_of
from nacre.labels.space import BACKGROUND
from nacre.scenarios.classes import ClassSchedule, StepLabels

WITHOUT, WITH = "without_background", "with_background"

Ious = dict[str, float | None]


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
