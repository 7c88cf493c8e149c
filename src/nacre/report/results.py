"""Finished runs, grouped into the rows of tables and the scenarios of pages.

Runs of one scenario that differ only in their seed form one *row*, and their results are averaged.
Runs of a row agree in every config key that affects results, and in their training and test
images. Equal seeds are never averaged: a copy of a run is shown once, and runs with the same seed
but other results get separate rows; notes report both. A row is named after its method. If
several rows have the same method, their names add the config values that differ, or the run's
folder.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.evaluation.metrics import WITH, WITHOUT, Ious, mean_of
from nacre.methods import METHODS, find_entry, find_method
from nacre.runs.folder import RunFolder, read_plain_config
from nacre.runs.records import Fingerprint, Starts, StepMetrics, Summary
from nacre.training.config import RunConfig, resolve
from nacre.training.events import Event, read_events
from nacre.utils.config import keys_without_effect, result_values

CONFIG, TUNING = "config.yaml", "tuning.json"
"""The files that mark the folder of a run and of a search of `nacre tune`."""
SEEDS = ("seed", "data.seed")
IMAGES = "images of the data"
"""Key of a run's images, beside the config keys that decide its results."""


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction in percent, without the sign; nothing for None."""
    if fraction is None:
        return ""
    text = f"{100 * fraction:.{digits}f}"
    # Rounding must not leave a minus before zero.
    return text.replace("-", "−") if float(text) else text.removeprefix("-")


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        path: The folder.
        scenario: The scenario as the user wrote it.
        method: The method's name.
        seed: The seed of the run.
        groups: Class names of each step of the task.
        conventions: The evaluation conventions.
        steps: The metrics after each step; only one for joint training.
        forgetting: Best earlier IoU minus the last, by class.
        events: The events.
        config: The resolved config as plain data.
        deciding: The config values that decide the results, under dotted keys.
        fingerprint: The images of each step and test, as the run recorded them.
        starts: Every start: time, command, versions, machine.
    """

    path: Path
    scenario: str
    method: str
    seed: int
    groups: tuple[tuple[str, ...], ...]
    conventions: dict[str, Any]
    steps: tuple[StepMetrics, ...]
    forgetting: Ious
    events: tuple[Event, ...]
    config: dict[str, Any]
    deciding: dict[str, Any]
    fingerprint: dict[str, Any]
    starts: tuple[dict[str, Any], ...]

    @property
    def is_joint(self) -> bool:
        """True if all classes were learned in one step although the task has several."""
        return len(self.steps) < len(self.groups)

    @property
    def last(self) -> StepMetrics:
        """The metrics after the last step."""
        return self.steps[-1]

    def after(self, step: int) -> StepMetrics | None:
        """Return the metrics after a step of the task; joint training has only the last."""
        if self.is_joint:
            return self.last if step == len(self.groups) - 1 else None
        return self.steps[step]

    def mean(self, step: int, group: str, background: bool = False) -> float | None:
        """Return a mean IoU after a step: of ``old``, ``new``, ``all`` or ``step_0`` …."""
        metrics = self.after(step)
        key = f"{group}_{WITH if background else WITHOUT}"
        return None if metrics is None else metrics.mean_iou.get(key)

    @cached_property
    def flat_config(self) -> dict[str, Any]:
        """The config with dotted keys."""
        return flatten(self.config)


