"""Scenarios: which classes a step learns (the task) and which images it gets (the setup).

A scenario is written ``data/task/setup``, for example ``voc/15-5/overlapped``, or stands in a
YAML file with explicit class lists. A task ``15-1`` deals 15 classes to step 0 and then one per
step until none is left; with three numbers or more (``4-2-2``) every step is named. The setups:

- ``overlapped``: every image with at least one pixel of a new class;
- ``disjoint``: those of them that hold no future class, so no image comes twice;
- ``partition``: each image goes to exactly one step, dealt by the rule of ``partition`` below.

The plan of a scenario says what each step sees, before anything is learned.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from nacre.errors import NacreError, check, did_you_mean, shown, unknown_name
from nacre.labels.space import LabelIndex, LabelSpace
from nacre.scenarios.classes import ClassSchedule, NamedTask, StepLabels
from nacre.utils.config import Config, read_yaml

Setup = Literal["disjoint", "overlapped", "partition"]
SETUPS: tuple[str, ...] = get_args(Setup)
SHIPPED = Path(__file__).parent / "files"

ImageLists = tuple[tuple[int, ...], ...]


class ScenarioFile(Config):
    """A scenario as written by a person: the content of a YAML file or of ``data/task/setup``."""

    data: str = Field(description="data set, by its name in `nacre plan`")
    setup: Setup = Field("overlapped", description="which images a step gets")
    task: str | None = Field(None, description="numbers of classes per step, such as 15-5")
    order: tuple[str | int, ...] | None = Field(
        None, description="class names or labels in the order in which `task` deals them"
    )
    steps: tuple[tuple[str | int, ...], ...] | None = Field(
        None, description="the classes of every step by name or label, instead of `task`"
    )
    about: str = Field("", description="what the scenario is, in a sentence")

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "ScenarioFile":
        if (self.task is None) == (self.steps is None):
            raise ValueError("needs either `task` or `steps`, and not both")
        if self.order is not None and self.task is None:
            raise ValueError("`order` goes with `task`; `steps` has an order of its own")
        return self


@dataclass(frozen=True)
class Scenario:
    """A scenario applied to the classes of a data set.

    Attributes:
        name: As the user wrote it.
        data: Name of the data set.
        setup: Which images a step gets.
        classes: Which class is learned when.
        partition_as: The finer steps of the partition rule, see `NamedTask`.
        groups: The steps of the original task; those of `classes` unless they were merged.
    """

    name: str
    data: str
    setup: Setup
    classes: ClassSchedule
    groups: StepLabels
    partition_as: StepLabels | None = None

    def merged(self) -> "Scenario":
        """Return all classes as one step, for joint training; the groups stay for the report."""
        return replace(self, classes=self.classes.merged(), setup="overlapped", partition_as=None)


def read_scenario(text: str) -> ScenarioFile:
    """Read ``data/task/setup``, a shipped scenario's name, that and a setup, or a YAML file."""
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
    """Apply a written scenario to a data set's classes and its named tasks."""
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
    """Deal an ordered class list to steps: ``15-1`` repeats its last number, ``4-2-2`` does not."""
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
                f"classes, {total - first} cannot be dealt in steps of {each}"
            )
        sizes = [first] + [each] * steps
    if sum(sizes) != total:
        raise NacreError(
            f"task {task!r} deals {sum(sizes)} classes, but the data has {total}; "
            "the numbers must add up (name the classes in a scenario file to use only some)"
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(tuple(order[a : a + size]) for a, size in zip(starts, sizes, strict=True))


def step_images(scenario: Scenario, index: LabelIndex) -> ImageLists:
    """Return, for each step, the positions in the index of the images it learns from."""
    if scenario.setup == "partition":
        return _merge(partition(scenario.partition_as or scenario.classes.steps, index), scenario)
    lists: list[tuple[int, ...]] = []
    for step in range(len(scenario.classes.steps)):
        new = frozenset(scenario.classes.new(step))
        # A class that no step ever learns is background for ever, so it may stand anywhere.
        forbidden = frozenset(scenario.classes.future(step))
        if scenario.setup == "overlapped":
            forbidden = frozenset()
        held = enumerate(index.labels)
        lists.append(tuple(i for i, labels in held if labels & new and not labels & forbidden))
    return tuple(lists)


def partition(steps: StepLabels, index: LabelIndex) -> ImageLists:
    """Deal each image to one step, as the paper's ADE20K lists were made.

    Images are visited class by class, in order within a class, each at its first visit only.
    An image goes to the step of that class of it for which

        (1 - added / total) * 120 + (sum of the totals of the image's classes) / total

    is largest (the first of equals), where total is the number of images that hold the class
    and added the number of images given so far to the class's own step.
    """
    step_of = {label: step for step, labels in enumerate(steps) for label in labels}
    members = [sorted(label for label in labels if label in step_of) for labels in index.labels]
    holding: dict[int, list[int]] = {label: [] for label in sorted(step_of)}
    for i, labels in enumerate(members):
        for label in labels:
            holding[label].append(i)
    total = {label: len(images) for label, images in holding.items()}
    added = dict.fromkeys(holding, 0)
    dealt: list[list[int]] = [[] for _ in steps]
    visited: set[int] = set()
    for images in holding.values():
        for i in images:
            if i in visited:
                continue
            visited.add(i)
            mass = sum(total[label] for label in members[i])
            scores = [(1 - added[c] / total[c]) * 120 + mass / total[c] for c in members[i]]
            step = step_of[members[i][scores.index(max(scores))]]
            dealt[step].append(i)
            for label in members[i]:
                added[label] += step_of[label] == step
    return tuple(tuple(sorted(images)) for images in dealt)


def _merge(lists: ImageLists, scenario: Scenario) -> ImageLists:
    """Join the lists of the finer steps that the partition was dealt on."""
    fine = scenario.partition_as or scenario.classes.steps
    owner = {c: step for step, labels in enumerate(scenario.classes.steps) for c in labels}
    merged: list[list[int]] = [[] for _ in scenario.classes.steps]
    for labels, images in zip(fine, lists, strict=True):
        merged[owner[labels[0]]].extend(images)
    return tuple(tuple(sorted(images)) for images in merged)


def images_to_test(classes: ClassSchedule, step: int, index: LabelIndex) -> tuple[int, ...]:
    """Return the positions of the test images of a step: those that hold a known class."""
    known = frozenset(classes.seen(step))
    return tuple(i for i, labels in enumerate(index.labels) if labels & known)


def check_images(scenario: Scenario, index: LabelIndex, lists: ImageLists) -> None:
    """Refuse a class that no training image holds, and a step without images."""
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
    """The classes and images of one step, and what its background hides.

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


def digest(names: Sequence[str]) -> str:
    """Return the sha256 of sorted names joined by newline."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def _plan_step(
    scenario: Scenario, index: LabelIndex, step: int, images: tuple[int, ...]
) -> StepPlan:
    classes, names = scenario.classes, scenario.classes.space.names
    held = Counter(label for i in images for label in index.labels[i])
    pixels: Counter[int] = Counter()
    for i in images:
        pixels.update(index.pixel_counts[i])
    called = sum(count for label, count in pixels.items() if label not in classes.new(step))
    old = sum(pixels[label] for label in classes.old(step))
    future = sum(pixels[label] for label in classes.future(step))
    return StepPlan(
        step=step,
        classes=tuple(names[label] for label in classes.new(step)),
        images=len(images),
        sha256=digest([index.names[i] for i in images]),
        hidden_old={names[label]: held[label] for label in classes.old(step) if held[label]},
        hidden_future={names[label]: held[label] for label in classes.future(step) if held[label]},
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
