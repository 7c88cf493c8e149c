"""Where pixels go wrong: between old classes, new classes and the background.

Of the tested pixels that are in truth background, an old or a new class, the share that is

    right        called what they are
    background   a class called background
    old          called an (other) old class
    new          called an (other) new class

after the last step, all seeds of a row together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nacre.report.results.aggregate import Row, ScenarioResults
from nacre.report.results.runs import StepResult
from nacre.scenarios.classes import BACKGROUND

KINDS = ("right", "background", "old", "new")


@dataclass(frozen=True)
class ErrorBreakdown:
    """What became of the pixels of one truth: background, old or new classes.

    Attributes:
        truth: Which.
        shares: Share of 1 by kind; all kinds add up to 1.
        pixels: How many there were.
    """

    truth: str
    shares: dict[str, float]
    pixels: int


def error_breakdowns(results: ScenarioResults, row: Row) -> list[ErrorBreakdown]:
    """Return what became of background, old and new pixels after the last step."""
    new = set(results.groups[-1]) if results.final else set()
    counts = {truth: dict.fromkeys(KINDS, 0) for truth in (BACKGROUND, "old", "new")}
    for run in row.runs:
        found = run.after(results.final)
        assert found is not None
        _count(found, new, counts)
    return [_breakdown(truth, kinds) for truth, kinds in counts.items() if any(kinds.values())]


def _count(found: StepResult, new: set[str], counts: dict[str, dict[str, int]]) -> None:
    sides = [_side(name, new) for name in found.classes]
    for truth, line in enumerate(found.confusion):
        for called, pixels in enumerate(line):
            kind = "right" if truth == called else sides[called]
            counts[sides[truth]][kind] += pixels


def _side(name: str, new: set[str]) -> str:
    if name == BACKGROUND:
        return BACKGROUND
    return "new" if name in new else "old"


def _breakdown(truth: str, kinds: dict[str, int]) -> ErrorBreakdown:
    total = sum(kinds.values())
    return ErrorBreakdown(truth, {kind: count / total for kind, count in kinds.items()}, total)


def intransigence(results: ScenarioResults, row: Row) -> list[float | None]:
    """Return, for each step, how far a row is from learning its classes as joint training does.

    It is joint training's mean IoU of the step's classes minus the row's right after the step;
    None without joint training.
    """
    bounds = [one for one in results.rows if one.merged]
    if not bounds or row.merged:
        return [None] * len(results.groups)
    return [
        _difference(bounds[0].mean(results.final, f"step_{step}"), row.mean(step, f"step_{step}"))
        for step in range(len(results.groups))
    ]


def mean_forgetting(results: ScenarioResults, row: Row) -> float | None:
    """Return the mean over the classes of what a row forgot, background aside."""
    values = [row.forgetting(name) for name in results.classes]
    return _mean([value for value in values if value is not None])


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
