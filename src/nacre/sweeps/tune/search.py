"""The search for a weight: the highest of a grid that still learns the new classes.

The paper's supplement takes the highest value of the form A * 10^B, A in {1, 5}, B in -3..3, with
which a method loses at most 20 % of the accuracy that fine-tuning reaches on the new classes:

    accuracy(weight) >= (1 - 0.2) * accuracy(fine-tuning)

The heavier the weight, the more is kept and the less is learnt, so the accuracy falls as the
weight grows, and halving the grid finds the last weight that passes in four trials of 14.
"""

from collections.abc import Mapping

GRID = tuple(float(f"{a}e{b}") for b in range(-3, 4) for a in (1, 5))
TOLERATED = 0.2


def least_accuracy(fine_tuning: float) -> float:
    """Return the accuracy that a weight must reach."""
    return (1 - TOLERATED) * fine_tuning


def next_weight(found: Mapping[float, float], least: float) -> float | None:
    """Return the weight to try next, or None when the highest that passes is known.

    Args:
        found: Accuracy by weight, of those that were tried.
        least: The accuracy that passes.
    """
    passes = [i for i, weight in enumerate(GRID) if weight in found and found[weight] >= least]
    below = max(passes, default=-1)
    fails = [i for i, weight in enumerate(GRID) if weight in found and i > below]
    above = min(fails, default=len(GRID))
    return GRID[(below + above) // 2] if above - below > 1 else None


def highest(found: Mapping[float, float], least: float) -> float | None:
    """Return the highest weight that passes, or None if none of those tried does."""
    return max((weight for weight, accuracy in found.items() if accuracy >= least), default=None)
