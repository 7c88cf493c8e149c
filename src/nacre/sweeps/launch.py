"""The loop of a grid: submit, poll, and submit again what was lost.

Done runs are skipped, interrupted ones resume, and a run that a signal or a dying machine ended is
submitted again; when one fails, the others continue and the failure is reported at the end. The
names of jobs that survive the grid's process are kept in files, so that the same command finds
them.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from nacre.errors import NacreError, unknown_name
from nacre.runs.folder import with_absolute_paths
from nacre.sweeps.engines import ENGINES, POLL_SECONDS, Ended, Engine, Local, Ray, Slurm, Task
from nacre.sweeps.grid import GridConfig, Job
from nacre.utils.io import is_locked, remove_temporaries, save_text
from nacre.utils.system import import_extra

MAX_RETRIES = 3
"""New attempts at a run that a signal or a dying machine ended."""
_STOP_SECONDS = 120.0
_SLURM_DEFAULTS = {"job_name": "nacre", "time": 24 * 60}
_MAX_TIMEOUTS = 1000
_SACCT_SECONDS = 30


def open_engine(name: str, grid: GridConfig, out: Path) -> Engine:
    """Return an engine for the runs of a grid in the folder ``out``."""
    if name == "ray":
        return Ray(grid.jobs, grid.gpus_per_run)
    if name == "slurm":
        return _open_slurm(grid, out)
    if name == "local":
        return Local(grid.jobs, grid.gpus_per_run)
    raise unknown_name("engine", name, ENGINES)


def _open_slurm(grid: GridConfig, out: Path) -> Slurm:
    submitit = import_extra("submitit", "slurm")
    try:
        executor = submitit.SlurmExecutor((out / "slurm").absolute(), max_num_timeout=_MAX_TIMEOUTS)
    except RuntimeError as error:
        raise NacreError(f"--engine slurm: {error}") from error
    # By default submitit asks only every ten minutes about a job that left no result.
    executor.job_class.watcher = type(executor.job_class.watcher)(_SACCT_SECONDS)
    gpus = 1 if grid.gpus_per_run is None else grid.gpus_per_run
    # Without GPUs the option is left out: some clusters refuse a request for 0.
    requested = {"gpus_per_node": gpus} if gpus else {}
    try:
        executor.update_parameters(**{**_SLURM_DEFAULTS, **requested, **grid.slurm})
    except (ValueError, TypeError) as error:
        raise NacreError(f"slurm: {' '.join(str(error).split())[:600]}") from error
    return Slurm(executor, grid.jobs, max(1, gpus), grid.slurm.get("cpus_per_task"))


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
        engine: Executes them.
        should_stop: Returns True if the user wants to stop; runs save, or continue if they survive.
        show: Receives the runs again and again.
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
    """Find which runs are done, and which an engine has from an earlier process of the grid."""
    for job in jobs:
        job.refresh()
        if not job.is_open:
            job.submitted_file.unlink(missing_ok=True)
        elif engine.survives and job.submitted_file.exists():
            job.submitted = job.submitted_file.read_text(encoding="utf-8").strip()


def cancel_submitted(jobs: Sequence[Job], engine: Engine) -> int:
    """Cancel what an earlier process of the grid submitted; return the number of jobs."""
    find_submitted(jobs, engine)
    submitted = _submitted(jobs)
    for job, name in submitted:
        engine.cancel(name)
        _forget(job)
    return len(submitted)


def make_task(job: Job) -> Task:
    """Write the config that a run reads; return the task that any machine can execute."""
    folder = job.folder.path.absolute()
    config = folder.with_name(f"{folder.name}.yaml")
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_temporaries(config.parent, [config.name])
    save_text(config, yaml.safe_dump(with_absolute_paths(job.config), sort_keys=False))
    arguments = ["run", "--config", str(config), "--out", str(folder)]
    arguments += ["--cache", str(job.cache.absolute())]
    arguments += [part for name in job.track for part in ("--track", name)]
    return Task(tuple(arguments), folder, Path.cwd())


def _submitted(jobs: Sequence[Job]) -> list[tuple[Job, str]]:
    return [(job, job.submitted) for job in jobs if job.submitted is not None]


def _stop(jobs: Sequence[Job], engine: Engine) -> None:
    """Make the runs save, and wait for that; those that survive the grid continue."""
    _cancel(jobs, engine)
    until = time.monotonic() + _STOP_SECONDS
    while not engine.survives and _submitted(jobs) and time.monotonic() < until:
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
            # A cluster may queue it; it runs when it has locked its folder.
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
    """Submit runs up to the engine's capacity, those first that others wait for."""
    waiting = [job for job in jobs if job.state == "waiting" and job.submitted is None]
    waited_for = {id(job.first) for job in waiting}
    taken = len(_submitted(jobs))
    for job in sorted(waiting, key=lambda job: id(job) not in waited_for):
        if taken >= engine.capacity:
            return
        if job.is_ready and not is_locked(job.folder.path):  # by a run started by hand, say
            _submit(job, engine)
            taken += job.submitted is not None


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
