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

import numpy as np

from nacre.labels.space import LabelIndex
from nacre.scenarios.classes import ClassSchedule
from nacre.scenarios.scenario import ImageLists

Memory = dict[int, list[str]]
"""Names of the images that are kept, by the step they came from, whose labels they have."""


def keep_exemplars(
    classes: ClassSchedule, index: LabelIndex, lists: ImageLists, size: int, *, seed: int
) -> list[Memory]:
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
        origins = sorted(set(kept.values()))
        found.append({one: sorted(n for n in kept if kept[n] == one) for one in origins})
        step_of = dict.fromkeys((index.names[i] for i in images), step) | kept
        candidates = {
            name: labels[name] & set(classes.new(origin)) for name, origin in step_of.items()
        }
        kept = {name: step_of[name] for name in choose_exemplars(candidates, size, seed=seed)}
    return found


def memory_lines(memories: Iterable[Memory]) -> str:
    """Return a list for people and programs: which step learns from which old images."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "image", "labels_of_step"])
    for step, memory in enumerate(memories):
        writer.writerows([step, name, origin] for origin, names in memory.items() for name in names)
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
