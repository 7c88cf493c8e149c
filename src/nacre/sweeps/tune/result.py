"""What a search for a weight has found so far, for files and for people."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nacre.sweeps.tune.search import TOLERATED


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
