"""Several runs: methods x scenarios x seeds, each in a folder and a process of its own.

Runs that learn step 0 alike share it: one of them learns it, the others take it over as soon as
it is there (`nacre.sweeps.launch` carries them out).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from nacre.errors import NacreError, check
from nacre.methods import find_method
from nacre.models.pretrained import find_model_weights
from nacre.runs.base import step_0_key
from nacre.runs.folder import RunFolder
from nacre.runs.scenario_data import open_scenario, step_sampler
from nacre.sweeps.carry import log_of
from nacre.training.config import RunConfig, build_config, deep_merge
from nacre.utils.config import Config
from nacre.utils.yaml_file import read_yaml

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
        None, ge=1, le=1024, description="runs at a time on a machine; one per GPU, else one"
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
        base: The run whose step 0 it takes over, if it does not learn it itself.
        iterations: Updates of each step.
        fingerprint: The data that it learns from and is tested on.
        track: Trackers.
        state: How far it is.
        where: The machine that works on it.
        problem: Why it failed.
        attempts: How often it was begun by this grid.
    """

    name: str
    config: RunConfig
    folder: RunFolder
    base: "Job | None"
    iterations: tuple[int, ...]
    fingerprint: dict[str, Any] = field(repr=False)
    track: tuple[TrackerName, ...] = ()
    state: State = "waiting"
    where: str | None = None
    problem: str | None = None
    attempts: int = 0

    @property
    def persistent_state(self) -> frozenset[str]:
        """What its method collects in a step for later ones."""
        return find_method(self.config.method.name).persistent_state

    @property
    def to_learn(self) -> tuple[int, ...]:
        """Updates of each step that this run makes itself: none in a step 0 that it takes over."""
        if self.base is None or (self.base.state == "failed" and not self.has_base()):
            return self.iterations
        return (0, *self.iterations[1:])

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return log_of(self.folder.path)

    @property
    def is_ready(self) -> bool:
        """Whether nothing that it needs is still being learnt."""
        if self.base is None or self.base.state in ("done", "failed") or self.has_step_0:
            return True
        return self.base.folder.step_metrics(0).exists()

    @property
    def has_step_0(self) -> bool:
        """Whether it is past step 0, its own or one taken over."""
        return self.folder.model(0).exists()

    def has_base(self) -> bool:
        """Whether there is a step 0 to take over (a failed run may not have one)."""
        return self.base is not None and self.base.folder.step_metrics(0).exists()


def read_grid(path: Path) -> GridConfig:
    """Read a grid from a YAML file."""
    return check_grid(read_yaml(path, "grid", "`scenarios:` and `methods:`"), str(path))


def check_grid(content: dict[str, Any], place: str = "grid") -> GridConfig:
    """Check plain values of a grid."""
    return check(GridConfig, content, place)


def make_jobs(grid: GridConfig, out: Path) -> list[Job]:
    """Return the runs of a grid, every config checked; those that share step 0 know from whom."""
    jobs: list[Job] = []
    opened: _Opened = {}
    alike: dict[str, list[Job]] = {}
    for scenario in grid.scenarios:
        for seed in grid.seeds:
            for method in grid.methods:
                job, key = _job(grid, out, scenario, method, seed, opened)
                jobs.append(job)
                if key is not None:
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
    starting = [job.config.model for job in jobs if job.base is None and not job.has_step_0]
    distinct = {repr(model): model for model in starting}
    for model in distinct.values():
        find_model_weights(model)


def _share_step_0(group: Sequence[Job]) -> None:
    """Of runs with one step 0, let the one that collects the most for later learn it."""
    for job in group:
        serving = [other for other in group if other.persistent_state >= job.persistent_state]
        best = max(serving, key=lambda other: len(other.persistent_state))  # the first of several
        job.base = None if best is job else best


_Opened = dict[str, tuple[list[int], dict[str, Any]]]
"""By what is opened: the images of each step, counted, and the data's fingerprint."""


def _open_data(config: RunConfig, opened: _Opened) -> tuple[list[int], dict[str, Any]]:
    """Return the images of each step and the data's fingerprint, opening them only once."""
    is_joint = find_method(config.method.name).is_joint
    key = repr((config.scenario, config.data, is_joint))
    if key not in opened:
        data = open_scenario(config)
        opened[key] = [len(images) for images in data.image_lists], data.fingerprint()
    return opened[key]


def _job(
    grid: GridConfig,
    out: Path,
    scenario: str,
    method: str | dict[str, Any],
    seed: int,
    opened: _Opened,
) -> tuple[Job, str | None]:
    """Return a run and what tells its step 0 from others; None if it has no step 0 to share."""
    values = {"scenario": scenario, "method": method, "seed": seed}
    config = build_config(preset=grid.preset, overrides=deep_merge(grid.config, values))
    counts, fingerprint = _open_data(config, opened)
    variant = _variant(method)
    place = scenario.removesuffix(".yaml").strip("./").replace("/", "_")
    job = Job(
        name=f"{scenario} {variant} {seed}",
        config=config,
        folder=RunFolder(out / place / f"{variant.replace('/', '_')}-{seed}"),
        base=None,
        iterations=tuple(
            step_sampler(config, count, step).iterations for step, count in enumerate(counts)
        ),
        fingerprint=fingerprint,
        track=grid.track,
    )
    if find_method(config.method.name).is_joint:
        return job, None
    return job, json.dumps(step_0_key(config, fingerprint), default=str)


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
