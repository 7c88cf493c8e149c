"""Grids: methods x scenarios x seeds, each run in its own folder and process.

Runs that share step 0 wait until one of them has stored it in the step cache
(`nacre.runs.step_cache`). The loop of a grid submits runs to an engine (`nacre.sweeps.engines`),
polls them, and submits again those that were lost. Finished runs are skipped and interrupted ones
resume. When a run fails, the others continue, and the failure is reported at the end. If the jobs
of an engine survive the grid's process, their names are stored in files, where the same command
finds them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, field_validator

from nacre.errors import NacreError, check, unknown_name
from nacre.methods import find_method
from nacre.models.weights import find_model_weights
from nacre.runs.folder import RunFolder, with_absolute_paths
from nacre.runs.records import StepMetrics
from nacre.runs.run import open_scenario
from nacre.runs.step_cache import CACHE, digest_masks, step_keys
from nacre.runs.steps import step_sampler
from nacre.sweeps.engines import (
    ENGINES,
    POLL_SECONDS,
    Ended,
    Engine,
    Local,
    Ray,
    Task,
    log_of,
    open_slurm,
)
from nacre.training.config import RunConfig, build_config, deep_merge, read_section
from nacre.training.events import read_event
from nacre.utils.config import Config, read_yaml
from nacre.utils.io import is_locked, remove_temporaries, save_text

State = Literal["waiting", "running", "done", "failed"]
TrackerName = Literal["tensorboard", "wandb", "trackio"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]

MAX_RETRIES = 3
"""Maximum number of new attempts at a run that a signal or a dying machine ended."""
_STOP_SECONDS = 120.0
_TAIL_BYTES = 1 << 16


class GridConfig(Config):
    """Config of a grid: every combination is a run."""

    scenarios: tuple[str, ...] = Field(
        min_length=1, max_length=1000, description="scenarios, as `nacre run` takes"
    )
    methods: tuple[str | dict[str, Any], ...] = Field(
        min_length=1, max_length=1000, description="names, or mappings with a name and other values"
    )
    seeds: tuple[Seed, ...] = Field((1,), min_length=1, max_length=1000, description="seeds")
    preset: str | None = Field(None, description="preset under all runs")
    config: dict[str, Any] = Field(default_factory=dict, description="config values for all runs")
    jobs: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="number of runs at a time; on this machine one per GPU, or one",
    )
    gpus_per_run: int | None = Field(
        None, ge=0, le=64, description="GPUs of a run, with a process each; one if there are any"
    )
    track: tuple[TrackerName, ...] = Field((), description="trackers, as `nacre run --track` takes")
    slurm: dict[str, Any] = Field(
        default_factory=dict, description="for `--engine slurm`: parameters of submitit's executor"
    )

    @field_validator("config")
    @classmethod
    def _check_no_axis(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Refuse values that differ between the runs of a grid."""
        for key in ("scenario", "seed"):
            if key in config:
                raise ValueError(f"{key} is not one value for all runs: name it under {key}s")
        if "name" in read_section(config, "method"):
            raise ValueError("method.name is not one value for all runs: name it under methods")
        return config


