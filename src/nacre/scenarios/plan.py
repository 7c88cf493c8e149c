"""The plan of a scenario: what each step sees, before anything is learned.

For every step: its classes, its images (their number and the sha256 of their sorted names joined
by newline) and what its background hides: classes of earlier and later steps whose pixels are
there, but whose labels are not.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from nacre.labels.space import LabelIndex
from nacre.scenarios.scenario import ImageLists, Scenario


@dataclass(frozen=True)
class StepPlan:
    """The classes and images of one step.

    Attributes:
        step: Its number.
        classes: Names of the classes it learns.
        images: How many images it gets.
        sha256: Digest of the sorted image names joined by newline.
        hidden_old: Images that hold a class of an earlier step, by class name.
        hidden_future: Images that hold a class of a later step, by class name.
        background: Shares of the background's pixels that are in truth ``old`` or ``future``
            classes.
    """

    step: int
    classes: tuple[str, ...]
    images: int
    sha256: str
    hidden_old: dict[str, int]
    hidden_future: dict[str, int]
    background: dict[str, float]


def make_plan(scenario: Scenario, index: LabelIndex, lists: ImageLists) -> list[StepPlan]:
    """Return what each step of a scenario sees."""
    return [_plan_step(scenario, index, step, images) for step, images in enumerate(lists)]


def digest(names: list[str]) -> str:
    """Return the sha256 of sorted names joined by newline."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def _plan_step(
    scenario: Scenario, index: LabelIndex, step: int, images: tuple[int, ...]
) -> StepPlan:
    table, names = scenario.classes, scenario.classes.space.names
    held = Counter(label for i in images for label in index.labels[i])
    pixels: Counter[int] = Counter()
    for i in images:
        pixels.update(index.pixel_counts[i])
    called = sum(count for label, count in pixels.items() if label not in table.new(step))
    old = sum(pixels[label] for label in table.old(step))
    future = sum(pixels[label] for label in table.future(step))
    return StepPlan(
        step=step,
        classes=tuple(names[label] for label in table.new(step)),
        images=len(images),
        sha256=digest([index.names[i] for i in images]),
        hidden_old={names[label]: held[label] for label in table.old(step) if held[label]},
        hidden_future={names[label]: held[label] for label in table.future(step) if held[label]},
        background={"old": old / max(called, 1), "future": future / max(called, 1)},
    )


def plan_as_json(scenario: Scenario, plan: list[StepPlan]) -> dict[str, Any]:
    """Return a plan as plain data."""
    steps = []
    for one in plan:
        steps.append(
            {
                "step": one.step,
                "classes": list(one.classes),
                "images": one.images,
                "sha256": one.sha256,
                "hidden": {"old": one.hidden_old, "future": one.hidden_future},
                "background": {key: round(v, 6) for key, v in one.background.items()},
            }
        )
    return {"scenario": scenario.name, "steps": steps}
