"""Scenarios: the classes that each step learns (the task) and the images that it gets (the setup).

A scenario is written ``data/task/setup``, for example ``voc/15-5/overlapped``, or is a YAML file
with explicit class lists. The task ``15-1`` gives 15 classes to step 0 and then one to each step;
with three or more numbers (``4-2-2``) every step is named. The setups:

- ``overlapped``: all images with at least one pixel of a new class;
- ``disjoint``: those of them without a future class, so that no image comes twice;
- ``partition``: each image goes to exactly one step, by the rule of ``partition`` below.

A memory keeps images for later steps, with the labels of their own step only: later classes may be
in their background. The rule is SSUL's: in each round each class, in random order, gets one more
image that contains it, until the memory is full or no image is left. So rare classes become as
frequent as common ones, as far as there are images of them.
"""

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from nacre.errors import NacreError, check, did_you_mean, shown, unknown_name
from nacre.labels.space import LabelIndex, LabelSpace
from nacre.scenarios.classes import ClassSchedule, NamedTask, StepLabels
from nacre.utils.config import Config, read_yaml

Setup = Literal["disjoint", "overlapped", "partition"]
SETUPS: tuple[str, ...] = get_args(Setup)
SHIPPED = Path(__file__).parent / "files"

ImageLists = tuple[tuple[int, ...], ...]
"""The positions in the index of the images of each step."""

Memory = dict[int, list[str]]
"""The names of the kept images, by the step that labeled them."""


class ScenarioFile(Config):
    """A scenario as a user writes it: a YAML file or ``data/task/setup``."""

    data: str = Field(description="data set, by its name in `nacre plan`")
    setup: Setup = Field("overlapped", description="which images a step gets")
    task: str | None = Field(None, description="numbers of classes per step, such as 15-5")
    order: tuple[str | int, ...] | None = Field(
        None, description="class order for `task`, by name or label"
    )
    steps: tuple[tuple[str | int, ...], ...] | None = Field(
        None, description="the classes of each step by name or label, instead of `task`"
    )
    about: str = Field("", description="a sentence about the scenario")

    @model_validator(mode="after")
    def _check_steps(self) -> "ScenarioFile":
        if (self.task is None) == (self.steps is None):
            raise ValueError("needs either `task` or `steps`, and not both")
        if self.order is not None and self.task is None:
            raise ValueError("`order` needs `task`; `steps` has its own order")
        return self


@dataclass(frozen=True)
class Scenario:
    """A scenario applied to the classes of a data set.

    Attributes:
        name: The scenario as the user wrote it.
        data: The name of the data set.
        setup: The rule for the images of a step.
        classes: The classes of each step.
        groups: The steps of the original task; those of `classes` unless they were merged.
        partition_as: The finer steps of the partition rule, see `NamedTask`.
    """

    name: str
    data: str
    setup: Setup
    classes: ClassSchedule
    groups: StepLabels
    partition_as: StepLabels | None = None

    def merged(self) -> "Scenario":
        """Return the scenario with all classes in one step, for joint training; `groups` stay."""
        return replace(self, classes=self.classes.merged(), setup="overlapped", partition_as=None)


def read_scenario(text: str) -> ScenarioFile:
    """Read ``data/task/setup``, a shipped scenario, perhaps with another setup, or a YAML file."""
    if text.endswith((".yaml", ".yml")):
        return _read_file(Path(text))
    parts = text.split("/")
    if len(parts) == 1 or (len(parts) == 2 and parts[0] in shipped_scenarios()):
        shipped = shipped_scenarios()
        if parts[0] not in shipped:
            raise NacreError(
                f"unknown scenario {shown(text)}{did_you_mean(text, shipped)}; write "
                "data/task/setup (such as voc/15-5/overlapped), the path of a .yaml file, or one "
                f"of: {', '.join(shipped)}"
            )
        written = _read_file(shipped[parts[0]])
        return written if len(parts) == 1 else _with_setup(written, parts[1], text)
    if len(parts) != 3 or not all(parts):
        wrong = f"{len(parts)} part(s)" if len(parts) != 3 else "an empty part"
        raise NacreError(
            f"scenario {shown(text)} has {wrong}; write three: data/task/setup, "
            "such as voc/15-5/overlapped"
        )
    data, task, setup = parts
    return _with_setup(check(ScenarioFile, {"data": data, "task": task}), setup, text)


def _with_setup(written: ScenarioFile, setup: str, text: str) -> ScenarioFile:
    if setup not in SETUPS:
        raise unknown_name(f"setup in scenario {text!r}:", setup, SETUPS)
    return written.model_copy(update={"setup": setup})


