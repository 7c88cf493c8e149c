"""The search for a weight: the highest of a grid that still learns the new classes.

The paper's supplement takes the highest value of the form A * 10^B, A in {1, 5}, B in -3..3, with
which a method loses at most 20 % of the accuracy that fine-tuning reaches on the new classes:

    accuracy(weight) >= (1 - 0.2) * accuracy(fine-tuning)

The heavier the weight, the more is kept and the less is learnt, so the accuracy falls as the
weight grows, and halving the grid finds the last weight that passes in four trials of 14. `Tuning`
is what a search has found so far, for files and for people.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Trial:
    """A config that is tried.

    Attributes:
        name: Of its folder.
        rate: The learning rate.
        weight: The method's weight; None for fine-tuning.
        accuracy: The mean IoU of the new classes; None until it is known, 0 where it diverged.
        diverged: Whether the losses became infinite.
    """

    name: str
    rate: float
    weight: float | None = None
    accuracy: float | None = None
    diverged: bool = False


@dataclass(frozen=True)
class Tuning:
    """A search, or as much of it as there is.

    Attributes:
        method: Whose weight is chosen.
        trials: In the order in which they were made; the last may be under way.
        least: The accuracy that passes, once fine-tuning's is known.
        rate: The learning rate that fine-tuning chose.
        weight: The weight that was chosen.
        config: The file with the config for `nacre run`.
    """

    method: str
    trials: tuple[Trial, ...] = ()
    least: float | None = None
    rate: float | None = None
    weight: float | None = None
    config: Path | None = None

    @property
    def fine_tuning(self) -> float | None:
        """Fine-tuning's accuracy with the learning rate that was chosen, once it is known."""
        return next(
            (one.accuracy for one in self.trials if one.weight is None and one.rate == self.rate),
            None,
        )


def verdict(tuning: Tuning, trial: Trial) -> str:
    """Say what a trial came to."""
    if trial.diverged:
        return "diverged"
    if trial.accuracy is None:
        return "learning"
    if trial.weight is None:
        return "the measure" if trial.rate == tuning.rate else ""
    assert tuning.least is not None, "weights are tried when fine-tuning's accuracy is known"
    if trial.accuracy < tuning.least:
        return "too low"
    return "chosen" if trial.weight == tuning.weight else "passes"


def as_plain(tuning: Tuning) -> dict[str, Any]:
    """Return a search as plain data."""
    trials = [{**asdict(one), "verdict": verdict(tuning, one)} for one in tuning.trials]
    config = None if tuning.config is None else tuning.config.name
    return {**asdict(tuning), "trials": trials, "config": config}


def as_comment(tuning: Tuning) -> str:
    """Return the lines that stand above the config that was found."""
    tried = ", ".join(
        f"{one.weight:g}: {100 * (one.accuracy or 0):.1f}"
        for one in sorted(tuning.trials, key=lambda one: one.weight or 0)
        if one.weight is not None
    )
    lines = (
        f"The highest weight of {tuning.method} that keeps {1 - TOLERATED:.0%} of fine-tuning's "
        f"mIoU on the new classes",
        f"of the first incremental step, on a fifth of its images: {tuning.weight:g}.",
        f"fine-tuning: {100 * (tuning.fine_tuning or 0):.1f}; mIoU by weight: {tried}.",
    )
    return "".join(f"# {line}\n" for line in lines)
