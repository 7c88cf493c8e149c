"""SLURM's commands as one program, for one machine: a job is a process, and nobody waits.

Its first argument is the command's name: sbatch FILE, srun …, scontrol requeue ID, scancel ID,
sacct. The folder of its state is in FAKE_SLURM.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ.get("FAKE_SLURM", "."))


def sbatch(file: str) -> None:
    number = len(list(STATE.glob("*.sh"))) + 1
    (STATE / f"{number}.sh").write_text(Path(file).read_text())
    print(f"Submitted batch job {number}")
    if "FAKE_SLURM_HOLDS" not in os.environ:
        _start(str(number), None)


def _start(number: str, after: int | None) -> None:
    env = {"SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}
    wait = "" if after is None else f"while kill -0 {after} 2>/dev/null; do sleep 0.1; done; "
    subprocess.Popen(
        ["bash", "-c", f"{wait}exec bash {STATE / number}.sh"],
        env={**os.environ, **env},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def srun(*arguments: str) -> None:
    number = os.environ["SLURM_JOB_ID"]
    options, command = [], list(arguments)
    while command[0].startswith("--"):
        options.append(command.pop(0))
        if options[-1] in ("--output", "--error"):
            options.append(command.pop(0))
    if "FAKE_SLURM_FAILS" in os.environ:
        command = ["false"]
    log = os.open(STATE / f"{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    (STATE / f"{number}.task").write_text(str(os.getpid()))
    with (STATE / f"{number}.starts").open("a") as starts:
        starts.write(f"{time.time()}\n")
    os.execvp(command[0], command)


def scontrol(what: str, number: str) -> None:
    assert what == "requeue"
    _start(number, int((STATE / f"{number}.task").read_text()))


def scancel(number: str) -> None:
    (STATE / f"{number}.canceled").touch()
    task = STATE / f"{number}.task"
    if task.exists():
        number = task.read_text()
        below = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        for process in [*below, number]:  # SLURM signals every process of a job
            os.kill(int(process), signal.SIGTERM)


def sacct(*arguments: str) -> None:
    print("JobID|State|NodeList")
    for script in STATE.glob("*.sh"):
        task = script.with_suffix(".task")
        alive = task.exists() and Path("/proc", task.read_text()).exists()
        state = "RUNNING" if alive else "COMPLETED" if task.exists() else "PENDING"
        print(f"{script.stem}|{state}|here")


def install(folder: Path) -> None:
    """Put the commands into a folder for PATH."""
    folder.mkdir()
    for name in ("sbatch", "srun", "scontrol", "scancel", "sacct"):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        (folder / name).chmod(0o755)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
