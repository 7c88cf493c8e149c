"""Run folders as typed results, and which of them belong together.

Runs of one scenario that differ in nothing but their seed are one *row*: their figures are
averaged. A row is named after its method; where several rows have the same method, the name
carries the config values that tell them apart.

    kept = mean IoU of step 0's classes after the last step / after step 0
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.evaluation.metrics import WITH, WITHOUT, Ious
from nacre.files import load_json
from nacre.methods import find_method
from nacre.training.folder import RunFolder, read_plain_config
from nacre.training.recorder import Event, read_events

NAMES = {
    "ft": "FT",
    "pi": "PI",
    "ewc": "EWC",
    "rw": "RW",
    "lwf": "LwF",
    "lwf-mc": "LwF-MC",
    "lwf-mc-d": "LwF-MC-D",
    "lwf-mc-c": "LwF-MC-C",
    "ilt": "ILT",
    "mib": "MiB",
    "joint": "Joint",
}
"""How the paper writes the methods, in the order of its tables."""

SEEDS = ("seed", "data.seed")
IMMATERIAL = (
    "train.device",
    "train.workers",
    "train.micro_batch",
    "train.save_minutes",
    "train.log_every",
)
"""What may differ between two runs of one row: neither changes what is measured."""

PUBLISHED = ("voc", "ade20k")
"""Data that is the same wherever it lies."""


@dataclass(frozen=True)
class StepResult:
    """How a network tests after a step: the step's metrics file."""

    step: int
    classes: tuple[str, ...]
    iou: Ious
    mean_iou: dict[str, float | None]
    confusion: tuple[tuple[int, ...], ...]
    images: int


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        path: Its folder.
        scenario: As the user wrote it.
        method: The method's name.
        seed: Of the run.
        groups: Class names that each step of the task learns.
        conventions: What was counted how.
        steps: The metrics after each step; only one for joint training.
        forgetting: Best earlier IoU minus the last, by class.
        events: What happened.
        config: The resolved config as plain data.
        starts: Every start: time, command, versions, machine.
    """

    path: Path
    scenario: str
    method: str
    seed: int
    groups: tuple[tuple[str, ...], ...]
    conventions: dict[str, Any]
    steps: tuple[StepResult, ...]
    forgetting: Ious
    events: tuple[Event, ...]
    config: dict[str, Any]
    starts: tuple[dict[str, Any], ...]

    @property
    def merged(self) -> bool:
        """Whether all classes were learnt in one step though the task has several."""
        return len(self.steps) < len(self.groups)

    @property
    def last(self) -> StepResult:
        """The metrics after the last step."""
        return self.steps[-1]

    def after(self, step: int) -> StepResult | None:
        """Return the metrics after a step of the task; joint training has only the last."""
        if self.merged:
            return self.last if step == len(self.groups) - 1 else None
        return self.steps[step]

    def mean(self, step: int, group: str, background: bool = False) -> float | None:
        """Return a mean IoU after a step: of ``old``, ``new``, ``all`` or ``step_0`` …."""
        found = self.after(step)
        key = f"{group}_{WITH if background else WITHOUT}"
        return None if found is None else found.mean_iou.get(key)

    @cached_property
    def flat_config(self) -> dict[str, Any]:
        """The config with dotted keys."""
        return flatten(self.config)


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
        return average(self.values(step, group, background))

    def iou(self, step: int, name: str) -> float | None:
        """Return the IoU of a class after a step, averaged over the seeds."""
        found = [run.after(step) for run in self.runs]
        return average([one.iou.get(name) for one in found if one is not None])

    def forgetting(self, name: str) -> float | None:
        """Return how much of a class was forgotten, averaged over the seeds."""
        return average([run.forgetting.get(name) for run in self.runs])

    def kept(self) -> float | None:
        """Return which share of step 0's mean IoU is left after the last step."""
        before, after = self.mean(0, "step_0"), self.mean(len(self.runs[0].groups) - 1, "step_0")
        return after / before if before and after is not None else None


@dataclass(frozen=True)
class ScenarioResults:
    """All rows of one scenario."""

    scenario: str
    groups: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]

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


