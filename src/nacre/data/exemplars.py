"""Exemplars: which pictures of learnt classes are kept for later steps, where any are.

The rule is SSUL's: round after round, each class in random order gets one more picture that holds
it and is not kept yet, until the memory is full or nothing is left. So rare classes are as frequent
as common ones, as far as there are pictures of them.
"""

from collections.abc import Collection, Mapping

import numpy as np


def choose_exemplars(
    labels: Mapping[str, Collection[int]], size: int, *, seed: int
) -> tuple[str, ...]:
    """Choose pictures so that all classes have about as many.

    Args:
        labels: For each candidate the classes that it is known to hold, without background. These
            are the step's own pictures and those kept before, each with what was labelled (or
            pseudo-labelled) in its own step: what the current step knows of old pictures is not
            among it.
        size: How many pictures to keep at most.
        seed: Of the choice; the same candidates and seed give the same pictures.

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
