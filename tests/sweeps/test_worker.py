"""Workers of a shared folder: they take the next free run, and over what a dead one left."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from nacre.errors import NacreError
from nacre.sweeps import carry, launch
from nacre.sweeps.board import Board
from nacre.sweeps.carry import CarryOut, GridMark, Outcome
from nacre.sweeps.engines.local import Local
from nacre.sweeps.grid import check_grid, make_jobs
from nacre.sweeps.launch import marked, run_grid, task_of
from nacre.utils.claim import read_claim, take
from tiny_runs import TINY

VALUES = {key: value for key, value in TINY.items() if key != "scenario"}
GRID = {"scenarios": ["scenes/4-4/overlapped"], "methods": ["ft", "mib"], "config": VALUES}


def jobs_of(out, **more):
    return make_jobs(check_grid({**GRID, **more}), out)


class Process:
    """A run that is done, fails or is killed at the second look."""

    codes: list = []

    def __init__(self, task):
        self.task, self.left = task, 1
        self.code = self.codes.pop(0) if self.codes else 0

    def poll(self):
        self.left -= 1
        if self.left >= 0:
            return None
        if self.code == 0:
            self.task.done.parent.mkdir(parents=True, exist_ok=True)
            self.task.done.write_text("{}")
        return self.code

    def terminate(self):
        self.code = 130


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(carry, "_start", Process)
    monkeypatch.setattr(Process, "codes", [])
    monkeypatch.setattr(carry, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(launch, "LOOK_SECONDS", 0.0)
    return Process.codes


def test_two_workers_share_the_runs_and_both_end_when_all_are_done(tmp_path, fast):
    ours, theirs = jobs_of(tmp_path, seeds=[1, 2]), jobs_of(tmp_path, seeds=[1, 2])
    taken = []

    def other_worker(jobs):
        """Let another worker take one run and carry it out, in the middle of ours."""
        if not taken:
            board, engine = Board(theirs), Local(1)
            board.look()
            job = next(iter(board.next()))
            handle = engine.begin(task_of(job), board.claims.get(id(job)))
            taken.append(job.name)
            while handle.poll() is None:
                pass

    assert run_grid(ours, Local(1), show=other_worker)
    assert {job.state for job in ours} == {"done"}
    begun_here = {job.name for job in ours if job.attempts}
    assert taken
    assert taken[0] not in begun_here
    assert len(begun_here) == len(ours) - 1


def test_what_failed_elsewhere_is_not_tried_again_until_a_new_start(tmp_path, fast):
    ours = jobs_of(tmp_path, methods=["ft"])
    claim = take(ours[0].folder.path)
    ended = []

    def fail(jobs):
        if not ended:
            assert jobs[0].state == "running"
            assert jobs[0].where == claim.note.host
            claim.release("failed", "loss is not a finite number")
            ended.append(True)

    assert run_grid(ours, Local(1), show=fail)
    assert (ours[0].state, ours[0].attempts) == ("failed", 0)
    assert ours[0].problem == "loss is not a finite number"
    again = jobs_of(tmp_path, methods=["ft"])
    assert run_grid(again, Local(1))
    assert (again[0].state, again[0].attempts) == ("done", 1)


@pytest.mark.parametrize(("kills", "state"), [(3, "done"), (4, "failed")])
def test_a_run_that_is_killed_is_begun_again_a_few_times(tmp_path, fast, kills, state):
    fast += [-9] * kills
    (job,) = jobs_of(tmp_path, methods=["ft"])
    assert run_grid([job], Local(1))
    assert (job.state, job.attempts) == (state, 4)
    if state == "failed":
        assert job.problem == "ended by SIGKILL; the same command goes on"


def test_an_error_is_not_tried_again(tmp_path, fast):
    fast += [1]
    (job,) = jobs_of(tmp_path, methods=["ft"])
    assert run_grid([job], Local(1))
    assert (job.state, job.attempts) == ("failed", 1)
    assert read_claim(job.folder.path).note.state == "failed"


def test_a_task_elsewhere_ends_with_its_grid(tmp_path, fast):
    (job,) = jobs_of(tmp_path, methods=["ft"])
    with marked(tmp_path) as mark:
        task = task_of(job)
        live = GridMark(mark.place, mark.note.token)
        assert CarryOut(replace(task, grid=live))() == Outcome("done")
        job.folder.metrics.unlink()
        gone = GridMark(mark.place, "of an earlier start")
        assert CarryOut(replace(task, grid=gone))().end == "ended early"
        mark.release()
        assert CarryOut(replace(task, grid=live))() == Outcome("ended early", "its grid ended")
    assert not list(tmp_path.rglob("*claim*"))


def test_a_task_leaves_a_run_to_who_works_on_it(tmp_path, fast, monkeypatch):
    (job,) = jobs_of(tmp_path, methods=["ft"])
    task = task_of(job)
    claim = take(job.folder.path)
    beats = iter(range(10**9, 2 * 10**9))
    monkeypatch.setattr(
        carry.time, "sleep", lambda seconds: os.utime(claim.path, ns=(next(beats),) * 2)
    )
    assert CarryOut(task)() == Outcome("elsewhere")


def test_two_grids_of_two_machines_do_not_work_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "BEAT_SECONDS", 0.0)
    with (
        marked(tmp_path),
        pytest.raises(NacreError, match="another `nacre grid` works in it on"),
        marked(tmp_path),
    ):
        pass


OPTIONS = [
    "--scenarios", "scenes/4-4/overlapped", "--methods", "ft,mib", "--set", "data.train=48",
    "--set", "data.val=12", "--set", "data.size=32", "--set", "model.backbone=tiny",
    "--set", "model.decoder_channels=8", "--set", "images.crop_size=32",
    "--set", "images.augmentation=flip", "--set", "train.batch_size=8", "--set", "train.epochs=30",
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_worker_that_is_killed_leaves_its_run_to_the_others(tmp_path):
    def work(out):
        command = [sys.executable, "-m", "nacre", "grid", "--worker", "--out", str(out), *OPTIONS]
        return subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)

    whole = tmp_path / "whole"
    undisturbed = work(whole)
    undisturbed.communicate()
    assert undisturbed.returncode == 0
    out = tmp_path / "shared"
    first = work(out)
    begun = out / "scenes_4-4_overlapped" / "ft-1" / "events.jsonl"
    until = time.monotonic() + 200
    while not (begun.exists() and begun.read_text().count('"train"') > 3):
        assert time.monotonic() < until
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = work(out)
    said, _ = second.communicate()
    assert second.returncode == 0
    runs = json.loads(said)
    assert [run["state"] for run in runs] == ["done", "done"]
    for run in runs:
        name = run["run"].split()[1] + "-1"
        for path in sorted((whole / "scenes_4-4_overlapped" / name).rglob("metrics.json")):
            other = out / path.relative_to(whole)
            assert path.read_bytes() == other.read_bytes()