def load_run(path: Path) -> RunResult:
    """Read a finished run."""
    folder = RunFolder(path)
    config = read_plain_config(path)
    if not folder.metrics.exists():
        done = len(list(path.glob("step-*/metrics.json")))
        raise NacreError(
            f"{path} is not a finished run: it has {done} tested step(s) but no metrics.json; "
            f"go on with `nacre run --out {path}` and the folder's own config"
        )
    summary = load_json(folder.metrics)
    try:
        steps = range(len(summary["mean_iou_by_step"]))
        return RunResult(
            path=path,
            scenario=summary["scenario"],
            method=summary["method"],
            seed=summary["seed"],
            groups=tuple(tuple(names) for names in summary["groups"]),
            conventions=summary["conventions"],
            steps=tuple(_step(load_json(folder.step_metrics(step))) for step in steps),
            forgetting=summary["forgetting"],
            events=tuple(read_events(folder.events)) if folder.events.exists() else (),
            config=config,
            starts=tuple(_starts(path)),
        )
    except (KeyError, TypeError) as error:
        raise NacreError(f"{path}: its metrics files are not nacre's: {error!r}") from error


def load_runs(paths: Sequence[Path]) -> list[RunResult]:
    """Read finished runs; a folder that holds run folders stands for all of them."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(config.parent for config in path.glob("*/config.yaml"))
        found += inside if inside and not (path / "config.yaml").exists() else [path]
    unique = list({path.resolve(): path for path in found}.values())
    if not unique:
        raise NacreError("no run folders were given")
    return [load_run(path) for path in unique]


def load_results(paths: Sequence[Path]) -> list[ScenarioResults]:
    """Read finished runs and put together what belongs together."""
    return group_runs(load_runs(paths))


def group_runs(runs: Sequence[RunResult]) -> list[ScenarioResults]:
    """Put runs of the same scenario together, and those that differ only in their seed."""
    scenarios: dict[tuple[Any, ...], list[RunResult]] = {}
    for run in runs:
        scenarios.setdefault((run.scenario, run.groups), []).append(run)
    return [
        ScenarioResults(scenario, groups, tuple(_rows(members)))
        for (scenario, groups), members in scenarios.items()
    ]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested plain data with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def average(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is there."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def shown_name(method: str) -> str:
    """Return a method's name as the paper writes it."""
    return NAMES.get(method.replace("_", "-"), method)


def _rows(runs: Sequence[RunResult]) -> list[Row]:
    by_method: dict[str, dict[str, list[RunResult]]] = {}
    for run in runs:
        by_method.setdefault(run.method, {}).setdefault(str(sorted(_identity(run))), []).append(run)
    rows = []
    for method in sorted(by_method, key=_place):
        variants = list(by_method[method].values())
        for members in variants:
            name = shown_name(method) + _difference(members, variants)
            rows.append(Row(name, tuple(sorted(members, key=lambda run: run.seed))))
    return sorted(rows, key=lambda row: row.merged)


def _identity(run: RunResult) -> list[tuple[str, str]]:
    skipped = {*SEEDS, *IMMATERIAL}
    if run.flat_config.get("data.name") in PUBLISHED:
        skipped.add("data.root")
    return [(key, repr(value)) for key, value in run.flat_config.items() if key not in skipped]


def _difference(members: Sequence[RunResult], variants: Sequence[Sequence[RunResult]]) -> str:
    """Return in brackets what tells one variant of a method from the others."""
    configs = [dict(_identity(one[0])) for one in variants]
    keys = [key for key in configs[0] if len({one.get(key) for one in configs}) > 1]
    mine, usual = members[0].flat_config, _defaults(members[0].method)
    told = [
        f"{key.removeprefix('method.')}={mine.get(key)}"
        for key in keys
        if key not in usual or mine.get(key) != usual[key]
    ]
    return f" ({', '.join(told)})" if told else ""


def _defaults(method: str) -> dict[str, Any]:
    """Return a method's default values: a variant is named by what it changes."""
    try:
        fields = find_method(method).Config.model_fields
    except NacreError:
        # A run of a method whose package is not installed here can still be reported.
        return {}
    return {f"method.{name}": field.default for name, field in fields.items()}


def _place(method: str) -> tuple[int, str]:
    names = list(NAMES)
    known = method.replace("_", "-")
    return (names.index(known) if known in names else names.index("mib"), method)


def _step(metrics: Mapping[str, Any]) -> StepResult:
    return StepResult(
        step=metrics["step"],
        classes=tuple(metrics["classes"]),
        iou=metrics["iou"],
        mean_iou=metrics["mean_iou"],
        confusion=tuple(tuple(row) for row in metrics["confusion"]),
        images=metrics["images"],
    )


def _starts(path: Path) -> list[dict[str, Any]]:
    file = path / "run.json"
    return list(load_json(file)["starts"]) if file.exists() else []