def shipped_scenarios() -> dict[str, Path]:
    """Return the scenario files that come with nacre, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def _read_file(path: Path) -> ScenarioFile:
    content = read_yaml(path, "scenario file", "`data:` and `task:` or `steps:`")
    return check(ScenarioFile, content, f"scenario file {path}")


def make_scenario(
    name: str, written: ScenarioFile, space: LabelSpace, named: dict[str, NamedTask]
) -> Scenario:
    """Apply a scenario to the classes of a data set and its named tasks."""
    partition_as: StepLabels | None = None
    if written.steps is not None:
        steps = tuple(tuple(map(space.label_of, step)) for step in written.steps)
    elif written.task in named and written.order is None:
        steps, partition_as = named[written.task].steps, named[written.task].partition_as
    else:
        assert written.task is not None
        order = space.labels if written.order is None else tuple(map(space.label_of, written.order))
        steps = split_classes(written.task, order, tuple(named))
    return Scenario(
        name, written.data, written.setup, ClassSchedule(space, steps), steps, partition_as
    )


def split_classes(task: str, order: Sequence[int], named: Sequence[str] = ()) -> StepLabels:
    """Split an ordered list of classes: ``15-1`` repeats its last number, ``4-2-2`` does not."""
    total = len(order)
    also = f" or one of {', '.join(named)}" if named else ""
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", task):
        raise NacreError(
            f"task {task!r} is not a list of class numbers such as {total - 1}-1{also}"
        )
    sizes = [int(number) for number in task.split("-")]
    if len(sizes) == 2 and sizes[0] < total:
        first, each = sizes
        steps, left = divmod(total - first, each)
        if left:
            raise NacreError(
                f"task {task!r} leaves {left} class(es) over: after {first} of the {total} "
                f"classes, {total - first} cannot be split into steps of {each}"
            )
        sizes = [first] + [each] * steps
    if sum(sizes) != total:
        raise NacreError(
            f"task {task!r} has {sum(sizes)} classes, but the data has {total}; "
            "the numbers must add up (name the classes in a scenario file to use only some)"
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(tuple(order[a : a + size]) for a, size in zip(starts, sizes, strict=True))


def step_images(scenario: Scenario, index: LabelIndex) -> ImageLists:
    """Return the training images of each step."""
    if scenario.setup == "partition":
        return _merge(partition(scenario.partition_as or scenario.classes.steps, index), scenario)
    lists: list[tuple[int, ...]] = []
    for step in range(len(scenario.classes.steps)):
        new = frozenset(scenario.classes.new(step))
        # A class that no step learns stays background, so any image may contain it.
        is_disjoint = scenario.setup == "disjoint"
        forbidden = frozenset(scenario.classes.future(step) if is_disjoint else ())
        images = enumerate(index.labels)
        lists.append(tuple(i for i, labels in images if labels & new and not labels & forbidden))
    return tuple(lists)


def partition(steps: StepLabels, index: LabelIndex) -> ImageLists:
    """Assign each image to one step, as the paper's ADE20K lists were made.

    Images are visited class by class, in order within a class, each at its first visit only.
    An image goes to the step of its class with the largest (the first of equals)

        (1 - added / total) * 120 + (sum of the totals of the image's classes) / total

    where total is the number of images that contain the class, and added the number of images
    assigned so far to the class's own step.
    """
    step_of = {label: step for step, labels in enumerate(steps) for label in labels}
    classes_of = [sorted(label for label in labels if label in step_of) for labels in index.labels]
    images_of: dict[int, list[int]] = {label: [] for label in sorted(step_of)}
    for i, labels in enumerate(classes_of):
        for label in labels:
            images_of[label].append(i)
    total = {label: len(images) for label, images in images_of.items()}
    added = dict.fromkeys(images_of, 0)
    assigned: list[list[int]] = [[] for _ in steps]
    visited: set[int] = set()
    for images in images_of.values():
        for i in images:
            if i in visited:
                continue
            visited.add(i)
            mass = sum(total[label] for label in classes_of[i])
            scores = [(1 - added[c] / total[c]) * 120 + mass / total[c] for c in classes_of[i]]
            step = step_of[classes_of[i][scores.index(max(scores))]]
            assigned[step].append(i)
            for label in classes_of[i]:
                added[label] += step_of[label] == step
    return tuple(tuple(sorted(images)) for images in assigned)


def _merge(lists: ImageLists, scenario: Scenario) -> ImageLists:
    """Join the image lists of the finer steps of a partition."""
    fine = scenario.partition_as or scenario.classes.steps
    owner = {c: step for step, labels in enumerate(scenario.classes.steps) for c in labels}
    merged: list[list[int]] = [[] for _ in scenario.classes.steps]
    for labels, images in zip(fine, lists, strict=True):
        merged[owner[labels[0]]].extend(images)
    return tuple(tuple(sorted(images)) for images in merged)


def images_to_test(classes: ClassSchedule, step: int, index: LabelIndex) -> tuple[int, ...]:
    """Return the positions of a step's test images: those that contain a known class."""
    known = frozenset(classes.seen(step))
    return tuple(i for i, labels in enumerate(index.labels) if labels & known)


def check_images(scenario: Scenario, index: LabelIndex, lists: ImageLists) -> None:
    """Refuse a class without a pixel in the training images, and a step without images."""
    present = frozenset().union(*index.labels) if index.labels else frozenset()
    names = scenario.classes.space.names
    empty = [label for labels in scenario.classes.steps for label in labels if label not in present]
    if empty:
        raise NacreError(
            f"scenario {scenario.name!r}: no training image holds a pixel of "
            + ", ".join(f"{names[label]!r} (label {label})" for label in empty)
            + f" ({len(index)} images searched)"
        )
    for step, images in enumerate(lists):
        if not images:
            learned = ", ".join(names[label] for label in scenario.classes.new(step))
            raise NacreError(
                f"scenario {scenario.name!r}: step {step} ({learned}) has no images in the setup "
                f"{scenario.setup!r}; another setup, order or task may give it some"
            )


@dataclass(frozen=True)
class StepPlan:
    """The classes and images of one step, and the classes hidden in its background.

    Attributes:
        step: The number of the step.
        classes: The names of its classes.
        images: The number of its images.
        sha256: The digest of the sorted image names, joined by newlines.
        hidden_old: The number of images with a class of an earlier step, by class name.
        hidden_future: The number of images with a class of a later step, by class name.
        background: The fraction of background pixels that are ``old`` or ``future`` classes.
    """

    step: int
    classes: tuple[str, ...]
    images: int
    sha256: str
    hidden_old: dict[str, int]
    hidden_future: dict[str, int]
    background: dict[str, float]


def make_plan(scenario: Scenario, index: LabelIndex, lists: ImageLists) -> list[StepPlan]:
    """Return the plan of each step of a scenario."""
    return [_plan_step(scenario, index, step, images) for step, images in enumerate(lists)]


def digest(names: Sequence[str]) -> str:
    """Return the sha256 of sorted names joined by newline."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def _plan_step(
    scenario: Scenario, index: LabelIndex, step: int, images: tuple[int, ...]
) -> StepPlan:
    classes, names = scenario.classes, scenario.classes.space.names
    counts = Counter(label for i in images for label in index.labels[i])
    pixels: Counter[int] = Counter()
    for i in images:
        pixels.update(index.pixel_counts[i])
    background = sum(n for label, n in pixels.items() if label not in classes.new(step))
    old = sum(pixels[label] for label in classes.old(step))
    future = sum(pixels[label] for label in classes.future(step))
    return StepPlan(
        step=step,
        classes=tuple(names[label] for label in classes.new(step)),
        images=len(images),
        sha256=digest([index.names[i] for i in images]),
        hidden_old={names[c]: counts[c] for c in classes.old(step) if counts[c]},
        hidden_future={names[c]: counts[c] for c in classes.future(step) if counts[c]},
        background={"old": old / max(background, 1), "future": future / max(background, 1)},
    )


def plan_as_json(scenario: Scenario, plan: list[StepPlan]) -> dict[str, Any]:
    """Return a plan as plain data."""
    steps = [
        {
            "step": step.step,
            "classes": list(step.classes),
            "images": step.images,
            "sha256": step.sha256,
            "hidden": {"old": step.hidden_old, "future": step.hidden_future},
            "background": {key: round(x, 6) for key, x in step.background.items()},
        }
        for step in plan
    ]
    return {"scenario": scenario.name, "steps": steps}


def keep_exemplars(
    classes: ClassSchedule, index: LabelIndex, lists: ImageLists, size: int, *, seed: int
) -> list[Memory]:
    """Return the memory of each step: images of earlier steps, at most `size`."""
    labels = dict(zip(index.names, index.labels, strict=True))
    memories: list[Memory] = []
    kept: dict[str, int] = {}
    for step, images in enumerate(lists):
        origins = sorted(set(kept.values()))
        memories.append(
            {origin: sorted(n for n in kept if kept[n] == origin) for origin in origins}
        )
        step_of = dict.fromkeys((index.names[i] for i in images), step) | kept
        candidates = {
            name: labels[name] & set(classes.new(origin)) for name, origin in step_of.items()
        }
        kept = {name: step_of[name] for name in choose_exemplars(candidates, size, seed=seed)}
    return memories


def choose_exemplars(
    labels: Mapping[str, Collection[int]], size: int, *, seed: int
) -> tuple[str, ...]:
    """Choose images so that all classes get about the same number.

    Args:
        labels: The classes that the labels of each candidate's own step show, without background.
        size: The maximum number of images.
        seed: Seed of the choice.

    Returns:
        Their names in the order of choice: the first n are the choice of a smaller memory.
    """
    rng = np.random.default_rng([seed, len(labels)])
    waiting: dict[int, list[str]] = {}
    for label in sorted({label for held in labels.values() for label in held}):
        names = sorted(name for name, held in labels.items() if label in held)
        waiting[label] = [names[i] for i in rng.permutation(len(names))]
    chosen: dict[str, None] = {}
    while waiting and len(chosen) < size:
        for label in rng.permutation(sorted(waiting)).tolist():
            names = waiting[label]
            while names and names[-1] in chosen:
                names.pop()
            if not names:
                del waiting[label]
            elif len(chosen) < size:
                chosen[names.pop()] = None
    return tuple(chosen)


def memory_lines(memories: Iterable[Memory]) -> str:
    """Return the memories of all steps as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "image", "labels_of_step"])
    for step, memory in enumerate(memories):
        writer.writerows([step, name, origin] for origin, names in memory.items() for name in names)
    return text.getvalue()
