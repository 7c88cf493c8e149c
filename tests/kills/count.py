"""Kill commands and send them signals, and count what comes of it.

python tests/kills/count.py                   the whole table: an hour
python tests/kills/count.py --kills 3 predict  what is called so, killed three times

A command that was killed is given again, and must end as an undisturbed one: the same tensors,
figures, masks and events, nothing left over, no process alive 20 s after its parent was killed,
no start refused. A signal must save what can be saved. The exit code says whether all did.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from killing import (
    await_,
    children,
    compare,
    kill_after,
    operations_below,
    run_command,
    start,
    survivors,
    tiny,
    wait,
)
from PIL import Image

from nacre.sweeps.tune import tune as search

SAVED, ENDED = 130, 2
LONGER = ("data.val=60", "train.epochs=4")
"""Runs that can be met in training and in testing."""

SELDOM = 10.0
"""Minutes between two saves of a step: what is saved is saved by the signal."""

NACRE = str(Path(__file__).with_name("often.py"))


def _measure_anything() -> None:
    """So tiny a network learns nothing of the new classes; the search needs figures to compare."""
    search.accuracy = lambda metrics: float(metrics["mean_iou"]["all_with_background"])


@dataclass(frozen=True)
class Command:
    """What is killed: before each of its file operations, or at random moments."""

    arguments: Callable[[Path, Path], list[str]]
    kills: int = 1000
    at_moments: bool = False
    prepare: Callable[[], None] = lambda: None


def _grid(out: Path) -> list[str]:
    names = "scenes/4-4/overlapped,scenes/4-2-2/overlapped"
    return ["grid", "--scenarios", names, "--methods", "ft,mib", "--jobs", "2", "--out", str(out)]


def _moments(method: str, workers: int, _: Path, out: Path) -> list[str]:
    return run_command(out, f"train.num_workers={workers}", method=method)


COMMANDS = {
    "run": Command(lambda work, out: run_command(out)),
    "base": Command(lambda work, out: [*run_command(out), "--base", str(work / "model")]),
    "learn": Command(
        lambda work, out: [
            *["learn", str(work / "data"), "--start", str(work / "model"), "--out", str(out)],
            *["--set", "train.iterations=6", "--set", "train.batch_size=4"],
            *["--set", "images.crop_size=32"],
        ]
    ),
    "predict": Command(
        lambda work, out: [
            *["predict", str(work / "model"), str(work / "data" / "images"), "--out", str(out)],
            *["--as", "masks,overlays,labelme,coco,csv"],
        ]
    ),
    "export": Command(
        lambda work, out: ["export", str(work / "model"), "--out", str(out / "m.onnx")]
    ),
    "tune": Command(
        lambda work, out: [
            *["tune", "scenes/4-4/overlapped", "--method", "lwf", "--out", str(out), *tiny()]
        ],
        kills=30,
        at_moments=True,
        prepare=_measure_anything,
    ),
    "grid": Command(lambda work, out: [*_grid(out), *tiny()], kills=12, at_moments=True),
} | {
    f"moments of {method} with {workers} workers": Command(
        partial(_moments, method, workers), kills=40, at_moments=True
    )
    for method, workers in (("mib", 0), ("rw", 0), ("mib", 2), ("pi", 0), ("lwf-mc", 2))
}


@dataclass(frozen=True)
class Case:
    """A signal: what is sent, to whom, when, and how the run must end."""

    numbers: tuple[int, ...]
    workers: int = 0
    target: str = "process"
    moment: str = "training"
    code: int = SAVED
    says: str = "interrupted; saved"


_TERM, _INT, _KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
SIGNALS = {
    f"signal {name} to the {target}, workers {workers}": Case(
        (getattr(signal, name),), workers, target
    )
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    for target in ("process", "group")
    for workers in (0, 2)
} | {
    "signal SIGTERM twice to the group": Case((_TERM, _TERM), 2, "group"),
    "signal SIGINT, then SIGTERM": Case((_INT, _TERM), 2),
    "signal SIGTERM in testing": Case((_TERM,), moment="testing"),
    "signal SIGTERM in testing to the group": Case((_TERM,), 2, "group", "testing"),
    "signal SIGHUP in testing": Case((signal.SIGHUP,), moment="testing"),
    "signal SIGTERM at the start": Case((_TERM,), moment="start", says="interrupted"),
    "signal SIGKILL": Case((_KILL,), 2, code=-_KILL, says=""),
    "signal SIGQUIT": Case((signal.SIGQUIT,), 2, code=-signal.SIGQUIT, says=""),
    "signal SIGKILL to a worker": Case(
        (_KILL,), 2, "worker", code=ENDED, says="a process that loads pictures died"
    ),
    "signal SIGTERM to a worker": Case((_TERM,), 2, "worker", code=0, says="after the last"),
}
TORCHRUN = ("agent", "group", "tree", "rank")


def make_inputs(work: Path) -> None:
    """Make a model and a data folder."""
    for name in ("images", "masks"):
        (work / "data" / name).mkdir(parents=True)
    for i in range(6):
        pixels = np.random.default_rng(i).integers(0, 255, (32, 40, 3), np.uint8)
        Image.fromarray(pixels).save(work / "data" / "images" / f"p{i}.png")
        mask = (pixels[..., 0] > 100).astype(np.uint8)
        Image.fromarray(mask).save(work / "data" / "masks" / f"p{i}.png")
    (work / "data" / "classes.yaml").write_text("classes: {1: weed}\nbackground: 0\n")
    whole(run_command(work / "model", method="rw"), work / "model")


def whole(arguments: list[str], out: Path, prepare: Callable[[], None] = lambda: None) -> float:
    """Carry out a command undisturbed; return its seconds."""
    began = time.monotonic()
    code = wait(start(arguments, out.with_suffix(".log"), prepare), 600)
    assert code == 0, out.with_suffix(".log").read_text()
    return time.monotonic() - began


def kill_command(command: Command, name: str, work: Path, kills: int) -> tuple[int, list[str]]:
    """Kill a command again and again; return how often, and what was wrong afterwards."""
    reference, rng = work / f"{name}-whole", random.Random(name)
    arguments = partial(command.arguments, work)
    seconds = whole(arguments(reference), reference, command.prepare)
    if command.at_moments:
        places = [rng.uniform(0, 0.7 * seconds) for _ in range(kills)]
    else:
        total = _count_operations(arguments, work / f"{name}-counted")
        places = sorted(rng.sample(range(1, total + 1), min(kills, total)))
    faults = []
    while places:
        out = work / f"{name}-{len(places)}"
        log = out.with_suffix(".log")
        for place in [places.pop() for _ in range(3 if command.at_moments and places[2:] else 1)]:
            at = f"{name} at {place}: "
            if command.at_moments:
                process = start(arguments(out), log, command.prepare)
                if kill_after(process, float(place)) != -signal.SIGKILL:
                    break
            else:
                process = start(arguments(out), log, partial(operations_below, out, int(place)))
                faults += [at + "was not killed"] * (wait(process) != -signal.SIGKILL)
            if name != "grid":  # whose runs save first
                faults += [f"{at}alive: {one}" for one in survivors(process, out)]
        code = wait(start(arguments(out), log, command.prepare), 300)
        faults += [at + fault for fault in compare(out, reference, code)]
        faults += [f"{at}alive: {one}" for one in survivors(process, out)]
        shutil.rmtree(out, ignore_errors=True)
    return kills, faults


def _count_operations(arguments: Callable[[Path], list[str]], out: Path) -> int:
    count = out.with_suffix(".count")
    prepare = partial(operations_below, out, count)
    whole(arguments(out), out, prepare)
    return len(count.read_text())


def _is_there(out: Path, moment: str) -> bool:
    if moment == "start":
        return out.exists()
    if moment == "testing":
        return (out / "step-0" / "model.safetensors").exists()
    path = out / "events.jsonl"
    return path.exists() and path.read_text().count('"train"') > 2


def try_signal(case: Case, out: Path, reference: Path) -> list[str]:
    """Send a run a signal, let it go on, and return what was wrong."""
    log = out.with_suffix(".log")
    command = run_command(out, *LONGER, f"train.num_workers={case.workers}")
    process = start(command, log, minutes=SELDOM)
    await_(lambda: _is_there(out, case.moment), log)
    if case.target == "worker":
        await_(lambda: bool(children(process)), log)
    for number in case.numbers:
        if case.target == "group":
            os.killpg(process, number)
        else:
            os.kill(children(process)[0] if case.target == "worker" else process, number)
        time.sleep(0.05)
    code = wait(process)
    faults = [] if code == case.code else [f"ended with {code}: {log.read_text()[-200:]}"]
    if case.says not in log.read_text():
        faults.append(f"did not say {case.says!r}: {log.read_text()[-200:]}")
    faults += [f"alive: {one}" for one in survivors(process, out)]
    if (case.code, case.moment) == (SAVED, "training"):
        faults += [] if (out / "resume.safetensors").exists() else ["nothing was saved"]
    return faults + compare(out, reference, wait(start(command, log, minutes=SELDOM)))


def try_torchrun(target: str, out: Path, reference: Path) -> list[str]:
    """Stop two processes by a signal, or kill one of them, which torchrun begins again."""
    log, is_killed = out.with_suffix(".log"), target == "rank"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    command += ["--max-restarts", "3" if is_killed else "0"]
    command += [NACRE, "0.002" if is_killed else str(SELDOM)]
    command += run_command(out, *LONGER, "train.num_workers=2")
    with log.open("ab") as file:
        agent = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        sign = '"saved"' if is_killed else '"train"'
        await_(lambda: (out / "events.jsonl").exists()
               and sign in (out / "events.jsonl").read_text(), log)  # fmt: skip
        if is_killed:
            os.kill(children(agent.pid)[1], _KILL)
        elif target == "group":
            os.killpg(agent.pid, _TERM)
        else:
            for one in [agent.pid] if target == "agent" else _below(agent.pid):
                os.kill(one, _TERM)
        code = agent.wait(240)
        faults = []
        if is_killed:
            begun = (out / "run.json").read_text().count('"time"')
            faults += [] if begun == 2 else [f"begun {begun} times"]
        else:
            if "interrupted; saved. Go on with:  torchrun" not in log.read_text():
                faults.append(f"not saved: {log.read_text()[-300:]}")
            code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
    return faults + compare(out, reference, code)


def _below(process: int) -> list[int]:
    return [one for child in children(process) for one in _below(child)] + [process]


def main() -> None:
    """Try all that is called by one of the words, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of commands and signals; all unless given")
    parser.add_argument("--kills", type=int, help="of each command, at most")
    given = parser.parse_args()
    everything = [*COMMANDS, *SIGNALS, *(f"torchrun {one}" for one in TORCHRUN)]
    bad = 0
    with tempfile.TemporaryDirectory(prefix="nacre-kills-") as folder:
        work = Path(folder)
        make_inputs(work)
        for name in given.names or everything:
            bad += bool(faults := _try(name, work, given.kills))
            print(f"{name}: {'; '.join(faults) or 'as undisturbed'}", flush=True)
    sys.exit(bool(bad))


def _try(name: str, work: Path, kills: int | None) -> list[str]:
    if name in COMMANDS:
        command = COMMANDS[name]
        return kill_command(command, name, work, min(kills or 1000, command.kills))[1]
    pair = name.startswith("torchrun ")
    reference, out = work / ("pair" if pair else "alone"), work / name.replace(" ", "-")
    if not reference.exists():
        if pair:
            alone = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            alone += ["--nproc-per-node", "2", NACRE, str(SELDOM)]
            alone += run_command(reference, *LONGER, "train.num_workers=2")
            subprocess.run(alone, check=True, capture_output=True)
        else:
            whole(run_command(reference, *LONGER), reference)
    if pair:
        return try_torchrun(name.partition(" ")[2], out, reference)
    return try_signal(SIGNALS[name], out, reference)


if __name__ == "__main__":
    main()
