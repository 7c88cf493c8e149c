"""Exemplars: which images of learned classes are kept for later steps, where any are.

An image is kept with the labels of the step it came from, and with no others: what later steps
know of it is not written into it, so that their classes may hide in its background.

The rule is SSUL's: round after round, each class in random order gets one more image that holds
it and is not kept yet, until the memory is full or nothing is left. So rare classes are as frequent
as common ones, as far as there are images of them.
"""

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from nacre.labels.space import LabelIndex
from nacre.scenarios.classes import ClassSchedule
from nacre.scenarios.scenario import ImageLists


@dataclass(frozen=True)
class Exemplar:
    """An image that is kept.

    Attributes:
        name: The image.
        step: The step it came from, whose labels it has.
    """

    name: str
    step: int


Memory = tuple[Exemplar, ...]


def keep_exemplars(
    classes: ClassSchedule, index: LabelIndex, lists: ImageLists, size: int, *, seed: int
) -> tuple[Memory, ...]:
    """Choose after each step what is kept, of its own images and of what was kept before.

    Args:
        classes: Which step learns what.
        index: The labels of the training images.
        lists: The training images of each step.
        size: How many images are kept at most.
        seed: Of the choice.

    Returns:
        By step what it finds in the memory; for step 0 that is nothing.
    """
    labels = dict(zip(index.names, index.labels, strict=True))
    found: list[Memory] = []
    kept: dict[str, int] = {}
    for step, images in enumerate(lists):
        found.append(tuple(Exemplar(name, origin) for name, origin in kept.items()))
        origins = dict.fromkeys((index.names[i] for i in images), step) | kept
        candidates = {
            name: labels[name] & set(classes.new(origin)) for name, origin in origins.items()
        }
        chosen = choose_exemplars(candidates, size, seed=seed)
        kept = {name: origins[name] for name in chosen}
    return tuple(found)


def by_step(memory: Memory) -> dict[int, list[str]]:
    """Return the names of a memory's images by the step they came from, in order."""
    found: dict[int, list[str]] = {}
    for one in sorted(memory, key=lambda one: (one.step, one.name)):
        found.setdefault(one.step, []).append(one.name)
    return found


def memory_lines(memories: Iterable[Memory]) -> str:
    """Return a list for people and programs: which step learns from which old images."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", "image", "labels_of_step"])
    for step, memory in enumerate(memories):
        table.writerows([step, one.name, one.step] for one in memory)
    return text.getvalue()


def choose_exemplars(
    labels: Mapping[str, Collection[int]], size: int, *, seed: int
) -> tuple[str, ...]:
    """Choose images so that all classes have about as many.

    Args:
        labels: For each candidate the classes that it is known to hold, without background. These
            are the step's own images and those kept before, each with what was labeled (or
            pseudo-labeled) in its own step: what the current step knows of old images is not
            among it.
        size: How many images to keep at most.
        seed: Of the choice; the same candidates and seed give the same images.

    Returns:
        Their names in the order of choice, so that the first n are a smaller memory.
    """
    rng = np.random.default_rng([seed, len(labels)])
    classes = sorted({label for held in labels.values() for label in held})
    waiting = {label: _shuffled(labels, label, rng) for label in classes}
    chosen: dict[str, None] = {}
    while waiting and len(chosen) < size:
        for label in rng.permutation(sorted(waiting)).tolist():
            name = _next(waiting[label], chosen)
            if name is None:
                del waiting[label]
            elif len(chosen) < size:
                chosen[name] = None
    return tuple(chosen)


def _shuffled(
    labels: Mapping[str, Collection[int]], label: int, rng: np.random.Generator
) -> list[str]:
    names = sorted(name for name, held in labels.items() if label in held)
    return [names[i] for i in rng.permutation(len(names))]


def _next(names: list[str], chosen: Collection[str]) -> str | None:
    """Take the next name that is not chosen yet."""
    while names:
        name = names.pop()
        if name not in chosen:
            return name
    return None