@dataclass
class Job:
    """A run of a grid.

    Attributes:
        iterations: Number of updates in each step.
        step_0: Key of step 0 in the cache.
        first: The job that learns step 0 for this one; None if it learns its own.
        problem: Reason why the run failed.
        is_refused: True if it failed because its folder holds another run.
        attempts: Number of times that this process submitted the run.
        submitted: The engine's name for the run while the engine has it.
    """

    name: str
    config: RunConfig
    folder: RunFolder
    iterations: tuple[int, ...]
    fingerprint: dict[str, Any] = field(repr=False)
    cache: Path
    step_0: str
    track: tuple[TrackerName, ...] = ()
    first: "Job | None" = None
    state: State = "waiting"
    problem: str | None = None
    is_refused: bool = False
    attempts: int = 0
    submitted: str | None = None

    @property
    def to_learn(self) -> tuple[int, ...]:
        """Updates of each step in this run; zero for a step 0 that it takes from the cache."""
        if self.first is None or (self.first.state == "failed" and not self.first.has_tested_0):
            return self.iterations
        return (0, *self.iterations[1:])

    @property
    def submitted_file(self) -> Path:
        """The file that stores `submitted`, if the engine's jobs survive the grid's process."""
        return log_of(self.folder.path).with_suffix(".job")

    @property
    def is_open(self) -> bool:
        """True if the run is waiting or running."""
        return self.state in ("waiting", "running")

    @property
    def is_ready(self) -> bool:
        """True if no other run has to learn step 0 first."""
        first = self.first
        return first is None or not first.is_open or first.has_tested_0 or self.has_step_0

    @property
    def has_step_0(self) -> bool:
        """True if the folder contains a model of step 0, learned or taken."""
        return self.folder.model(0).exists()

    @property
    def has_tested_0(self) -> bool:
        """True if step 0 is done."""
        return self.folder.step_metrics(0).exists()

    def refresh(self) -> None:
        """Set the state to `done` or `failed` by the run's folder; another run's folder fails."""
        try:
            self.folder.check_same(self.config, self.fingerprint)
        except NacreError as error:
            self.state, self.problem, self.is_refused = "failed", str(error), True
            return
        if self.folder.metrics.exists():
            self.state = "done"


def read_grid(path: Path) -> GridConfig:
    """Read a grid from a YAML file."""
    return check_grid(read_yaml(path, "grid", "`scenarios:` and `methods:`"), str(path))


def check_grid(content: dict[str, Any], place: str = "grid") -> GridConfig:
    """Check the values of a grid."""
    return check(GridConfig, content, place)


def make_jobs(grid: GridConfig, out: Path, cache: Path | None = None) -> list[Job]:
    """Return the runs of a grid, with checked configs and the job that learns each step 0.

    Runs share learned steps in the folder `cache`, by default ``out/steps``.
    """
    opened: _Opened = {}
    jobs = []
    sharing: dict[str, list[Job]] = {}
    for scenario, seed, method in product(grid.scenarios, grid.seeds, grid.methods):
        job = _make_job(grid, out, scenario, method, seed, opened)
        job.cache = cache or job.cache
        jobs.append(job)
        sharing.setdefault(job.step_0, []).append(job)
    for group in sharing.values():
        _share_step_0(group)
    folders = [job.folder.path for job in jobs]
    if len(set(folders)) < len(folders):
        raise NacreError("the grid names a combination of scenario, method and seed twice")
    return jobs


_Opened = dict[str, tuple[dict[str, Any], str]]
"""Fingerprint and mask digest of the data that were opened, by the config values they need."""


def _open_data(config: RunConfig, opened: _Opened) -> tuple[dict[str, Any], str]:
    """Return the fingerprint and the mask digest of a run's data; open the same data only once."""
    is_joint = find_method(config.method.name).is_joint
    key = repr((config.scenario, config.data, is_joint))
    if key not in opened:
        data = open_scenario(config)
        opened[key] = data.fingerprint(), digest_masks(data)
    return opened[key]


def _make_job(
    grid: GridConfig,
    out: Path,
    scenario: str,
    method: str | dict[str, Any],
    seed: int,
    opened: _Opened,
) -> Job:
    values = {"scenario": scenario, "method": method, "seed": seed}
    config = build_config(preset=grid.preset, overrides=deep_merge(grid.config, values))
    fingerprint, masks = _open_data(config, opened)
    variant = _variant(method)
    place = scenario.removesuffix(".yaml").strip("./").replace("/", "_")
    counts = [step["images"] for step in fingerprint["steps"]]
    return Job(
        name=f"{scenario} {variant} {seed}",
        config=config,
        folder=RunFolder(out / place / f"{variant.replace('/', '_')}-{seed}"),
        iterations=tuple(
            step_sampler(config, count, step).iterations for step, count in enumerate(counts)
        ),
        fingerprint=fingerprint,
        cache=out / CACHE,
        step_0=step_keys(config, fingerprint, masks)[0],
        track=grid.track,
    )


