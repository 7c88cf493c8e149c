"""Kill runs, grids and searches hundreds of times and count what comes of it.

python tests/kills/count.py operations           before every file operation of a run
python tests/kills/count.py base                 the same with --base
python tests/kills/count.py moments --kills 200  at random moments, methods and workers in turn
python tests/kills/count.py tune --kills 30      at random moments of a search
python tests/kills/count.py grid --kills 12      at random moments of a grid, the real command

Every run goes on after its kills and must end as an uninterrupted one: the same tensors, metrics
and events, nothing left over, no process alive when its parent has been dead for a while, no start
refused. The exit code says whether all did.
"""

import argparse
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from killing import (
    digest,
    events,
    kill_after,
    leftovers,
    operations_below,
    run_command,
    start,
    survivors,
    tiny,
    wait,
)

from nacre.sweeps.tune import tune as search

Faults = list[str]


def whole(arguments: list[str], out: Path, prepare: Callable[[], None] = lambda: None) -> float:
    """Carry out a command undisturbed; return its seconds."""
    began = time.monotonic()
    code = wait(start(arguments, out.with_suffix(".log"), prepare), 600)
    assert code == 0, out.with_suffix(".log").read_text()
    return time.monotonic() - began


def compare(out: Path, reference: Path, code: int) -> Faults:
    """Return what is wrong with a folder whose command has gone on to its end."""
    if code != 0:
        return [f"refused: {out.with_suffix('.log').read_text().splitlines()[-1]}"]
    faults = [f"left over: {left}" for left in leftovers(out)]
    if digest(out) != digest(reference):
        faults.append("other tensors or metrics")
    for run in sorted(path.parent for path in reference.rglob("events.jsonl")):
        if events(out / run.relative_to(reference)) != events(run):
            faults.append(f"other events in {run.relative_to(reference)}")
    return faults


def kill_at(number: int, target: int) -> None:
    """Kill this process if it is at this operation."""
    if number == target:
        os.kill(os.getpid(), signal.SIGKILL)


