"""Carrying out the runs of a grid on this machine, each in a process of its own.

What is done is skipped, what was interrupted goes on, and when one run fails the others go on
and the failure is told at the end. The processes end with the grid, however that ends.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import yaml

from nacre.errors import NacreError
from nacre.sweeps.grid import Job
from nacre.utils.io import remove_temporaries, save_text
from nacre.utils.lock import is_locked
from nacre.utils.signals import PARENT
from nacre.utils.system import usable_cores

POLL_SECONDS = 0.5


def run_grid(
    jobs: Sequence[Job],
    max_parallel: int,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    show: Callable[[Sequence[Job]], None] = lambda jobs: None,
) -> bool:
    """Carry out all runs, so many at a time; return False if the user stopped it."""
    _find_done(jobs)
    try:
        while any(job.state in ("waiting", "running") for job in jobs):
            if should_stop():
                _stop(jobs)
                return False
            for job in jobs:
                _poll(job)
            for job in _next(jobs, max_parallel):
                _start(job, max_parallel)
            show(jobs)
            time.sleep(POLL_SECONDS)
    finally:
        _terminate(jobs)
    show(jobs)
    return True


def _find_done(jobs: Sequence[Job]) -> None:
    """Tell what is done; a folder in which something else was learnt is not taken for its own."""
    for job in jobs:
        _look(job)
    for job in jobs:
        if job.base is not None and job.base.problem is not None:
            job.base = None


def _look(job: Job) -> None:
    try:
        job.folder.check_same(job.config, job.fingerprint)
    except NacreError as error:
        job.state, job.problem = "failed", str(error)
        return
    if job.folder.metrics.exists():
        job.state = "done"


def _next(jobs: Sequence[Job], max_parallel: int) -> list[Job]:
    """Return the runs to start now, those first that others wait for.

    One in whose folder somebody works (a run that outlived an earlier grid, or one that was started
    by hand) waits until that is over, and goes on from there.
    """
    free = max_parallel - sum(job.state == "running" for job in jobs)
    waiting = [job for job in jobs if job.state == "waiting"]
    ready = [job for job in waiting if job.is_ready and not is_locked(job.folder.path)]
    waited_for = {id(job.base) for job in jobs if not job.is_ready}
    ready.sort(key=lambda job: id(job) not in waited_for)
    return ready[: max(free, 0)]


def _start(job: Job, max_parallel: int) -> None:
    _look(job)
    if job.state != "waiting":
        return
    try:
        job.process = _launch(job, max_parallel)
        job.state = "running"
    except OSError as error:
        job.state, job.problem = "failed", f"could not be started: {error}"
    except NacreError as error:
        job.state, job.problem = "failed", str(error)


def _launch(job: Job, max_parallel: int) -> subprocess.Popen[bytes]:
    job.folder.path.parent.mkdir(parents=True, exist_ok=True)
    config = job.log.with_suffix(".yaml")
    remove_temporaries(config.parent, [config.name])
    save_text(config, yaml.safe_dump(job.config.to_dict(), sort_keys=False))
    command = [sys.executable, "-m", "nacre", "run", "--config", str(config)]
    command += ["--out", str(job.folder.path)]
    if job.base is not None and job.has_base() and not job.has_step_0:
        command += ["--base", str(job.base.folder.path)]
    # Runs side by side must not fight for the same cores.
    threads = str(max(1, usable_cores() // max_parallel))
    with job.log.open("ab") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": threads, PARENT: str(os.getpid())},
            start_new_session=True,
        )


def _poll(job: Job) -> None:
    if job.state != "running":
        return
    assert job.process is not None
    code = job.process.poll()
    if code is not None:
        job.state = "done" if code == 0 and job.folder.metrics.exists() else "failed"
        if code < 0:
            job.problem = f"ended by {signal.Signals(-code).name}; the same command goes on"


def _terminate(jobs: Sequence[Job]) -> None:
    """Have the runs save what they have; without waiting for it."""
    for job in jobs:
        if job.state == "running" and job.process is not None:
            job.process.terminate()


def _stop(jobs: Sequence[Job]) -> None:
    """Let the runs save what they have."""
    _terminate(jobs)
    for job in jobs:
        if job.state == "running" and job.process is not None:
            job.process.wait()
            job.state = "waiting"


def failure(job: Job) -> str:
    """Say why a run failed, and where more stands."""
    if job.problem is not None:
        return f"{job.name}: {job.problem}"
    return f"{job.name}: {last_log_line(job)} (see {job.log})"


def last_log_line(job: Job) -> str:
    """Return the last line that a run printed, which is its error if it failed."""
    lines = job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
