"""The runs of a grid: methods x scenarios x seeds, each in a folder and a process of its own.

Runs that learn step 0 alike share it: one of them learns it, the others start as soon as it is in
the cache (`nacre.runs.step_cache`). `nacre.sweeps.launch` executes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from nacre.errors import NacreError, check
from nacre.methods import find_method
from nacre.models.weights import find_model_weights
from nacre.runs.folder import RunFolder
from nacre.runs.records import StepMetrics
from nacre.runs.run import open_scenario
from nacre.runs.step_cache import CACHE, digest_masks, step_keys
from nacre.runs.steps import step_sampler
from nacre.sweeps.engines import log_of
from nacre.training.config import RunConfig, build_config, deep_merge, read_section
from nacre.training.events import read_event
from nacre.utils.config import Config, read_yaml
from nacre.utils.io import is_locked

State = Literal["waiting", "running", "done", "failed"]
TrackerName = Literal["tensorboard", "wandb", "trackio"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]

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
    def _names_no_row(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Refuse values that the rows of the grid would overrule in silence."""
        for key in ("scenario", "seed"):
            if key in config:
                raise ValueError(f"{key} is not one value for all runs: name it under {key}s")
        if "name" in read_section(config, "method"):
            raise ValueError("method.name is not one value for all runs: name it under methods")
        return config


@dataclass
class Job:
    """A run of the grid.

    Attributes:
        name: Scenario, method and seed.
        config: The config.
        folder: The folder.
        first: The run that learns step 0 for it; None if it learns its own.
        iterations: Updates of each step.
        fingerprint: The data that it learns from and is tested on.
        cache: The folder of the steps that runs share.
        track: Trackers.
        state: The state, as far as is known.
        problem: Why it failed.
        attempts: Number of times this process of the grid submitted it.
        submitted: The engine's name for it, while the engine has it.
    """

    name: str
    config: RunConfig
    folder: RunFolder
    first: "Job | None"
    iterations: tuple[int, ...]
    fingerprint: dict[str, Any] = field(repr=False)
    cache: Path
    track: tuple[TrackerName, ...] = ()
    state: State = "waiting"
    problem: str | None = None
    attempts: int = 0
    submitted: str | None = None

    @property
    def persistent_state(self) -> frozenset[str]:
        """The state that its method collects in a step for later ones."""
        return find_method(self.config.method.name).persistent_state

    @property
    def to_learn(self) -> tuple[int, ...]:
        """Updates of each step that this run makes itself: none in a step 0 that it takes."""
        if self.first is None or (self.first.state == "failed" and not self.first.has_tested_0):
            return self.iterations
        return (0, *self.iterations[1:])

    @property
    def submitted_file(self) -> Path:
        """The file with `submitted`, where an engine's jobs survive the grid's process."""
        return log_of(self.folder.path).with_suffix(".job")

    @property
    def is_open(self) -> bool:
        """True if the run is waiting or running."""
        return self.state in ("waiting", "running")

    @property
    def is_ready(self) -> bool:
        """True if no other run has to learn step 0 for it first."""
        first = self.first
        return first is None or not first.is_open or first.has_tested_0 or self.has_step_0

    @property
    def has_step_0(self) -> bool:
        """True if the folder has a model of step 0, learned or taken."""
        return self.folder.model(0).exists()

    @property
    def has_tested_0(self) -> bool:
        """True if step 0 is done."""
        return self.folder.step_metrics(0).exists()

    def refresh(self) -> None:
        """Find whether the run is done; it fails if its folder is another run's."""
        try:
            self.folder.check_same(self.config, self.fingerprint)
        except NacreError as error:
            self.state, self.problem = "failed", str(error)
            return
        if self.folder.metrics.exists():
            self.state = "done"


def read_grid(path: Path) -> GridConfig:
    """Read a grid from a YAML file."""
    return check_grid(read_yaml(path, "grid", "`scenarios:` and `methods:`"), str(path))


def check_grid(content: dict[str, Any], place: str = "grid") -> GridConfig:
    """Check plain values of a grid."""
    return check(GridConfig, content, place)


def make_jobs(grid: GridConfig, out: Path, cache: Path | None = None) -> list[Job]:
    """Return the runs of a grid with checked configs; those that share a step 0 know whose.

    Args:
        grid: The methods, scenarios and seeds.
        out: The grid's folder.
        cache: The folder of the steps that runs share; ``out/steps`` if not given.
    """
    jobs: list[Job] = []
    opened: _Opened = {}
    alike: dict[str, list[Job]] = {}
    for scenario in grid.scenarios:
        for seed in grid.seeds:
            for method in grid.methods:
                job, key = _job(grid, out, scenario, method, seed, opened)
                job.cache = cache or job.cache
                jobs.append(job)
                alike.setdefault(key, []).append(job)
    for group in alike.values():
        _share_step_0(group)
    folders = [job.folder.path for job in jobs]
    if len(set(folders)) < len(folders):
        raise NacreError("the grid names a combination of scenario, method and seed twice")
    return jobs