def operations(work: Path, kills: int, with_base: bool) -> tuple[int, int, list[Faults]]:
    """Kill a run before each of its file operations, or before so many spread over all."""
    reference, base = work / "reference", work / "base"
    whole(run_command("rw", base), base)
    command = partial(run_command, "mib", base=base if with_base else None)
    whole(command(reference), reference)
    counted = work / "counted"
    log = work / "count.txt"
    wait(start(command(counted), counted.with_suffix(".log"),
               lambda: operations_below(counted, lambda n: log.write_text(str(n)))))  # fmt: skip
    total = int(log.read_text())
    chosen = range(1, total + 1)
    if kills < total:
        chosen = range(1, total + 1, -(-total // kills))
    results = []
    for target in chosen:
        out = work / f"at-{target}"
        prepare = partial(operations_below, out, partial(kill_at, target=target))
        killed = wait(start(command(out), out.with_suffix(".log"), prepare))
        faults = [] if killed == -signal.SIGKILL else [f"operation {target} ended with {killed}"]
        faults += compare(out, reference, wait(start(command(out), out.with_suffix(".log"))))
        results.append(faults)
        shutil.rmtree(out, ignore_errors=True)
    return len(chosen), total, results


def _with_workers(method: str, workers: str, out: Path) -> list[str]:
    return run_command(method, out, f"train.num_workers={workers}")


def moments(work: Path, kills: int, kinds: list[tuple[str, str]]) -> tuple[int, list[Faults]]:
    """Kill runs of several methods at random moments, each up to four times."""
    rng = random.Random(1)
    done, results = 0, []
    seconds: dict[str, float] = {}
    while done < kills:
        method, workers = kinds[len(results) % len(kinds)]
        name = f"{method}-{workers}"
        reference, out = work / name, work / f"{name}-{len(results)}"
        command = partial(_with_workers, method, workers)
        if name not in seconds:
            seconds[name] = whole(command(reference), reference)
        faults: Faults = []
        for _ in range(rng.randint(1, 4)):
            process = start(command(out), out.with_suffix(".log"))
            if kill_after(process, rng.uniform(0, seconds[name])) != -signal.SIGKILL:
                break
            done += 1
            faults += [f"alive: {one}" for one in survivors(process)]
        faults += compare(out, reference, wait(start(command(out), out.with_suffix(".log"))))
        results.append(faults)
        shutil.rmtree(out, ignore_errors=True)
    return done, results


def _measure_anything() -> None:
    """So tiny a network learns nothing of the new classes; the search needs figures to compare."""
    search.accuracy = lambda metrics: float(metrics["mean_iou"]["all_with_background"])


def tuning(work: Path, kills: int) -> tuple[int, list[Faults]]:
    """Kill searches for a weight at random moments."""
    rng = random.Random(2)
    reference = work / "reference"

    def command(out: Path) -> list[str]:
        common = ["tune", "scenes/4-4/overlapped", "--method", "lwf", "--out", str(out)]
        return [*common, *tiny()]

    seconds = whole(command(reference), reference, _measure_anything)
    done, results = 0, []
    while done < kills:
        out = work / f"tune-{len(results)}"
        faults: Faults = []
        for _ in range(rng.randint(2, 5)):
            process = start(command(out), out.with_suffix(".log"), _measure_anything)
            if kill_after(process, rng.uniform(0, 0.7 * seconds)) != -signal.SIGKILL:
                break
            done += 1
            faults += [f"alive: {one}" for one in survivors(process)]
        last = start(command(out), out.with_suffix(".log"), _measure_anything)
        faults += compare(out, reference, wait(last, 300))
        results.append(faults)
        shutil.rmtree(out, ignore_errors=True)
    return done, results


def grids(work: Path, kills: int) -> tuple[int, list[Faults]]:
    """Kill grids of four runs at random moments; their runs must end with them, and save."""
    rng = random.Random(3)
    reference = work / "reference"
    names = "scenes/4-4/overlapped,scenes/4-2-2/overlapped"

    def command(out: Path) -> list[str]:
        options = ["--scenarios", names, "--methods", "ft,mib", "--jobs", "2", "--out", str(out)]
        return [sys.executable, "-m", "nacre", "grid", *options, *tiny()]

    def begin(out: Path) -> subprocess.Popen[bytes]:
        with out.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(command(out), stdout=log, stderr=log)

    began = time.monotonic()
    assert begin(reference).wait() == 0, reference.with_suffix(".log").read_text()
    seconds = time.monotonic() - began
    done, results = 0, []
    while done < kills:
        out = work / f"grid-{len(results)}"
        faults: Faults = []
        for _ in range(3):
            process = begin(out)
            try:
                process.wait(rng.uniform(0, 0.6 * seconds))
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                done += 1
        faults += compare(out, reference, begin(out).wait())
        alive = [one for one in Path("/proc").glob("[0-9]*/cmdline") if str(out) in _text(one)]
        results.append(faults + [f"alive: {one}" for one in alive])
        shutil.rmtree(out, ignore_errors=True)
    return done, results


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def main() -> None:
    """Kill, count and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("operations", "base", "moments", "tune", "grid"))
    parser.add_argument("--kills", type=int, default=10**6, help="how many, about")
    arguments = parser.parse_args()
    kills = arguments.kills
    with tempfile.TemporaryDirectory(prefix="nacre-kills-") as folder:
        work, note = Path(folder), ""
        if arguments.what in ("operations", "base"):
            done, total, results = operations(work, kills, arguments.what == "base")
            note = f" (of {total} file operations)"
        elif arguments.what == "moments":
            kinds = [("mib", "0"), ("rw", "0"), ("mib", "2"), ("pi", "0"), ("lwf-mc", "2")]
            done, results = moments(work, min(kills, 1000), kinds)
        else:
            kind = {"tune": tuning, "grid": grids}[arguments.what]
            done, results = kind(work, min(kills, 1000))
    bad = collections.Counter(fault for faults in results for fault in faults)
    fine = sum(not faults for faults in results)
    print(f"{arguments.what}: {done} kills{note}, {fine} of {len(results)} ended as undisturbed")
    for fault, count in bad.most_common():
        print(f"  {count} x {fault}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
