"""Carrying out the runs of a grid on an engine: this machine, or a cluster.

What is done is skipped, what was interrupted goes on, what a signal or a dying machine ended is
begun again, and when one run fails the others go on and the failure is told at the end. The runs
end with the grid, however that ends.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import yaml

from nacre.errors import NacreError
from nacre.runs.folder import with_absolute_paths
from nacre.sweeps.board import Board, check, is_worked_on
from nacre.sweeps.carry import RETRIES, Outcome, RunTask
from nacre.sweeps.engines.engine import Engine, Handle
from nacre.sweeps.grid import Job
from nacre.utils.claim import BEAT_SECONDS, Claim, Watch, read_claim, remove_claims, take
from nacre.utils.io import remove_temporaries, save_text

POLL_SECONDS = 0.5
LOOK_SECONDS = 3.0
GRID = "grid"
"""What a grid's own claim is called."""


class _Attempts:
    """The runs that an engine has now."""

    def __init__(self, board: Board, engine: Engine) -> None:
        self.board, self.engine = board, engine
        self.handles: dict[int, tuple[Job, Handle]] = {}

    def begin_next(self) -> None:
        """Hand runs to the engine as long as it takes some."""
        for job in self.board.next(self.handles):
            if len(self.handles) >= self.engine.capacity:
                return
            if not is_worked_on(job):
                self._begin(job)

    def _begin(self, job: Job) -> None:
        check(job)
        if job.state != "waiting":
            return
        try:
            handle = self.engine.begin(task_of(job), self.board.claims.get(id(job)))
        except (OSError, NacreError) as error:
            job.state, job.problem = "failed", f"could not be started: {error}"
            return
        if handle is not None:
            job.attempts += 1
            self.handles[id(job)] = job, handle
            job.state = "running" if self.engine.begins_at_once else "waiting"

    def poll(self) -> bool:
        """See which runs have ended; return whether any has."""
        ended = False
        for key, (job, handle) in list(self.handles.items()):
            outcome = handle.poll()
            if outcome is not None:
                del self.handles[key]
                self._conclude(job, outcome)
                ended = True
        return ended

    def _conclude(self, job: Job, outcome: Outcome) -> None:
        if outcome.end in ("done", "failed"):
            job.state, job.problem = outcome.end, outcome.problem
        elif outcome.end == "ended early" and job.attempts > RETRIES:
            job.state, job.problem = "failed", outcome.problem
        else:
            job.state = "waiting"

    def stop(self, mark: Claim | None, wait: bool) -> None:
        """Have the runs save what they have; those elsewhere see that the grid's mark is gone."""
        if mark is not None:
            mark.release()
        for _, handle in self.handles.values():
            handle.stop()
        if wait:
            for job, handle in self.handles.values():
                handle.wait()
                job.state = "waiting"
            self.handles.clear()


def run_grid(
    jobs: Sequence[Job],
    engine: Engine,
    *,
    mark: Claim | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    show: Callable[[Sequence[Job]], None] = lambda jobs: None,
) -> bool:
    """Carry out all runs on an engine; return False if the user stopped it.

    Args:
        jobs: The runs.
        engine: Carries them out.
        mark: The grid's own claim, by which runs on other machines know that it lives.
        should_stop: Whether the user wants to stop; the runs save.
        show: Receives the runs again and again.
    """
    board = Board(jobs)
    attempts = _Attempts(board, engine)
    looked = float("-inf")
    try:
        while board.is_open or attempts.handles:
            if should_stop():
                attempts.stop(mark, wait=True)
                return False
            if mark is not None:
                mark.beat()
            if attempts.poll() or time.monotonic() - looked >= LOOK_SECONDS:
                board.look(attempts.handles)
                looked = time.monotonic()
            attempts.begin_next()
            show(jobs)
            time.sleep(POLL_SECONDS)
    finally:
        attempts.stop(mark, wait=False)
        engine.close()
    show(jobs)
    return True


@contextlib.contextmanager
def marked(out: Path) -> Iterator[Claim]:
    """Mark a grid's folder as worked on by this process, for all machines to see."""
    place, watch = out / GRID, Watch()
    seen = read_claim(place)
    if seen is not None and watch.is_alive(seen):
        # On another machine it may be dead: a live one is heard of within two beats.
        time.sleep(2 * BEAT_SECONDS)
        seen = read_claim(place)
    if seen is not None and watch.is_alive(seen, patience=0.0):
        raise NacreError(
            f"{out} is in use: another `nacre grid` works in it on {seen.note.host}; "
            "`--worker` joins in"
        )
    mark = take(place, seen.number if seen else 0)
    if mark is None:
        raise NacreError(f"{out} is in use: another `nacre grid` has just begun there")
    try:
        yield mark
    finally:
        mark.release()
        remove_claims(place)


def task_of(job: Job) -> RunTask:
    """Return what carries a run out on any machine, after writing the config that it needs."""
    folder = job.folder.path.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = job.log.absolute().with_suffix(".yaml")
    remove_temporaries(config.parent, [config.name])
    save_text(config, yaml.safe_dump(with_absolute_paths(job.config), sort_keys=False))
    arguments = ["run", "--config", str(config), "--out", str(folder)]
    if job.base is not None and job.has_base() and not job.has_step_0:
        arguments += ["--base", str(job.base.folder.path.absolute())]
    arguments += [part for name in job.track for part in ("--track", name)]
    return RunTask(tuple(arguments), folder, Path.cwd(), folder / job.folder.metrics.name)


def failure(job: Job) -> str:
    """Say why a run failed, and where more stands."""
    return f"{job.name}: {job.problem}"
