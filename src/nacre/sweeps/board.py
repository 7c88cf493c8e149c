"""How far the runs of a grid are, read from their folders, whoever works on them and where."""

import os
from collections.abc import Collection, Sequence

from nacre.errors import NacreError
from nacre.sweeps.grid import Job
from nacre.utils.claim import Seen, Watch, list_claims, read_claim, remove_claims
from nacre.utils.lock import is_locked


class Board:
    """The runs of a grid and their states.

    A run that failed before this grid or worker began may be tried again; one that fails
    meanwhile, here or elsewhere, stays failed.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs, self.watch = jobs, Watch()
        self.claims: dict[int, Seen] = {}
        self.done_files = {id(job): str(job.folder.metrics) for job in jobs}
        for job in jobs:
            check(job)
        for job in jobs:
            # A folder in which something else was learnt has no step 0 to take over.
            if job.base is not None and job.base.problem is not None:
                job.base = None
        self._tidy()
        self.old_failures = {
            id(job): seen.number for job, seen in self._claims() if seen.note.state == "failed"
        }

    @property
    def is_open(self) -> bool:
        """Whether there is still something to do, here or elsewhere."""
        return any(job.state in ("waiting", "running") for job in self.jobs)

    def _tidy(self) -> None:
        """Remove claims that were left on runs that are done."""
        folders = {job.folder.path.parent for job in self.jobs}
        claimed = {folder / name for folder in folders for name in list_claims(folder)}
        for job in self.jobs:
            if job.state == "done" and job.folder.path in claimed:
                remove_claims(job.folder.path)

    def look(self, busy: Collection[int] = ()) -> None:
        """Bring the states of all runs up to date that are neither done nor failed.

        Args:
            busy: Those that an engine has, by `id`: how they end is for the engine to tell.
        """
        self.claims = {id(job): seen for job, seen in self._claims()}
        for job in self.jobs:
            if job.state in ("waiting", "running"):
                self._look(job, self.claims.get(id(job)), id(job) in busy)

    def _look(self, job: Job, seen: Seen | None, is_busy: bool) -> None:
        job.where = None
        if not is_busy and os.path.exists(self.done_files[id(job)]):
            check(job)
            if seen is not None and not self.watch.is_alive(seen):
                remove_claims(job.folder.path)
        elif seen is not None and self.watch.is_alive(seen):
            job.state, job.where = "running", seen.note.host
        elif not is_busy and self._has_failed(job, seen):
            assert seen is not None
            job.state, job.problem = "failed", seen.note.problem
        else:
            job.state = "waiting"

    def _has_failed(self, job: Job, seen: Seen | None) -> bool:
        return (
            seen is not None
            and seen.note.state == "failed"
            and seen.number > self.old_failures.get(id(job), 0)
        )

    def next(self, busy: Collection[int] = ()) -> list[Job]:
        """Return the runs that may be begun, those first that others wait for."""
        waiting = [job for job in self.jobs if job.state == "waiting" and id(job) not in busy]
        ready = [job for job in waiting if job.is_ready]
        waited_for = {id(job.base) for job in waiting if not job.is_ready}
        ready.sort(key=lambda job: id(job) not in waited_for)
        return ready

    def _claims(self) -> list[tuple[Job, Seen]]:
        """Return the latest claim on each unfinished run, with one look at each folder."""
        folders: dict[str, dict[str, int]] = {}
        found = []
        for job in self.jobs:
            if job.state not in ("waiting", "running"):
                continue
            path = job.folder.path
            if str(path.parent) not in folders:
                folders[str(path.parent)] = list_claims(path.parent)
            number = folders[str(path.parent)].get(path.name)
            seen = read_claim(path, number) if number else None
            if seen is not None:
                found.append((job, seen))
        return found


def check(job: Job) -> None:
    """Find a run that is done, and a folder that is not this run's: that one fails."""
    try:
        job.folder.check_same(job.config, job.fingerprint)
    except NacreError as error:
        job.state, job.problem = "failed", str(error)
        return
    if job.folder.metrics.exists():
        job.state = "done"


def is_worked_on(job: Job) -> bool:
    """Whether a process of this machine works in a run's folder, such as one started by hand."""
    return is_locked(job.folder.path)