@dataclass(frozen=True)
class Row:
    """Runs that differ in nothing but their seed.

    Attributes:
        name: The row's name in tables.
        runs: One run per seed, by seed.
    """

    name: str
    runs: tuple[RunResult, ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.runs[0].method

    @property
    def is_joint(self) -> bool:
        """True for joint training, the upper bound."""
        return self.runs[0].is_joint

    def values(self, step: int, group: str, background: bool = False) -> tuple[float, ...]:
        """Return a mean IoU after a step for every seed that has it."""
        means = [run.mean(step, group, background) for run in self.runs]
        return tuple(mean for mean in means if mean is not None)

    def mean(self, step: int, group: str, background: bool = False) -> float | None:
        """Return a mean IoU after a step, averaged over the seeds."""
        return mean_of(self.values(step, group, background))

    def iou(self, step: int, name: str) -> float | None:
        """Return the IoU of a class after a step, averaged over the seeds."""
        metrics = [after for run in self.runs if (after := run.after(step)) is not None]
        return mean_of([after.iou.get(name) for after in metrics])

    def forgetting(self, name: str) -> float | None:
        """Return the forgetting of a class, averaged over the seeds."""
        return mean_of([run.forgetting.get(name) for run in self.runs])


@dataclass(frozen=True)
class ScenarioResults:
    """All rows of one scenario, with notes about them for a reader."""

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
        """All classes in the order of learning, without the background."""
        return tuple(name for names in self.groups for name in names)

    @property
    def incremental(self) -> tuple[Row, ...]:
        """The rows that learn step by step."""
        return tuple(row for row in self.rows if not row.is_joint)


def load_results(
    paths: Sequence[Path], notify: Callable[[str], None] = lambda line: None
) -> list[ScenarioResults]:
    """Read finished runs and group them by scenario; see `load_runs`."""
    scenarios: dict[tuple[Any, ...], list[RunResult]] = {}
    for run in load_runs(paths, notify):
        scenarios.setdefault((run.scenario, run.groups), []).append(run)
    results = []
    for (scenario, groups), members in scenarios.items():
        notes: list[str] = []
        rows = tuple(_rows(members, notes))
        results.append(ScenarioResults(scenario, groups, rows, tuple(notes)))
    return results


def load_runs(
    paths: Sequence[Path], notify: Callable[[str], None] = lambda line: None
) -> list[RunResult]:
    """Read finished runs; a folder that contains run folders stands for all of them.

    Args:
        paths: Run folders, which must be finished, and folders that contain some.
        notify: Receives a line about each folder below a path that is left out.

    Raises:
        NacreError: there is no finished run.
    """
    runs: dict[Path, RunResult] = {}
    left_out: list[str] = []
    for path in paths:
        is_run = (path / CONFIG).exists()
        searches = [] if is_run else sorted(file.parent for file in path.rglob(TUNING))
        folders = [] if is_run else sorted(file.parent for file in path.rglob(CONFIG))
        if not (folders or searches):
            runs[path.resolve()] = load_run(path)
        left_out += [f"{path} is left out: its runs are trials of nacre tune" for path in searches]
        for folder in folders:
            if any(folder.is_relative_to(search) for search in searches):
                continue
            if "scenario" not in read_plain_config(folder):
                left_out.append(f"{folder} is left out: it is a step of nacre learn")
            elif RunFolder(folder).metrics.exists():
                runs[folder.resolve()] = load_run(folder)
            else:
                left_out.append(f"{folder} is left out: it is not finished")
    if not runs:
        named = ", ".join(map(str, paths))
        raise NacreError("; ".join([f"no finished run in {named}", *left_out]))
    for line in left_out:
        notify(line)
    return list(runs.values())


def load_run(path: Path) -> RunResult:
    """Read a finished run."""
    folder = RunFolder(path)
    folder.check_kind(read_plain_config(path))
    config, deciding = _whole_config(path)
    if not folder.metrics.exists():
        done = len(list(path.glob("step-*/metrics.json")))
        raise NacreError(
            f"{path} is not a finished run: it has {done} tested step(s) but no metrics.json; "
            f"resume it with `nacre run --out {path}`"
        )
    summary = Summary.load(folder.metrics)
    starts, fingerprint = folder.starts, folder.fingerprint
    steps = (folder.step_metrics(step) for step in range(len(summary.mean_iou_by_step)))
    return RunResult(
        path=path,
        scenario=summary.scenario,
        method=summary.method,
        seed=summary.seed,
        groups=tuple(tuple(names) for names in summary.groups),
        conventions=summary.conventions,
        steps=tuple(map(StepMetrics.load, steps)),
        forgetting=summary.forgetting,
        events=tuple(read_events(folder.events)) if folder.events.exists() else (),
        config=config,
        deciding=deciding,
        fingerprint=Fingerprint.load(fingerprint).plain() if fingerprint.exists() else {},
        starts=tuple(Starts.load(starts).plain()["starts"]) if starts.exists() else (),
    )


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested plain data with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _whole_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a run's config, with defaults for later keys, and the values that decide results."""
    plain = read_plain_config(path)
    try:
        config = resolve(RunConfig, plain)
        return config.to_dict(), flatten(result_values(config))
    except NacreError:
        # A run of a method or data set that is not installed here can still be shown.
        hidden = keys_without_effect(RunConfig)
        return plain, {key: value for key, value in flatten(plain).items() if key not in hidden}


def seed_of(run: RunResult) -> tuple[Any, ...]:
    """Return the seeds of a run and of its data, which may differ between the runs of a row."""
    return tuple(run.flat_config.get(key) for key in SEEDS)


def shown_name(method: str) -> str:
    """Return a method's title; its name where its package is not installed."""
    try:
        return find_entry(method).title
    except NacreError:
        return method


def method_title(run: RunResult) -> str:
    """Return the title of a run's method; papers mark a memory of images by -M."""
    return shown_name(run.method) + ("-M" if run.flat_config.get("memory") else "")


def _rows(runs: Sequence[RunResult], notes: list[str]) -> list[Row]:
    by_method: dict[str, dict[str, list[RunResult]]] = {}
    for run in runs:
        identity = str(sorted(_identity(run).items()))
        by_method.setdefault(run.method, {}).setdefault(identity, []).append(run)
    names = list(METHODS)
    rows = []
    for method in sorted(
        by_method, key=lambda name: (names.index(name) if name in names else len(names), name)
    ):
        variants = [part for runs in by_method[method].values() for part in _split(runs, notes)]
        for members in variants:
            name = method_title(members[0]) + _difference(members, variants)
            rows.append(Row(name, tuple(sorted(members, key=seed_of))))
    return sorted(rows, key=lambda row: row.is_joint)


def _split(runs: Sequence[RunResult], notes: list[str]) -> list[list[RunResult]]:
    """Split runs that differ in nothing but their seed so that no seed counts twice."""
    by_seed: dict[tuple[Any, ...], list[RunResult]] = {}
    for run in runs:
        same = by_seed.setdefault(seed_of(run), [])
        original = next((other for other in same if other.steps == run.steps), None)
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
    values = {key: repr(value) for key, value in run.deciding.items() if key not in SEEDS}
    # Generated data follow from the config, and their images differ by the seed as they should.
    if "data.seed" not in run.deciding:
        values[IMAGES] = json.dumps(run.fingerprint, sort_keys=True)
    return values


def _difference(members: Sequence[RunResult], variants: Sequence[Sequence[RunResult]]) -> str:
    """Return the values that distinguish a variant of a method, in parentheses."""
    configs = [_identity(runs[0]) for runs in variants]
    keys = [key for key in configs[0] if len({config.get(key) for config in configs}) > 1]
    mine, usual = members[0].flat_config, _defaults(members[0].method)
    parts = [
        f"{key.removeprefix('method.')}={mine.get(key)}"
        for key in keys
        if key != IMAGES and (key not in usual or mine.get(key) != usual[key])
    ]
    identity = _identity(members[0])
    if configs.count(identity) > 1:
        parts.append(f"seed {members[0].seed}, {members[0].path.name}")
    elif IMAGES in keys:
        parts.append(f"images of {members[0].path.name}")
    return f" ({', '.join(parts)})" if parts else ""


def _defaults(method: str) -> dict[str, Any]:
    """Return a method's default values, which are not part of a variant's name."""
    try:
        fields = find_method(method).Config.model_fields
    except NacreError:
        return {}  # its package is not installed here
    own = {f"method.{name}": field.default for name, field in fields.items()}
    return {**own, "memory": RunConfig.model_fields["memory"].default}
