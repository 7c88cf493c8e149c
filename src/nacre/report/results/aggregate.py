"""Which runs belong together: rows of a table, and the rows of a scenario.

Runs of one scenario that differ in nothing but their seed are one *row*: their figures are
averaged. What could make them differ is every config key that affects results, and the images
that they learnt from and were tested on. Equal seeds are never averaged: a copy of a run is shown
once, and runs of one seed with other results are rows of their own; the notes say so. A row is
named after its method; where several rows have the same method, the name carries the config
values that tell them apart, or the run's folder.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.evaluation.confusion import mean_of
from nacre.methods import METHODS, find_method, find_row
from nacre.report.results.runs import RunResult, load_runs
from nacre.training.config import RunConfig

SEEDS = ("seed", "data.seed")

IMAGES = "images of the data"
"""Stands among config keys for what they only point at."""


@dataclass(frozen=True)
class Row:
    """Runs that differ in nothing but their seed.

    Attributes:
        name: What tables call it.
        runs: One a seed, by seed.
    """

    name: str
    runs: tuple[RunResult, ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.runs[0].method

    @property
    def merged(self) -> bool:
        """Whether this is joint training, the bound that incremental methods are held against."""
        return self.runs[0].merged

    def values(self, step: int, group: str, background: bool = False) -> tuple[float, ...]:
        """Return a mean IoU after a step for every seed that has it."""
        found = [run.mean(step, group, background) for run in self.runs]
        return tuple(value for value in found if value is not None)

    def mean(self, step: int, group: str, background: bool = False) -> float | None:
        """Return a mean IoU after a step, averaged over the seeds."""
        return mean_of(self.values(step, group, background))

    def iou(self, step: int, name: str) -> float | None:
        """Return the IoU of a class after a step, averaged over the seeds."""
        found = [run.after(step) for run in self.runs]
        return mean_of([one.iou.get(name) for one in found if one is not None])

    def forgetting(self, name: str) -> float | None:
        """Return how much of a class was forgotten, averaged over the seeds."""
        return mean_of([run.forgetting.get(name) for run in self.runs])


@dataclass(frozen=True)
class ScenarioResults:
    """All rows of one scenario, and what a reader must know of how they came about."""

    scenario: str
    groups: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def final(self) -> int:
        """The last step of the task."""
        return len(self.groups) - 1

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes in the order in which they are learnt, background aside."""
        return tuple(name for names in self.groups for name in names)

    @property
    def incremental(self) -> tuple[Row, ...]:
        """The rows that learn step by step."""
        return tuple(row for row in self.rows if not row.merged)


def load_results(
    paths: Sequence[Path], notify: Callable[[str], None] = lambda line: None
) -> list[ScenarioResults]:
    """Read finished runs and put together what belongs together; `notify` is told what is not."""
    return group_runs(load_runs(paths, notify))


def group_runs(runs: Sequence[RunResult]) -> list[ScenarioResults]:
    """Put runs of the same scenario together, and those that differ only in their seed."""
    scenarios: dict[tuple[Any, ...], list[RunResult]] = {}
    for run in runs:
        scenarios.setdefault((run.scenario, run.groups), []).append(run)
    found = []
    for (scenario, groups), members in scenarios.items():
        notes: list[str] = []
        rows = tuple(_rows(members, notes))
        found.append(ScenarioResults(scenario, groups, rows, tuple(notes)))
    return found


def seed_of(run: RunResult) -> tuple[Any, ...]:
    """Return what may differ between the runs of a row: the seeds of a run and of its data."""
    return tuple(run.flat_config.get(key) for key in SEEDS)


def shown_name(method: str) -> str:
    """Return a method's title; its name where its package is not installed."""
    try:
        return find_row(method).title
    except NacreError:
        return method


def method_title(run: RunResult) -> str:
    """Return the title of a run's method; papers mark a memory of pictures by -M."""
    return shown_name(run.method) + ("-M" if run.flat_config.get("memory") else "")


def _rows(runs: Sequence[RunResult], notes: list[str]) -> list[Row]:
    by_method: dict[str, dict[str, list[RunResult]]] = {}
    for run in runs:
        identity = str(sorted(_identity(run).items()))
        by_method.setdefault(run.method, {}).setdefault(identity, []).append(run)
    rows = []
    for method in sorted(by_method, key=_place):
        variants = [part for runs in by_method[method].values() for part in _split(runs, notes)]
        for members in variants:
            name = method_title(members[0]) + _difference(members, variants)
            rows.append(Row(name, tuple(sorted(members, key=seed_of))))
    return sorted(rows, key=lambda row: row.merged)


def _split(runs: Sequence[RunResult], notes: list[str]) -> list[list[RunResult]]:
    """Split runs that differ in nothing but their seed so that no seed counts twice."""
    by_seed: dict[tuple[Any, ...], list[RunResult]] = {}
    for run in runs:
        same = by_seed.setdefault(seed_of(run), [])
        original = next((one for one in same if one.steps == run.steps), None)
        if original is None:
            same.append(run)
        else:
            notes.append(f"{run.path} has the seed and the results of {original.path}: shown once.")
    alone = [same[0] for same in by_seed.values() if len(same) == 1]
    twice = [same for same in by_seed.values() if len(same) > 1]
    for same in twice:
        named = ", ".join(str(run.path) for run in same)
        notes.append(f"One config and one seed, but other results, so rows of their own: {named}.")
    return ([alone] if alone else []) + [[run] for same in twice for run in same]


def _identity(run: RunResult) -> dict[str, str]:
    """Return everything that decides a run's results but its seed."""
    found = {key: repr(value) for key, value in run.deciding.items() if key not in SEEDS}
    # Generated data follow from the config, and their images differ by the seed as they should.
    if "data.seed" not in run.deciding:
        found[IMAGES] = json.dumps(run.fingerprint, sort_keys=True)
    return found


def _difference(members: Sequence[RunResult], variants: Sequence[Sequence[RunResult]]) -> str:
    """Return in brackets what tells one variant of a method from the others."""
    configs = [_identity(one[0]) for one in variants]
    keys = [key for key in configs[0] if len({one.get(key) for one in configs}) > 1]
    mine, usual = members[0].flat_config, _defaults(members[0].method)
    parts = [
        f"{key.removeprefix('method.')}={mine.get(key)}"
        for key in keys
        if key != IMAGES and (key not in usual or mine.get(key) != usual[key])
    ]
    identity = _identity(members[0])
    if sum(one == identity for one in configs) > 1:
        parts.append(f"seed {members[0].seed}, {members[0].path.name}")
    elif IMAGES in keys:
        parts.append(f"images of {members[0].path.name}")
    return f" ({', '.join(parts)})" if parts else ""


def _defaults(method: str) -> dict[str, Any]:
    """Return a method's default values: a variant is named by what it changes."""
    try:
        fields = find_method(method).Config.model_fields
    except NacreError:
        # A run of a method whose package is not installed here can still be reported.
        return {}
    own = {f"method.{name}": field.default for name, field in fields.items()}
    return {**own, "memory": RunConfig.model_fields["memory"].default}


def _place(method: str) -> tuple[int, str]:
    names = list(METHODS)
    return (names.index(method) if method in names else len(names), method)
