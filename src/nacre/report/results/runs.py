"""Run folders as typed results: the files of `nacre.runs.folder`, read and checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.evaluation.metrics import WITH, WITHOUT, Ious
from nacre.runs.event_file import read_events
from nacre.runs.folder import RunFolder, read_plain_config
from nacre.runs.records import Fingerprint, Starts, StepMetrics, Summary
from nacre.training.config import RunConfig, resolve_config
from nacre.training.events import Event
from nacre.utils.config import keys_without_effect, result_values

CONFIG, TUNING = "config.yaml", "tuning.json"
"""The files by which a run and a search of `nacre tune` are known."""


@dataclass(frozen=True)
class StepResult:
    """How a network tests after a step: the step's metrics file."""

    step: int
    classes: tuple[str, ...]
    iou: Ious
    mean_iou: dict[str, float | None]
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
        deciding: The config values that decide the results, under dotted keys.
        fingerprint: What was learnt from which images and tested on which, as the run noted it.
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
    deciding: dict[str, Any]
    fingerprint: dict[str, Any]
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


def load_run(path: Path) -> RunResult:
    """Read a finished run."""
    folder = RunFolder(path)
    folder.check_kind(read_plain_config(path))
    config, decides = _whole_config(path)
    _check_finished(folder)
    summary = Summary.load(folder.metrics)
    steps = range(len(summary.mean_iou_by_step))
    return RunResult(
        path=path,
        scenario=summary.scenario,
        method=summary.method,
        seed=summary.seed,
        groups=tuple(tuple(names) for names in summary.groups),
        conventions=summary.conventions,
        steps=tuple(_step(StepMetrics.load(folder.step_metrics(step))) for step in steps),
        forgetting=summary.forgetting,
        events=tuple(read_events(folder.events)) if folder.events.exists() else (),
        config=config,
        deciding=decides,
        fingerprint=_fingerprint(folder),
        starts=tuple(_starts(path)),
    )


def _check_finished(folder: RunFolder) -> None:
    if not folder.metrics.exists():
        done = len(list(folder.path.glob("step-*/metrics.json")))
        raise NacreError(
            f"{folder.path} is not a finished run: it has {done} tested step(s) but no "
            f"metrics.json; go on with `nacre run --out {folder.path}` and the folder's own config"
        )


def load_runs(
    paths: Sequence[Path], notify: Callable[[str], None] = lambda line: None
) -> list[RunResult]:
    """Read finished runs; a folder that holds run folders stands for all of them.

    Args:
        paths: Run folders, which must be finished, and folders that hold some.
        notify: Told in one line about each folder below a path that is left out.

    Raises:
        NacreError: there is no finished run.
    """
    runs: dict[Path, RunResult] = {}
    left_out: list[str] = []
    for path in paths:
        searches, inside = _folders_below(path)
        left_out += [f"{one} is left out: its runs are trials of nacre tune" for one in searches]
        if (path / CONFIG).exists() or not (inside or searches):
            runs[path.resolve()] = load_run(path)
            continue
        for folder in inside:
            if is_step(folder):
                left_out.append(f"{folder} is left out: it is a step of nacre learn")
            elif RunFolder(folder).metrics.exists():
                runs[folder.resolve()] = load_run(folder)
            else:
                left_out.append(f"{folder} is left out: it is not finished")
    for line in left_out:
        notify(line)
    if not runs:
        named = ", ".join(map(str, paths))
        raise NacreError(f"no finished run in {named}" + "".join(f"; {one}" for one in left_out))
    return list(runs.values())


def _folders_below(path: Path) -> tuple[list[Path], list[Path]]:
    """Find the searches of `nacre tune` below a path, and the runs that are not their trials."""
    if (path / CONFIG).exists():
        return [], []
    searches = sorted(file.parent for file in path.rglob(TUNING))
    folders = sorted(file.parent for file in path.rglob(CONFIG))
    runs = [one for one in folders if not any(one.is_relative_to(search) for search in searches)]
    return searches, runs


def is_step(folder: Path) -> bool:
    """Whether a folder is one of `nacre learn`, which has no scenario."""
    return "scenario" not in read_plain_config(folder)


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
    """Read a run's config, with the defaults of what was added since, and what of it decides."""
    plain = read_plain_config(path)
    try:
        config = resolve_config(plain)
        return config.to_dict(), flatten(result_values(config))
    except NacreError:
        # What a run was made with need not be known here any more to show what it measured.
        hidden = keys_without_effect(RunConfig)
        return plain, {key: value for key, value in flatten(plain).items() if key not in hidden}


def _step(metrics: StepMetrics) -> StepResult:
    return StepResult(
        step=metrics.step,
        classes=tuple(metrics.classes),
        iou=metrics.iou,
        mean_iou=metrics.mean_iou,
        images=metrics.images,
    )


def _fingerprint(folder: RunFolder) -> dict[str, Any]:
    path = folder.fingerprint
    return Fingerprint.load(path).plain() if path.exists() else {}


def _starts(path: Path) -> list[dict[str, Any]]:
    file = path / "run.json"
    return [one.plain() for one in Starts.load(file).starts] if file.exists() else []
