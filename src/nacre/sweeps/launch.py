"""Carrying out the runs of a grid on an engine: submit, poll, and submit again what was lost.

What is done is skipped, what was interrupted goes on, what a signal or a dying machine ended is
submitted again, and when one run fails the others go on and the failure is told at the end. Where
jobs survive the grid's process, their names are kept in files, so that the same command finds them.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from nacre.errors import NacreError
from nacre.runs.folder import with_absolute_paths
from nacre.sweeps.engines import Engine
from nacre.sweeps.grid import Job
from nacre.sweeps.task import Ended, Task
from nacre.utils.io import is_locked, remove_temporaries, save_text

POLL_SECONDS = 0.5
RETRIES = 3
"""New attempts at a run that a signal or a dying machine ended."""
_STOP_SECONDS = 120.0


def run_grid(
    jobs: Sequence[Job],
    engine: Engine,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    show: Callable[[Sequence[Job]], None] = lambda jobs: None,
) -> bool:
    """Carry out all runs on an engine; return False if the user stopped it.

    Args:
        jobs: The runs.
        engine: Carries them out.
        should_stop: Whether the user wants to stop; the runs save, or go on if they survive.
        show: Receives the runs again and again.
    """
    find_submitted(jobs, engine)
    try:
        while any(job.is_open for job in jobs):
            if should_stop():
                stop(jobs, engine)
                return False
            for job in jobs:
                if job.submitted is not None:
                    _poll(job, engine)
            _submit_next(jobs, engine)
            show(jobs)
            time.sleep(POLL_SECONDS)
    finally:
        _cancel(jobs, engine)
    show(jobs)
    return True


def look(jobs: Sequence[Job]) -> None:
    """Find how far runs are that another process may carry out."""
    for job in jobs:
        job.look()
        if job.is_open and is_locked(job.folder.path):
            job.state = "running"


def find_submitted(jobs: Sequence[Job], engine: Engine) -> None:
    """Find which runs are done, and which an engine has from an earlier process of the grid."""
    for job in jobs:
        job.look()
        if not job.is_open:
            job.submitted_file.unlink(missing_ok=True)
        elif engine.survives and job.submitted_file.exists():
            job.submitted = job.submitted_file.read_text(encoding="utf-8").strip()


def stop(jobs: Sequence[Job], engine: Engine) -> None:
    """Have the runs save, and wait for that; those that survive the grid go on."""
    _cancel(jobs, engine)
    until = time.monotonic() + _STOP_SECONDS
    while not engine.survives and time.monotonic() < until:
        if not any(job.submitted is not None for job in jobs):
            return
        for job in jobs:
            if job.submitted is not None:
                _poll(job, engine)
        time.sleep(0.05)


def _cancel(jobs: Sequence[Job], engine: Engine) -> None:
    for job in jobs:
        if job.submitted is not None and not engine.survives:
            engine.cancel(job.submitted)


def cancel_submitted(jobs: Sequence[Job], engine: Engine) -> int:
    """Take back what an earlier process of the grid submitted; return how many jobs that are."""
    find_submitted(jobs, engine)
    count = 0
    for job in jobs:
        if job.submitted is not None:
            engine.cancel(job.submitted)
            _forget(job)
            count += 1
    return count


def _poll(job: Job, engine: Engine) -> None:
    assert job.submitted is not None
    ended = engine.poll(job.submitted)
    if ended is not None:
        _forget(job)
        _conclude(job, ended)
    elif job.state == "waiting":
        # A cluster may let it wait; it runs when it has locked its folder.
        job.state = "running" if is_locked(job.folder.path) else "waiting"


def _conclude(job: Job, ended: Ended) -> None:
    job.problem = ended.problem
    if ended.state != "lost":
        job.state = ended.state
    else:
        job.state = "failed" if job.attempts > RETRIES else "waiting"


def _forget(job: Job) -> None:
    job.submitted = None
    job.submitted_file.unlink(missing_ok=True)


def _submit_next(jobs: Sequence[Job], engine: Engine) -> None:
    """Hand runs to the engine as long as it takes some, those first that others wait for."""
    waiting = [job for job in jobs if job.state == "waiting" and job.submitted is None]
    waited_for = {id(job.first) for job in waiting}
    taken = sum(job.submitted is not None for job in jobs)
    for job in sorted(waiting, key=lambda job: id(job) not in waited_for):
        if taken >= engine.capacity:
            return
        if job.is_ready and not is_locked(job.folder.path):  # by a run started by hand, say
            _submit(job, engine)
            taken += job.submitted is not None


def _submit(job: Job, engine: Engine) -> None:
    job.look()
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


def make_task(job: Job) -> Task:
    """Return what carries a run out on any machine, after writing the config that it reads."""
    folder = job.folder.path.absolute()
    config = folder.with_name(f"{folder.name}.yaml")
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_temporaries(config.parent, [config.name])
    save_text(config, yaml.safe_dump(with_absolute_paths(job.config), sort_keys=False))
    arguments = ["run", "--config", str(config), "--out", str(folder)]
    arguments += ["--cache", str(job.cache.absolute())]
    arguments += [part for name in job.track for part in ("--track", name)]
    return Task(tuple(arguments), folder, Path.cwd())