def _variant(method: str | dict[str, Any]) -> str:
    """Return a unique name for a method and its values, such as ``mib,fusion=sqrt``."""
    if isinstance(method, str):
        return method
    values = {key: value for key, value in method.items() if key != "name"}
    return ",".join([str(method.get("name")), *(f"{k}={_text(v)}" for k, v in values.items())])


def _text(value: Any) -> str:
    """Return a value in the form that `--set` takes."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _share_step_0(group: Sequence[Job]) -> None:
    """Choose the job that learns step 0 for each job: the one whose method stores the most."""
    states = [find_method(job.config.method.name).persistent_state for job in group]
    for job, needed in zip(group, states, strict=True):
        usable = [i for i, state in enumerate(states) if state >= needed]
        best = group[max(usable, key=lambda i: len(states[i]))]  # the first of several
        job.first = None if best is job else best


def check_weights(jobs: Sequence[Job]) -> None:
    """Check that the weights of all runs exist here or can be downloaded."""
    configs = [job.config.model for job in jobs if not job.has_step_0]
    distinct = {repr(config): config for config in configs}
    for config in distinct.values():
        find_model_weights(config)


def open_engine(name: str, grid: GridConfig, out: Path) -> Engine:
    """Open an engine for the runs of a grid in the folder ``out``."""
    if name == "ray":
        return Ray(grid.jobs, grid.gpus_per_run)
    if name == "slurm":
        return open_slurm(out / "slurm", grid.jobs, grid.gpus_per_run, grid.slurm)
    if name == "local":
        return Local(grid.jobs, grid.gpus_per_run)
    raise unknown_name("engine", name, ENGINES)


def run_grid(
    jobs: Sequence[Job],
    engine: Engine,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    show: Callable[[Sequence[Job]], None] = lambda jobs: None,
) -> bool:
    """Execute all runs on an engine; return False if the user stopped it.

    Args:
        jobs: The runs.
        engine: The engine.
        should_stop: Returns True to stop. Runs then save, or continue if they survive the grid.
        show: Called with the jobs after every poll.
    """
    find_submitted(jobs, engine)
    try:
        while any(job.is_open for job in jobs):
            if should_stop():
                _stop(jobs, engine)
                return False
            _poll(jobs, engine)
            _submit_next(jobs, engine)
            show(jobs)
            time.sleep(POLL_SECONDS)
    finally:
        _cancel(jobs, engine)
    show(jobs)
    return True


def find_submitted(jobs: Sequence[Job], engine: Engine) -> None:
    """Find the runs that are done, and those that an earlier process of the grid submitted."""
    for job in jobs:
        job.refresh()
        if not job.is_open:
            job.submitted_file.unlink(missing_ok=True)
        elif engine.survives and job.submitted_file.exists():
            job.submitted = job.submitted_file.read_text(encoding="utf-8").strip()


def cancel_submitted(jobs: Sequence[Job], engine: Engine) -> int:
    """Cancel the jobs that an earlier process of the grid submitted; return their number."""
    find_submitted(jobs, engine)
    submitted = _submitted(jobs)
    for job, name in submitted:
        engine.cancel(name)
        _forget(job)
    return len(submitted)


def make_task(job: Job) -> Task:
    """Write the config of a run beside its folder; return the task that any machine can execute."""
    folder = job.folder.path.absolute()
    config = folder.with_name(f"{folder.name}.yaml")
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_temporaries(config.parent, config.name)
    save_text(config, yaml.safe_dump(with_absolute_paths(job.config), sort_keys=False))
    arguments = ["run", "--config", str(config), "--out", str(folder)]
    arguments += ["--cache", str(job.cache.absolute())]
    for name in job.track:
        arguments += ["--track", name]
    return Task(tuple(arguments), folder, Path.cwd())


def _submitted(jobs: Sequence[Job]) -> list[tuple[Job, str]]:
    return [(job, job.submitted) for job in jobs if job.submitted is not None]


def _stop(jobs: Sequence[Job], engine: Engine) -> None:
    """Make the runs save, and wait for them; runs that survive the grid continue."""
    _cancel(jobs, engine)
    deadline = time.monotonic() + _STOP_SECONDS
    while not engine.survives and _submitted(jobs) and time.monotonic() < deadline:
        _poll(jobs, engine)
        time.sleep(0.05)


def _cancel(jobs: Sequence[Job], engine: Engine) -> None:
    for _, name in _submitted(jobs):
        if not engine.survives:
            engine.cancel(name)


def _poll(jobs: Sequence[Job], engine: Engine) -> None:
    for job, name in _submitted(jobs):
        ended = engine.poll(name)
        if ended is not None:
            _forget(job)
            _finish(job, ended)
        elif job.state == "waiting":
            # A cluster may queue the run; it is running once it has locked its folder.
            job.state = "running" if is_locked(job.folder.path) else "waiting"


def _finish(job: Job, ended: Ended) -> None:
    job.problem = ended.problem
    if ended.state != "lost":
        job.state = ended.state
    else:
        job.state = "failed" if job.attempts > MAX_RETRIES else "waiting"


def _forget(job: Job) -> None:
    job.submitted = None
    job.submitted_file.unlink(missing_ok=True)


def _submit_next(jobs: Sequence[Job], engine: Engine) -> None:
    """Submit runs up to the engine's capacity; begin with those that other runs wait for."""
    waiting = [job for job in jobs if job.state == "waiting" and job.submitted is None]
    needed = {id(job.first) for job in waiting}
    count = len(_submitted(jobs))
    for job in sorted(waiting, key=lambda job: id(job) not in needed):
        if count >= engine.capacity:
            return
        # A user may have started the same run by hand.
        if job.is_ready and not is_locked(job.folder.path):
            _submit(job, engine)
            count += job.submitted is not None


