"""One of two processes that leave their group in different ways; see test_leaving.py.

python leaving.py run OUT              a real run, then the names of the group's threads
python leaving.py starved ENDING PORT …    a forked process for each port, and its exit code

A forked process gives the group's threads idle priority on the main thread's core. Then a thread
that frees a tensor does so as late as on a very busy machine.
"""

import os
import sys
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nacre.utils.distributed import exit_process, init_distributed, leave_distributed

HELD = []


def group_threads() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks]
    return [name for name in names if "gloo" in name]


def starve() -> None:
    main = os.getpid()
    for task in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(task, {0})
        if task != main:
            os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))


def use_ddp() -> None:
    network = DistributedDataParallel(torch.nn.Linear(8, 1))
    network.itself = [network]  # a cycle, which only the garbage collector frees
    network(torch.randn(4, 8)).sum().backward()


def end(ending: str) -> None:
    """Use a group, then end this process."""
    init_distributed("cpu")
    if ending == "leave-with-ddp":
        use_ddp()
    if ending == "exit-holding-the-group":
        HELD.append(dist.distributed_c10d._get_default_group())
    starve()
    dist.all_reduce(torch.ones(1000))  # a temporary: a thread of the group may free it last
    if ending.startswith("exit"):
        exit_process(3)
    leave_distributed()


def starved(ending: str, ports: list[str]) -> None:
    """Fork processes that end so, one after another, and print their exit codes."""
    codes = []
    for port in ports:
        child = os.fork()
        if not child:
            os.environ["MASTER_PORT"] = port
            end(ending)
            sys.exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(*codes)


def run(out: Path) -> None:
    """Carry out a run, leave, and print which threads of the group are left."""
    from nacre.runs.run import run_scenario
    from tiny_runs import tiny_config

    run_scenario(tiny_config(scenario="scenes/4-4/overlapped"), out)
    leave_distributed()
    print("threads:", *group_threads())


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "run":
        run(Path(sys.argv[2]))
    else:
        starved(sys.argv[2], sys.argv[3:])
