"""Starting nacre, killing it and looking at what is left: the parts of `count.py`.

A command runs in a process forked from one that has imported everything, so that a trial takes a
second. It is killed from outside, or by itself before its n-th file operation.
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import torch
import torch._dynamo  # which a trainer would import in every trial
import torch.distributed.run
from safetensors import safe_open

import nacre.runs.run
import nacre.sweeps.tune
import nacre.terminal  # noqa: F401  # all that a command imports when it is needed
from nacre.cli import main
from nacre.training import loop, trainer
from tiny_runs import learning

TORCHRUN = ("--standalone", "--nproc-per-node", "2", "--max-restarts")
RESULTS = ("metrics.json", "tuning.json")
# File operations that Python's audit hooks report; `open` only when it may write.
_OPERATIONS = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate",
    "tempfile.mkstemp", "shutil.copytree", "shutil.copyfile", "shutil.rmtree",
}  # fmt: skip


def be_often(minutes: float) -> None:
    """Have every update told, and a step saved every so many minutes."""
    loop.LOG_EVERY = 1
    trainer.CHECKPOINT_MINUTES = minutes


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
    minutes: float = 0.0002,
    restarts: int | None = None,
) -> int:
    """Begin a command in a process and session of its own; return the process's number.

    It saves every so many minutes. With restarts it is two processes under torchrun, which begins
    them again so often.
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
        torch.set_num_threads(1)
        prepare()
        if restarts is None:
            be_often(minutes)
            sys.argv = ["nacre", *arguments]
            main()
        else:
            pair = (*TORCHRUN, str(restarts), __file__, str(minutes))
            torch.distributed.run.main([*pair, *arguments])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait(process: int, seconds: float = 600, kill_after: float | None = None) -> int:
    """Return how a process ended, its exit code or minus the signal; kill it after a while."""
    began = time.monotonic()
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        passed = time.monotonic() - began
        if kill_after is not None and passed > kill_after:
            os.kill(process, signal.SIGKILL)
        if passed > seconds:
            os.killpg(process, signal.SIGKILL)
            raise TimeoutError(f"process {process} did not end in {seconds} s")
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


def survivors(session: int, out: Path, seconds: float = 20.0) -> list[str]:
    """Return the processes of a session or about a folder that are alive after a while."""
    until = time.monotonic() + seconds
    while alive := [one for one in Path("/proc").glob("[0-9]*") if _belongs(one, session, out)]:
        if time.monotonic() > until:
            return [f"alive: {one.name}" for one in alive]
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


def await_(ready: Callable[[], object], log: Path) -> None:
    """Wait until something is so."""
    until = time.monotonic() + 240
    while not ready():
        assert time.monotonic() < until, f"it never came so far: {log.read_text()[-500:]}"
        time.sleep(0.002)


def digest(folder: Path) -> dict[str, str]:
    """Return the sha256 of the results below a folder: tensors, figures, masks, graphs, events."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name == "model.safetensors":
            content = b"".join(_tensors(path))
        elif path.name in RESULTS or path.suffix in (".png", ".jpg", ".csv", ".onnx"):
            content = path.read_bytes()
        elif path.name == "events.jsonl":
            content = repr(learning(path.parent)).encode()
        else:
            continue
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def _tensors(path: Path) -> Iterable[bytes]:
    with safe_open(path, framework="np") as file:
        for name in sorted(file.keys()):
            yield name.encode() + file.get_tensor(name).tobytes()


def compare(out: Path, reference: Path, code: int) -> list[str]:
    """Return what is wrong with a folder whose command has gone on to its end."""
    if code != 0:
        return [f"refused: {out.with_suffix('.log').read_text()[-300:]}"]
    files = [path for path in out.rglob("*") if path.is_file() or path.name.startswith(".")]
    names = {str(path.relative_to(out)) for path in files}
    wanted = {str(path.relative_to(reference)) for path in reference.rglob("*") if path.is_file()}
    other = {name for name, _ in digest(out).items() ^ digest(reference).items()}
    return [
        *(f"left over: {name}" for name in sorted(names - wanted) if ".log" not in name),
        *(f"no {name}" for name in sorted(wanted - names)),
        *(f"other content: {name}" for name in sorted(other)),
    ]


if __name__ == "__main__":  # as torchrun calls it: killing.py MINUTES ARGUMENTS…
    be_often(float(sys.argv.pop(1)))
    main()