def _submit(job: Job, engine: Engine) -> None:
    job.refresh()
    if not job.is_open:
        return
    try:
        job.submitted = engine.submit(make_task(job))
        if engine.survives:
            save_text(job.submitted_file, job.submitted)
    except (OSError, NacreError) as error:
        job.state, job.problem = "failed", f"could not be started: {error}"
        return
    job.attempts += 1


def find_status(jobs: Sequence[Job]) -> None:
    """Find the state of runs that another process may execute."""
    for job in jobs:
        job.refresh()
        if job.is_open and is_locked(job.folder.path):
            job.state = "running"


def count_iterations(job: Job) -> int:
    """Return the number of its own updates that a run has made."""
    if job.state == "done":
        return sum(job.to_learn)
    return count_updates(job.folder.events, job.to_learn) or 0


def last_tested(job: Job) -> tuple[int, dict[str, Any]] | None:
    """Return the last tested step of a run and its mean IoUs; None if no step was tested."""
    for step in reversed(range(len(job.iterations))):
        path = job.folder.step_metrics(step)
        if path.exists():
            return step, StepMetrics.load(path).mean_iou
    return None


def as_dict(job: Job) -> dict[str, Any]:
    """Return a run and its progress as plain data."""
    tested = last_tested(job)
    return {
        "run": job.name,
        "folder": str(job.folder.path),
        "state": job.state,
        "iterations": count_iterations(job),
        "of": sum(job.to_learn),
        "tested_step": tested[0] if tested else None,
        "mean_iou": tested[1] if tested else None,
        "problem": job.problem,
    }


def count_updates(events: Path, to_learn: Sequence[int]) -> int | None:
    """Count the updates before the last event of a run; return None if no step has an event.

    Args:
        events: The run's file of events. Only its end is read.
        to_learn: Number of updates in each step.
    """
    try:
        with events.open("rb") as file:
            file.seek(max(0, events.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        event = read_event(line)
        step = getattr(event, "step", None)
        if step is not None and step < len(to_learn):
            # An event without an iteration comes after all updates of its step.
            iteration = getattr(event, "iteration", getattr(event, "first", to_learn[step]))
            return sum(to_learn[:step]) + min(iteration, to_learn[step])
    return None