def check_weights(jobs: Sequence[Job]) -> None:
    """Check that the weights of all runs are here or can be downloaded.

    Raises:
        NacreError: the weights of a run can not be found.
    """
    starting = [job.config.model for job in jobs if not job.has_step_0]
    distinct = {repr(model): model for model in starting}
    for model in distinct.values():
        find_model_weights(model)


def _share_step_0(group: Sequence[Job]) -> None:
    """Choose the run that learns step 0 for the others: its method collects the most."""
    for job in group:
        serving = [other for other in group if other.persistent_state >= job.persistent_state]
        best = max(serving, key=lambda other: len(other.persistent_state))  # the first of several
        job.first = None if best is job else best


_Opened = dict[str, tuple[dict[str, Any], str]]
"""The data's fingerprint and the digest of its masks, by what is opened."""


def _open_data(config: RunConfig, opened: _Opened) -> tuple[dict[str, Any], str]:
    """Return the data's fingerprint and the digest of its masks, opening them only once."""
    is_joint = find_method(config.method.name).is_joint
    key = repr((config.scenario, config.data, is_joint))
    if key not in opened:
        data = open_scenario(config)
        opened[key] = data.fingerprint(), digest_masks(data)
    return opened[key]


def _job(
    grid: GridConfig,
    out: Path,
    scenario: str,
    method: str | dict[str, Any],
    seed: int,
    opened: _Opened,
) -> tuple[Job, str]:
    """Return a run, and the cache key of its step 0."""
    values = {"scenario": scenario, "method": method, "seed": seed}
    config = build_config(preset=grid.preset, overrides=deep_merge(grid.config, values))
    fingerprint, masks = _open_data(config, opened)
    variant = _variant(method)
    place = scenario.removesuffix(".yaml").strip("./").replace("/", "_")
    counts = [step["images"] for step in fingerprint["steps"]]
    job = Job(
        name=f"{scenario} {variant} {seed}",
        config=config,
        folder=RunFolder(out / place / f"{variant.replace('/', '_')}-{seed}"),
        first=None,
        iterations=tuple(
            step_sampler(config, count, step).iterations for step, count in enumerate(counts)
        ),
        fingerprint=fingerprint,
        cache=out / CACHE,
        track=grid.track,
    )
    return job, step_keys(config, fingerprint, masks)[0]


def _variant(method: str | dict[str, Any]) -> str:
    """Return a unique name for a method and its values, e.g. mib,fusion=sqrt."""
    if isinstance(method, str):
        return method
    values = {key: value for key, value in method.items() if key != "name"}
    return ",".join([str(method.get("name")), *(f"{k}={_text(v)}" for k, v in values.items())])


def _text(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_status(jobs: Sequence[Job]) -> None:
    """Find the state of runs that another process may execute."""
    for job in jobs:
        job.refresh()
        if job.is_open and is_locked(job.folder.path):
            job.state = "running"


class GridProgress:
    """Reads the progress of runs from their folders, again and again at little cost."""

    def __init__(self) -> None:
        self.made: dict[str, int] = {}
        self.means: dict[str, tuple[int, dict[str, Any]]] = {}

    def iterations(self, job: Job) -> int:
        """Return how many of its own updates a run has made."""
        if job.state == "done":
            return sum(job.to_learn)
        if job.state == "running" or job.name not in self.made:
            made = _updates_made(job.folder.events, job.to_learn)
            self.made[job.name] = self.made.get(job.name, 0) if made is None else made
        return self.made[job.name]

    def last_tested(self, job: Job) -> tuple[int, dict[str, Any]] | None:
        """Return the last tested step of a run, and its mean IoUs."""
        known = self.means.get(job.name)
        if job.state == "waiting" or (known is not None and known[0] == len(job.iterations) - 1):
            return known
        first = known[0] + 1 if known is not None else 0
        for step in reversed(range(first, len(job.iterations))):
            path = job.folder.step_metrics(step)
            if path.exists():
                self.means[job.name] = step, StepMetrics.load(path).mean_iou
                break
        return self.means.get(job.name)


def _updates_made(events: Path, to_learn: Sequence[int]) -> int | None:
    """Return the updates before the last event of a run; None if it has none of a step."""
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
            # Events without a place in their step come when it is learned.
            here = getattr(event, "iteration", getattr(event, "first", to_learn[step]))
            return sum(to_learn[:step]) + min(here, to_learn[step])
    return None


def as_plain(jobs: Sequence[Job], progress: GridProgress) -> list[dict[str, Any]]:
    """Return the runs of a grid and their progress as plain data."""
    return [
        {
            "run": job.name,
            "folder": str(job.folder.path),
            "state": job.state,
            "iterations": progress.iterations(job),
            "of": sum(job.to_learn),
            "tested_step": tested[0] if tested else None,
            "mean_iou": tested[1] if tested else None,
            "problem": job.problem,
        }
        for job in jobs
        for tested in (progress.last_tested(job),)
    ]
