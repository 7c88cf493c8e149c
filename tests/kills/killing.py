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

SETTINGS = (
    "data.train=48 data.val=12 data.size=32 data.seed=3 model.backbone=tiny "
    "model.decoder_channels=8 images.crop_size=32 images.augmentation=flip train.epochs=1 "
    "train.batch_size=8 train.lr=0.05 train.incremental_lr=0.01 train.device=cpu"
)
OFTEN = 0.0002
"""Minutes between two saves of a step."""


def tiny(*more: str) -> list[str]:
    """Return the options of runs that take a second."""
    return [part for text in (*SETTINGS.split(), *more) for part in ("--set", text)]


def run_command(out: Path, *more: str, method: str = "mib") -> list[str]:
    """Return the arguments of a tiny `nacre run`."""
    command = ["run", "scenes/4-2-2/overlapped", "--method", method, "--out", str(out)]
    return [*command, *tiny(*more)]


RESULTS = ("metrics.json", "tuning.json", "coco.json")
# File operations that Python's audit hooks report; `open` only when it may write.
_OPERATIONS = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate",
    "tempfile.mkstemp", "shutil.copytree", "shutil.copyfile", "shutil.rmtree",
}  # fmt: skip


def operations_below(folder: Path, target: int | Path) -> None:
    """Kill this process before its n-th file operation below a folder, or count them in a file."""
    count, place = 0, str(folder)

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in _OPERATIONS or not any(str(one).startswith(place) for one in values[:2]):
            return
        if event == "open" and not (values[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        count += 1
        if isinstance(target, Path):
            os.write(handle, b".")
        elif count == target:
            os.kill(os.getpid(), signal.SIGKILL)

    if isinstance(target, Path):
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
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


def survivors(session: int, out: Path, seconds: float = 20.0) -> list[int]:
    """Return the processes of a session or about a folder that are alive after a while."""
    until = time.monotonic() + seconds
    while alive := [one for one in Path("/proc").glob("[0-9]*") if _belongs(one, session, out)]:
        if time.monotonic() > until:
            return [int(one.name) for one in alive]
        time.sleep(0.02)
    return []


def _belongs(process: Path, session: int, out: Path) -> bool:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        words = (process / "cmdline").read_text().split("\0")
    except OSError:
        return False
    return fields[0] not in "ZX" and (int(fields[3]) == session or str(out) in words)


def children(process: int) -> list[int]:
    """Return the processes that a process started."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(one) for one in text.split()]


def await_(ready: Callable[[], bool], log: Path) -> None:
    """Wait until something is so."""
    until = time.monotonic() + 240
    while not ready():
        assert time.monotonic() < until, f"it never came so far: {log.read_text()[-500:]}"
        time.sleep(0.002)


def digest(folder: Path) -> dict[str, str]:
    """Return the sha256 of the results below a folder: tensors, figures, masks, graphs."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = b""
        if path.name == "model.safetensors":
            with safe_open(path, framework="np") as file:
                for name in sorted(file.keys()):
                    content += name.encode() + file.get_tensor(name).tobytes()
        elif path.name in RESULTS or path.suffix in (".png", ".jpg", ".csv", ".onnx"):
            content = path.read_bytes()
        elif path.name == "events.jsonl":
            content = repr(_learning(path)).encode()
        else:
            continue
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def _learning(path: Path) -> list[tuple[str, ...]]:
    """Return what a run's events say of its learning, whatever interrupted it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    keys = ("event", "step", "iteration", "losses", "mean_iou")
    kept = [one for one in lines if one["event"] in ("train", "learnt", "end")]
    return [tuple(str(one.get(key)) for key in keys) for one in kept]


def compare(out: Path, reference: Path, code: int) -> list[str]:
    """Return what is wrong with a folder whose command has gone on to its end."""
    if code != 0:
        return [f"refused: {out.with_suffix('.log').read_text()[-300:]}"]
    files = [path for path in out.rglob("*") if path.is_file() or path.name.startswith(".")]
    names = {str(path.relative_to(out)) for path in files}
    wanted = {str(path.relative_to(reference)) for path in reference.rglob("*") if path.is_file()}
    faults = [f"left over: {name}" for name in sorted(names - wanted) if ".log" not in name]
    faults += [f"no {name}" for name in sorted(wanted - names)]
    other = digest(out).items() ^ digest(reference).items()
    return faults + [f"other content: {name}" for name in sorted({name for name, _ in other})]
