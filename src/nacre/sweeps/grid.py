"""Several runs: methods x scenarios x seeds, each in a folder and a process of its own.

Runs that learn step 0 alike share it: one of them learns it, the others begin as soon as it is in
the cache (`nacre.runs.step_cache`); `nacre.sweeps.launch` carries them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from nacre.errors import NacreError, check
from nacre.methods import find_method
from nacre.models.pretrained import find_model_weights
from nacre.runs.folder import RunFolder
from nacre.runs.scenario_data import open_scenario, step_sampler
from nacre.runs.step_cache import CACHE, digest_masks, step_keys
from nacre.sweeps.task import log_of
from nacre.training.config import RunConfig, build_config, deep_merge
from nacre.utils.config import Config, read_yaml

State = Literal["waiting", "running", "done", "failed"]
TrackerName = Literal["tensorboard", "wandb", "trackio"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class GridConfig(Config):
    """What a grid is made of: every combination is a run."""

    scenarios: tuple[str, ...] = Field(
        min_length=1, max_length=1000, description="scenarios, as `nacre run` takes"
    )
    methods: tuple[str | dict[str, Any], ...] = Field(
        min_length=1, max_length=1000, description="names, or mappings with a name and other values"
    )
    seeds: tuple[Seed, ...] = Field((1,), min_length=1, max_length=1000, description="seeds")
    preset: str | None = Field(None, description="preset under all runs")
    config: dict[str, Any] = Field(default_factory=dict, description="values for all runs")
    jobs: int | None = Field(
        None, ge=1, le=1024, description="runs at a time; on this machine one per GPU, else one"
    )
    gpus_per_run: int | None = Field(
        None, ge=0, le=64, description="GPUs of a run, with a process each; one if there are any"
    )
    track: tuple[TrackerName, ...] = Field((), description="trackers, as `nacre run --track`")
    slurm: dict[str, Any] = Field(
        default_factory=dict, description="for `--on slurm`: parameters of submitit's executor"
    )


@dataclass
class Job:
    """A run of the grid.

    Attributes:
        name: Scenario, method and seed.
        config: Its config.
        folder: Its folder.
        first: The run that learns step 0 for it, if it does not learn it itself.
        iterations: Updates of each step.
        fingerprint: The data that it learns from and is tested on.
        cache: The folder of the steps that runs share.
        track: Trackers.
        state: How far it is.
        problem: Why it failed.
        attempts: How often this process of the grid submitted it.
        submitted: The name by which the engine knows it, while the engine has it.
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
        """What its method collects in a step for later ones."""
        return find_method(self.config.method.name).persistent_state

    @property
    def to_learn(self) -> tuple[int, ...]:
        """Updates of each step that this run makes itself: none in a step 0 that it takes."""
        if self.first is None or (self.first.state == "failed" and not self.first.has_tested_0):
            return self.iterations
        return (0, *self.iterations[1:])

    @property
    def log(self) -> Path:
        """The file of its output."""
        return log_of(self.folder.path)

    @property
    def submitted_file(self) -> Path:
        """The file with `submitted`, where an engine's jobs survive the grid's process."""
        return self.log.with_suffix(".job")

    @property
    def is_open(self) -> bool:
        """Whether there is still something to do."""
        return self.state in ("waiting", "running")

    @property
    def is_ready(self) -> bool:
        """Whether no other run is to learn step 0 for it first."""
        first = self.first
        return first is None or not first.is_open or first.has_tested_0 or self.has_step_0

    @property
    def has_step_0(self) -> bool:
        """Whether it has the model of step 0, its own or one that it took."""
        return self.folder.model(0).exists()

    @property
    def has_tested_0(self) -> bool:
        """Whether step 0 is done (a failed run may not have got so far)."""
        return self.folder.step_metrics(0).exists()

    def look(self) -> None:
        """Find whether the run is done, or its folder another's: then it fails."""
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
    """Return the runs of a grid, every config checked; those that share step 0 know whose.

    Args:
        grid: What is combined.
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
    """Refuse a grid whose runs could not start, once and before any of them begins.

    Raises:
        NacreError: the weights that a run starts from are not here and cannot be had.
    """
    starting = [job.config.model for job in jobs if not job.has_step_0]
    distinct = {repr(model): model for model in starting}
    for model in distinct.values():
        find_model_weights(model)


def _share_step_0(group: Sequence[Job]) -> None:
    """Of runs with one step 0, let the one that collects the most for later learn it."""
    for job in group:
        serving = [other for other in group if other.persistent_state >= job.persistent_state]
        best = max(serving, key=lambda other: len(other.persistent_state))  # the first of several
        job.first = None if best is job else best


_Opened = dict[str, tuple[dict[str, Any], str]]
"""By what is opened: the data's fingerprint, and the digest of its masks."""


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
    """Return a run, and the digest of what decides its step 0."""
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
    """Return a name for a method and its values that tells them apart: mib,parts.fusion=sqrt."""
    if isinstance(method, str):
        return method
    rest = {key: value for key, value in method.items() if key != "name"}
    return ",".join([str(method.get("name")), *_assignments(rest)])


def _assignments(values: dict[str, Any], under: str = "") -> list[str]:
    """Return values as `--set` takes them: the keys of mappings joined by dots."""
    texts: list[str] = []
    for key, value in values.items():
        if isinstance(value, dict):
            texts += _assignments(value, f"{under}{key}.")
        else:
            texts.append(f"{under}{key}={str(value).lower() if isinstance(value, bool) else value}")
    return texts
