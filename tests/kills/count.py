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
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM
from typing import Any

from killing import await_, children, compare, operations_below, start, survivors, wait

from nacre.sweeps.tune import tune as search
from noise_data import noise_folder
from tiny_runs import TINY

SAVED, ENDED = 130, 2
SELDOM = 10.0
"""Minutes between two saves of a step: what is saved is saved by the signal."""

SECTIONS = {name: keys.items() for name, keys in TINY.items() if isinstance(keys, dict)}
TINY_KEYS = [f"{name}.{key}={value}" for name, keys in SECTIONS.items() for key, value in keys]
SMALL = " ".join(f"--set {one}" for one in (*TINY_KEYS, "train.device=cpu"))
RUN = f"run {TINY['scenario']} --out {{out}} {SMALL}"
LONGER = RUN + " --set data.val=60 --set train.epochs=4"
"""Can be met in training and in testing."""

LEARN = "learn {work}/data --start {work}/model --out {out} --set images.crop_size=32"
PREDICT = "predict {work}/model {work}/data/images --out {out}"
TWO = "--scenarios scenes/4-4/overlapped,scenes/4-2-2/overlapped --methods ft,mib"


def measure_anything() -> None:
    """So tiny a network learns nothing of the new classes; the search needs figures to compare."""
    search.accuracy = lambda metrics: float(metrics["mean_iou"]["all_with_background"])


@dataclass(frozen=True)
class Command:
    """What is killed: before each of its file operations, or so often at random moments."""

    text: str
    moments: int = 0
    prepare: Callable[[], None] = lambda: None


COMMANDS = {
    "run": Command(RUN),
    "cache": Command(RUN + " --cache {work}/steps"),
    "learn": Command(LEARN + " --set train.iterations=6 --set train.batch_size=4"),
    "predict": Command(PREDICT + " --format masks,overlays,labelme,csv"),
    "export": Command("export {work}/model --out {out}/m.onnx"),
    "tune": Command(
        f"tune scenes/4-4/overlapped --method lwf --out {{out}} {SMALL}", 30, measure_anything
    ),
    "grid": Command(f"grid {TWO} --jobs 2 --out {{out}} {SMALL}", 12),
} | {
    f"moments of {method} with {workers} workers": Command(
        f"{RUN} --method {method} --set train.num_workers={workers}", 40
    )
    for method, workers in (("mib", 0), ("rw", 0), ("mib", 2), ("pi", 0), ("lwf-mc", 2))
}


@dataclass(frozen=True)
class Case:
    """A signal: what is sent, to whom, when, how the run must end; restarts are torchrun's."""

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
        "signal SIGTERM in testing": Case((SIGTERM,), moment="testing"),
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
            (SIGTERM,), 2, target, code=None, says="saved. Go on with:  torchrun", restarts=0
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


def _events(out: Path) -> str:
    return (out / "events.jsonl").read_text() if (out / "events.jsonl").exists() else ""


def _below(process: int) -> list[int]:
    return [one for child in children(process) for one in _below(child)] + [process]


def whole(text: str, work: Path, out: Path, **how: Any) -> float:
    """Carry out a command undisturbed; return its seconds."""
    began = time.monotonic()
    code = wait(start(text.format(work=work, out=out).split(), out.with_suffix(".log"), **how))
    assert code == 0, out.with_suffix(".log").read_text()
    return time.monotonic() - began


def try_kills(name: str, work: Path, kills: int) -> list[str]:
    """Kill a command again and again; return what was wrong afterwards."""
    command, rng, here = COMMANDS[name], random.Random(name), work / name.replace(" ", "-")
    here.mkdir()
    reference, count = here / "whole", here / "whole.count"
    if command.moments:
        seconds = whole(command.text, work, reference, prepare=command.prepare)
        places = [rng.uniform(0, 0.7 * seconds) for _ in range(min(kills, command.moments))]
    else:
        whole(command.text, work, reference, prepare=partial(operations_below, reference, count))
        total = len(count.read_text())
        places = rng.sample(range(1, total + 1), min(kills, total))
    faults = []
    while places:
        together = 3 if command.moments and places[2:] else 1
        chosen = [places.pop() for _ in range(together)]
        found = kill_and_go_on(command, chosen, work, here / f"killed-{len(places)}")
        faults += [f"killed at {chosen}: {fault}" for fault in found]
    return faults


def kill_and_go_on(command: Command, places: list[float], work: Path, out: Path) -> list[str]:
    """Kill a command at each of the places, let it go on, and return what was wrong."""
    arguments, log = command.text.format(work=work, out=out).split(), out.with_suffix(".log")
    faults = []
    for place in places:
        if command.moments:
            process = start(arguments, log, command.prepare)
            if wait(process, kill_after=place) != -SIGKILL:
                break
        else:
            process = start(arguments, log, partial(operations_below, out, int(place)))
            faults += ["was not killed"] * (wait(process) != -SIGKILL)
        if arguments[0] != "grid":  # whose runs save first
            faults += survivors(process, out)
    code = wait(start(arguments, log, command.prepare))
    faults += compare(out, out.with_name("whole"), code) + survivors(process, out)
    shutil.rmtree(out, ignore_errors=True)
    return faults


def try_signal(case: Case, work: Path, out: Path) -> list[str]:
    """Send a run a signal, let it go on, and return what was wrong."""
    text, log = f"{LONGER} --set train.num_workers={case.workers}", out.with_suffix(".log")
    often = {"minutes": 0.002 if case.moment == "saved" else SELDOM, "restarts": case.restarts}
    reference = work / ("alone" if case.restarts is None else "pair")
    if not reference.exists():
        whole(text, work, reference, **often)
    begin = partial(start, text.format(out=out).split(), log, **often)
    process = begin()
    await_(lambda: MOMENTS[case.moment](out), log)
    await_(lambda: TARGETS[case.target](process), log)
    for number in case.numbers:
        for one in TARGETS[case.target](process):
            os.kill(one, number)
        time.sleep(0.05)  # the same signal twice at once arrives once
    code, said = wait(process), log.read_text()
    faults = [] if case.code in (code, None) else [f"ended with {code}: {said[-200:]}"]
    faults += [] if case.says in said else [f"did not say {case.says!r}: {said[-200:]}"]
    faults += survivors(process, out)
    if (case.code, case.moment) == (SAVED, "training"):
        faults += [] if (out / "resume.safetensors").exists() else ["nothing was saved"]
    if case.target == "rank" and (out / "run.json").read_text().count('"time"') != 2:
        faults.append("was not begun twice")
    return faults + compare(out, reference, wait(begin()))


def main() -> None:
    """Try all that is called by one of the words, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of commands and signals; all unless given")
    parser.add_argument("--kills", type=int, default=1000, help="of each command, at most")
    given = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="nacre-kills-") as folder:
        inputs = Path(folder)
        noise_folder(inputs / "data", 6, (32, 40))
        whole(f"{RUN} --method rw", inputs, inputs / "model")
        for name in given.names or [*COMMANDS, *SIGNALS]:
            if name in COMMANDS:
                faults = try_kills(name, inputs, given.kills)
            else:
                faults = try_signal(SIGNALS[name], inputs, inputs / name.replace(" ", "-"))
            print(f"{name}: {'; '.join(faults) or 'as undisturbed'}", flush=True)
            bad += bool(faults)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
