"""Send signals to real runs, in every way that schedulers, terminals and torchrun do.

python tests/kills/signal_cases.py              all cases
python tests/kills/signal_cases.py 'workers 2'  those whose name holds these words

Each run must save where it can, leave no process and no lock behind, and end as an undisturbed one
when it goes on. The exit code says whether all did.
"""

import os
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

from killing import digest, events, leftovers, run_command, start, survivors, wait

SAVED, ENDED = 130, 2
SELDOM = 10.0
"""Minutes between two saves of a step: what is saved is saved by the signal."""
NACRE = [str(Path(__file__).with_name("often.py")), str(SELDOM)]


@dataclass(frozen=True)
class Case:
    """A case: what is sent, to whom, when, and how the run must end."""

    name: str
    numbers: tuple[int, ...]
    workers: int = 0
    target: str = "process"
    moment: str = "training"
    code: int = SAVED
    says: str = "interrupted; saved"


def _cases() -> list[Case]:
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    cases = [
        Case(
            f"{name} to the {target}, workers {workers}", (getattr(signal, name),), workers, target
        )
        for name in names
        for target in ("process", "group")
        for workers in (0, 2)
    ]
    term, interrupt = signal.SIGTERM, signal.SIGINT
    cases += [
        Case("SIGTERM twice at once to the group, workers 2", (term, term), 2, "group"),
        Case("SIGINT, then SIGTERM at once, workers 2", (interrupt, term), 2),
        Case("SIGTERM in testing, workers 0", (term,), 0, moment="testing"),
        Case("SIGTERM in testing to the group, workers 2", (term,), 2, "group", "testing"),
        Case("SIGHUP in testing, workers 0", (signal.SIGHUP,), 0, moment="testing"),
        Case("SIGTERM at the start, workers 0", (term,), moment="start", says="interrupted"),
    ]
    for name in ("SIGKILL", "SIGQUIT"):
        number = getattr(signal, name)
        cases.append(Case(f"{name} to the process, workers 2", (number,), 2, code=-number, says=""))
    died = "a process that loads pictures died"
    cases += [
        Case("SIGKILL to a worker", (signal.SIGKILL,), 2, "worker", code=ENDED, says=died),
        Case("SIGTERM to a worker", (signal.SIGTERM,), 2, "worker", code=0, says="after the last"),
    ]
    return cases


def _is_there(out: Path, moment: str) -> bool:
    if moment == "start":
        return out.exists()
    if moment == "testing":
        return (out / "step-0" / "model.safetensors").exists()
    path = out / "events.jsonl"
    return path.exists() and path.read_text().count('"train"') > 2


def _await(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 240
    while not ready():
        assert time.monotonic() < until, "it never came so far"
        time.sleep(0.002)


def _send(case: Case, process: int) -> None:
    for number in case.numbers:
        if case.target == "group":
            os.killpg(process, number)
        elif case.target == "worker":
            _await(lambda: bool(_children(process)))
            os.kill(_children(process)[0], number)
        else:
            os.kill(process, number)
        time.sleep(0.05)


def command(out: Path, workers: int) -> list[str]:
    """Return a run that is long enough to be met in training and in testing."""
    sizes = ("data.val=60", "train.epochs=4", f"train.num_workers={workers}")
    return run_command("mib", out, *sizes)


def begin(out: Path, workers: int) -> int:
    """Begin such a run; return its process."""
    return start(command(out, workers), out.with_suffix(".log"), minutes=SELDOM)


def try_case(case: Case, work: Path, reference: Path) -> list[str]:
    """Return what went wrong."""
    out = work / case.name.replace(" ", "-")
    log = out.with_suffix(".log")
    process = begin(out, case.workers)
    _await(lambda: _is_there(out, case.moment))
    _send(case, process)
    code = wait(process)
    faults = [] if code == case.code else [f"ended with {code}: {log.read_text()[-200:]}"]
    if case.says not in log.read_text():
        faults.append(f"did not say {case.says!r}: {log.read_text()[-200:]}")
    faults += [f"alive: {one}" for one in survivors(process)]
    is_saved = case.code == SAVED and case.moment == "training"
    if is_saved and not (out / "resume.safetensors").exists():
        faults.append("nothing was saved")
    return faults + _go_on(out, reference, wait(begin(out, case.workers)))


def _go_on(out: Path, reference: Path, code: int) -> list[str]:
    if code:
        return [f"could not go on: {out.with_suffix('.log').read_text()[-200:]}"]
    faults = leftovers(out)
    if digest(out) != digest(reference) or events(out) != events(reference):
        faults.append("other tensors, metrics or events")
    return faults


def try_torchrun(target: str, work: Path, reference: Path) -> list[str]:
    """Send SIGTERM to torchrun's agent, to its group, or to every process below it."""
    out = work / f"torchrun-{target}"
    log = out.with_suffix(".log")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", *NACRE]
    everything = [*torchrun, *command(out, 2)]
    faults = []
    with log.open("ab") as file:
        process = subprocess.Popen(everything, stdout=file, stderr=file, start_new_session=True)
        _await(lambda: _is_there(out, "training"))
        if target == "agent":
            process.terminate()
        elif target == "group":
            os.killpg(process.pid, signal.SIGTERM)
        else:
            for one in _below(process.pid):
                os.kill(one, signal.SIGTERM)
        process.wait(240)
        if "interrupted; saved. Go on with:  torchrun --nproc-per-node 2" not in log.read_text():
            faults.append(f"not saved: {log.read_text()[-300:]}")
        if not (out / "resume.safetensors").exists():
            faults.append("nothing was saved")
        code = subprocess.run(everything, stdout=file, stderr=file, check=False).returncode
    return faults + _go_on(out, reference, code)


def _children(process: int) -> list[int]:
    return [
        int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def _below(process: int) -> list[int]:
    return [one for child in _children(process) for one in _below(child)] + [process]


def _is_meant(name: str, words: tuple[str, ...]) -> bool:
    return not words or any(one in name for one in words)


def main(*words: str) -> None:
    """Try all cases, or those whose name holds one of these words."""
    trials: dict[str, Callable[[Path], list[str]]] = {}
    with tempfile.TemporaryDirectory(prefix="nacre-signals-") as folder:
        work = Path(folder)
        alone, pair = work / "alone", work / "pair"
        for case in _cases():
            trials[case.name] = partial(try_case, case, work, alone)
        for target in ("agent", "group", "tree"):
            name = f"SIGTERM to torchrun's {target}, workers 2"
            trials[name] = partial(try_torchrun, target, work, pair)
        chosen = {name: trial for name, trial in trials.items() if _is_meant(name, words)}
        assert wait(begin(alone, 0)) == 0
        if any("torchrun" in name for name in chosen):
            run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            run += ["--nproc-per-node", "2", *NACRE, *command(pair, 2)]
            subprocess.run(run, check=True, capture_output=True)
        bad = 0
        for name, trial in chosen.items():
            faults = trial()
            bad += bool(faults)
            print(f"{name}: {'; '.join(faults) or 'fine'}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} cases fine")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main(*sys.argv[1:])
