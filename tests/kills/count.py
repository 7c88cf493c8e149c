"""Kill commands and send them signals, resume them, and compare the results.

python tests/kills/count.py                    everything: an hour
python tests/kills/count.py --kills 3 predict  one command, killed three times

A command that was killed is given again. It must end with the same tensors, metrics, masks and
events as one that ran undisturbed, leave no file behind, and never refuse to start. No process may
be alive 20 s after its parent was killed. A signal must save what can be saved.

A command runs in a process forked from one that has imported everything, so that a trial takes a
second. It is killed from outside, or kills itself before its n-th file operation.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import torch
import torch._dynamo  # which a trainer would import in every trial
import torch.distributed.run
from safetensors import safe_open

import nacre.runs.run
import nacre.terminal  # noqa: F401  # everything that a command imports late
from nacre.cli import main as nacre_main
from nacre.training import loop, trainer
from noise_data import noise_folder
from tiny_runs import TINY, learning

SAVED, ENDED = 130, 2
RARELY_MINUTES = 10.0
"""Between two saves of a step: only the signal saves."""

SECTIONS = {name: keys.items() for name, keys in TINY.items() if isinstance(keys, dict)}
TINY_KEYS = [f"{name}.{key}={value}" for name, keys in SECTIONS.items() for key, value in keys]
SMALL = " ".join(f"--set {one}" for one in (*TINY_KEYS, "train.device=cpu"))
RUN = f"run {TINY['scenario']} --out {{out}} {SMALL}"
LONGER = RUN + " --set data.val=60 --set train.epochs=4"
"""Long enough to receive a signal in training and in testing."""

TWO = "--scenarios scenes/4-4/overlapped,scenes/4-2-2/overlapped --methods ft,mib"
COMMANDS = {
    "run": RUN,
    "cache": RUN + " --cache {work}/steps",
    "learn": "learn {work}/data --start {work}/model --out {out} --set images.crop_size=32 "
    "--set train.iterations=6 --set train.batch_size=4",
    "predict": "predict {work}/model {work}/data/images --out {out} "
    "--format masks,overlays,labelme,csv",
    "export": "export {work}/model --out {out}/m.onnx",
}
"""Commands that are killed before each of their file operations."""

AT_RANDOM = {"grid": (12, f"grid {TWO} --jobs 2 --out {{out}} {SMALL}")} | {
    f"moments of {method} with {workers} workers": (
        40,
        f"{RUN} --method {method} --set train.num_workers={workers}",
    )
    for method, workers in (("mib", 0), ("rw", 0), ("mib", 2), ("pi", 0), ("lwf-mc", 2))
}
"""Commands that are killed at random moments, and how often."""


@dataclass(frozen=True)
class Case:
    """Signals, their target and moment, and how the run must end.

    With `restarts`, the run is two processes of torchrun, which restarts them as often.
    """

    numbers: tuple[int, ...]
    workers: int = 0
    target: str = "process"
    moment: str = "training"
    code: int | None = SAVED
    says: str = "interrupted; saved"
    restarts: int | None = None


SIGNALS = (
    {
        f"signal {name} to the {target}, workers {workers}": Case(
            (getattr(signal, name),), workers, target
        )
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
        for target in ("process", "group")
        for workers in (0, 2)
    }
    | {
        "signal SIGTERM twice to the group": Case((SIGTERM, SIGTERM), 2, "group"),
        "signal SIGINT, then SIGTERM": Case((SIGINT, SIGTERM), 2),
        "signal SIGTERM in testing to the group": Case((SIGTERM,), 2, "group", "testing"),
        "signal SIGHUP in testing": Case((SIGHUP,), moment="testing"),
        "signal SIGTERM at the start": Case((SIGTERM,), moment="start", says="interrupted"),
        "signal SIGKILL": Case((SIGKILL,), 2, code=-SIGKILL, says=""),
        "signal SIGQUIT": Case((SIGQUIT,), 2, code=-SIGQUIT, says=""),
        "signal SIGKILL to a worker": Case(
            (SIGKILL,), 2, "worker", code=ENDED, says="a data-loading worker died"
        ),
        "signal SIGTERM to a worker": Case((SIGTERM,), 2, "worker", code=0, says="after the last"),
        "torchrun rank": Case((SIGKILL,), 2, "rank", "saved", 0, "", restarts=3),
    }
    | {
        f"torchrun {name}": Case(
            (SIGTERM,), 2, target, code=None, says="saved. Resume with:  torchrun", restarts=0
        )
        for name, target in (("agent", "process"), ("group", "group"), ("tree", "tree"))
    }
)
MOMENTS: dict[str, Callable[[Path], object]] = {
    "start": Path.exists,
    "testing": lambda out: (out / "step-0" / "model.safetensors").exists(),
    "training": lambda out: _events(out).count('"train"') > 2,
    "saved": lambda out: '"saved"' in _events(out),
}
TARGETS: dict[str, Callable[[int], list[int]]] = {
    "process": lambda process: [process],
    "group": lambda process: [-process],
    "worker": lambda process: children(process)[:1],
    "rank": lambda process: children(process)[1:2],
    "tree": lambda process: _below(process),
}
TORCHRUN = ("--standalone", "--nproc-per-node", "2", "--max-restarts")
# File operations that Python's audit hooks report; `open` only if it may write.
OPERATIONS = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate",
    "tempfile.mkstemp", "shutil.copytree", "shutil.copyfile", "shutil.rmtree",
}  # fmt: skip


def try_kills(name: str, work: Path, kills: int) -> list[str]:
    """Kill a command again and again; return all faults."""
    rng, here = random.Random(name), work / name.replace(" ", "-")
    here.mkdir()
    reference, count = here / "whole", here / "whole.count"
    if name in AT_RANDOM:
        times, text = AT_RANDOM[name]
        seconds = run_whole(text, work, reference)
        places = [rng.uniform(0, 0.7 * seconds) for _ in range(min(kills, times))]
    else:
        text = COMMANDS[name]
        run_whole(text, work, reference, prepare=partial(watch_operations, reference, count))
        total = len(count.read_text())
        places = rng.sample(range(1, total + 1), min(kills, total))
    faults = []
    while places:
        together = 3 if name in AT_RANDOM and places[2:] else 1
        chosen = [places.pop() for _ in range(together)]
        out = here / f"killed-{len(places)}"
        found = kill_and_resume(text, chosen, name in AT_RANDOM, work, out)
        faults += [f"killed at {chosen}: {fault}" for fault in found]
    return faults


def kill_and_resume(
    text: str, places: list[float], at_random: bool, work: Path, out: Path
) -> list[str]:
    """Kill a command at each of the places, let it finish, and return all faults."""
    arguments, log = text.format(work=work, out=out).split(), out.with_suffix(".log")
    faults = []
    for place in places:
        if at_random:
            process = start(arguments, log)
            if wait(process, kill_after=place) != -SIGKILL:
                break
        else:
            process = start(arguments, log, partial(watch_operations, out, int(place)))
            faults += ["was not killed"] * (wait(process) != -SIGKILL)
        if arguments[0] != "grid":  # its runs save first
            faults += survivors(process, out)
    code = wait(start(arguments, log))
    faults += compare(out, out.with_name("whole"), code) + survivors(process, out)
    shutil.rmtree(out, ignore_errors=True)
    return faults


def try_signal(case: Case, work: Path, out: Path) -> list[str]:
    """Send a run a signal, let it finish, and return all faults."""
    text, log = f"{LONGER} --set train.num_workers={case.workers}", out.with_suffix(".log")
    minutes = 0.002 if case.moment == "saved" else RARELY_MINUTES
    how: dict[str, Any] = {"minutes": minutes, "restarts": case.restarts}
    reference = work / ("alone" if case.restarts is None else "pair")
    if not reference.exists():
        run_whole(text, work, reference, **how)
    begin = partial(start, text.format(out=out).split(), log, **how)
    process = begin()
    await_(lambda: MOMENTS[case.moment](out), log)
    await_(lambda: TARGETS[case.target](process), log)
    for number in case.numbers:
        for target in TARGETS[case.target](process):
            os.kill(target, number)
        time.sleep(0.05)  # the same signal twice at once arrives once
    code, printed = wait(process), log.read_text()
    faults = [] if case.code in (code, None) else [f"ended with {code}: {printed[-200:]}"]
    faults += [] if case.says in printed else [f"did not say {case.says!r}: {printed[-200:]}"]
    faults += survivors(process, out)
    if (case.code, case.moment) == (SAVED, "training"):
        faults += [] if (out / "resume.safetensors").exists() else ["nothing was saved"]
    if case.target == "rank" and (out / "run.json").read_text().count('"time"') != 2:
        faults.append("was not begun twice")
    return faults + compare(out, reference, wait(begin()))


def run_whole(text: str, work: Path, out: Path, **how: Any) -> float:
    """Run a command undisturbed; return its seconds."""
    began = time.monotonic()
    code = wait(start(text.format(work=work, out=out).split(), out.with_suffix(".log"), **how))
    assert code == 0, out.with_suffix(".log").read_text()
    return time.monotonic() - began


def start(
    arguments: Sequence[str],
    log: Path,
    prepare: Callable[[], None] = lambda: None,
    minutes: float = 0.0002,
    restarts: int | None = None,
) -> int:
    """Begin a command, which saves every few minutes, in its own session; return its process."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setsid()
        # pytest and earlier trials may have left handlers.
        for number in (SIGINT, SIGTERM, SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        torch.set_num_threads(1)
        prepare()
        if restarts is None:
            run_command(minutes, arguments)
        else:
            pair = (*TORCHRUN, str(restarts), __file__, "--as-rank", str(minutes))
            torch.distributed.run.main([*pair, *arguments])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def run_command(minutes: float, arguments: Sequence[str]) -> None:
    """Run a command that logs every update and saves every few minutes."""
    loop.LOG_EVERY, trainer.CHECKPOINT_MINUTES = 1, minutes
    sys.argv = ["nacre", *arguments]
    nacre_main()


def watch_operations(folder: Path, target: int | Path) -> None:
    """Kill this process before its n-th file operation in a folder, or count them in a file."""
    count, place = 0, str(folder)

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in OPERATIONS or not any(str(one).startswith(place) for one in values[:2]):
            return
        if event == "open" and not (values[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        count += 1
        if isinstance(target, Path):
            os.write(handle, b".")
        elif count == target:
            os.kill(os.getpid(), SIGKILL)

    if isinstance(target, Path):
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.addaudithook(hook)


def wait(process: int, seconds: float = 600, kill_after: float | None = None) -> int:
    """Return a process's exit code, or minus its signal; kill it after a while if requested."""
    began = time.monotonic()
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        passed = time.monotonic() - began
        if kill_after is not None and passed > kill_after:
            os.kill(process, SIGKILL)
        if passed > seconds:
            os.killpg(process, SIGKILL)
            raise TimeoutError(f"process {process} did not end in {seconds} s")
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


def await_(is_ready: Callable[[], object], log: Path) -> None:
    """Wait for a condition."""
    until = time.monotonic() + 240
    while not is_ready():
        assert time.monotonic() < until, f"timeout: {log.read_text()[-500:]}"
        time.sleep(0.002)


def survivors(session: int, out: Path, seconds: float = 20.0) -> list[str]:
    """Return the processes of a session or with a folder that are alive after a while."""
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


def _below(process: int) -> list[int]:
    return [one for child in children(process) for one in _below(child)] + [process]


def _events(out: Path) -> str:
    return (out / "events.jsonl").read_text() if (out / "events.jsonl").exists() else ""


def compare(out: Path, reference: Path, code: int) -> list[str]:
    """Return the faults of a folder whose command has finished."""
    if code != 0:
        return [f"refused: {out.with_suffix('.log').read_text()[-300:]}"]
    files = [path for path in out.rglob("*") if path.is_file() or path.name.startswith(".")]
    names = {str(path.relative_to(out)) for path in files}
    expected = {str(path.relative_to(reference)) for path in reference.rglob("*") if path.is_file()}
    changed = {name for name, _ in digests(out).items() ^ digests(reference).items()}
    return [
        *(f"left over: {name}" for name in sorted(names - expected) if ".log" not in name),
        *(f"no {name}" for name in sorted(expected - names)),
        *(f"other content: {name}" for name in sorted(changed)),
    ]


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of the results in a folder: tensors, metrics, masks, graphs, events."""
    results = {}
    for path in sorted(folder.rglob("*")):
        if path.name == "model.safetensors":
            content = b"".join(_tensors(path))
        elif path.name == "metrics.json" or path.suffix in (".png", ".jpg", ".csv", ".onnx"):
            content = path.read_bytes()
        elif path.name == "events.jsonl":
            content = repr(learning(path.parent)).encode()
        else:
            continue
        results[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return results


def _tensors(path: Path) -> Iterable[bytes]:
    with safe_open(path, framework="np") as file:
        for name in sorted(file.keys()):
            yield name.encode() + file.get_tensor(name).tobytes()


def main() -> None:
    """Try the named commands and signals, and print their faults."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="commands and signals; default: all")
    parser.add_argument("--kills", type=int, default=1000, help="maximum for each command")
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="nacre-kills-") as folder:
        work = Path(folder)
        noise_folder(work / "data", 6, (32, 40))
        run_whole(f"{RUN} --method rw", work, work / "model")
        for name in options.names or [*COMMANDS, *AT_RANDOM, *SIGNALS]:
            if name in SIGNALS:
                faults = try_signal(SIGNALS[name], work, work / name.replace(" ", "-"))
            else:
                faults = try_kills(name, work, options.kills)
            print(f"{name}: {'; '.join(faults) or 'as undisturbed'}", flush=True)
            bad += bool(faults)
    sys.exit(bool(bad))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:  # by torchrun: --as-rank MINUTES ARGUMENTS…
        run_command(float(sys.argv[2]), sys.argv[3:])
    else:
        main()
