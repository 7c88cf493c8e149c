"""Killing nacre and looking at what is left: the parts that the tests and the count share.

A command runs in a process forked from one that has imported everything, so that a trial takes a
second. It is killed with -9 after a while, or by itself before its n-th file operation.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which a trainer would import in every trial
from often import be_often
from safetensors import safe_open

import nacre.runs.run
import nacre.sweeps.tune.tune
import nacre.terminal.progress
import nacre.terminal.tune  # noqa: F401  # all that a command imports when it is needed
from nacre.cli import main

TINY = (
    "data.train=48 data.val=12 data.size=32 data.seed=3 model.backbone=tiny "
    "model.decoder_channels=8 images.crop_size=32 images.augmentation=flip train.epochs=1 "
    "train.batch_size=8 train.lr=0.05 train.incremental_lr=0.01 train.device=cpu"
)
OFTEN = 0.0002
"""Minutes between two saves of a step."""


def tiny(*more: str) -> list[str]:
    """Return the options of runs that take a second."""
    return [part for text in (*TINY.split(), *more) for part in ("--set", text)]


def run_command(method: str, out: Path, *more: str, base: Path | None = None) -> list[str]:
    """Return the arguments of a tiny `nacre run`."""
    command = ["run", "scenes/4-2-2/overlapped", "--method", method, "--out", str(out)]
    return [*command, *tiny(*more), *(["--base", str(base)] if base else [])]


# File operations that Python's audit hooks report; `open` only when it may write.
_OPERATIONS = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate",
    "tempfile.mkstemp", "shutil.copytree", "shutil.copyfile", "shutil.rmtree",
}  # fmt: skip


def operations_below(folder: Path, before: Callable[[int], None]) -> None:
    """Call ``before`` with the number of every file operation below a folder from now on."""
    count = 0
    place = str(folder)

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in _OPERATIONS or not any(str(one).startswith(place) for one in values[:2]):
            return
        if event == "open" and not (values[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        count += 1
        before(count)

    sys.addaudithook(hook)


def start(
    arguments: Sequence[str],
    log: Path,
    prepare: Callable[[], None] = lambda: None,
    minutes: float = OFTEN,
) -> int:
    """Begin a command in a process and session of its own; return the process's number.

    Args:
        arguments: Of the command.
        log: Where its output goes.
        prepare: Called in the process before it begins.
        minutes: Between two saves of a step.
    """
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setsid()
        # pytest and earlier trials may have left handlers.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["nacre", *arguments]
        torch.set_num_threads(1)
        be_often(minutes)
        prepare()
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait(process: int, seconds: float = 240) -> int:
    """Return how a process ended: its exit code, or minus the signal."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise TimeoutError(f"process {process} did not end in {seconds} s")


def kill_after(process: int, seconds: float) -> int:
    """Kill a process with -9 after a while; return how it ended."""
    timer = threading.Timer(seconds, os.kill, (process, signal.SIGKILL))
    timer.start()
    try:
        return wait(process)
    finally:
        timer.cancel()
        timer.join()


def survivors(session: int, seconds: float = 20.0) -> list[int]:
    """Return the processes of a session that are alive a while after its leader died."""
    until = time.monotonic() + seconds
    while alive := _members(session):
        if time.monotonic() > until:
            return alive
        time.sleep(0.02)
    return []


def _members(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def digest(folder: Path) -> str:
    """Return the sha256 of all tensors and metrics below a folder of runs."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("model.safetensors")):
        whole.update(str(path.relative_to(folder)).encode())
        with safe_open(path, framework="np") as file:
            for name in sorted(file.keys()):
                whole.update(name.encode() + file.get_tensor(name).tobytes())
    for path in sorted([*folder.rglob("metrics.json"), *folder.rglob("tuning.json")]):
        whole.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return whole.hexdigest()


def events(run: Path) -> list[tuple[Any, ...]]:
    """Return what a run's events say of its learning, whatever interrupted it."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    keys = ("event", "step", "iteration", "losses", "mean_iou")
    kept = [one for one in lines if one["event"] in ("train", "learnt", "end")]
    return [tuple(str(one.get(key)) for key in keys) for one in kept]


def leftovers(folder: Path) -> list[str]:
    """Return what a finished run should not leave, or lacks."""
    hidden = [str(path.relative_to(folder)) for path in folder.rglob(".*")]
    stale = [str(path.relative_to(folder)) for path in folder.rglob("resume.safetensors")]
    models = folder.rglob("model.safetensors")
    lacking = [f"no {path}" for path in models if not path.with_suffix(".json").exists()]
    return hidden + stale + lacking
