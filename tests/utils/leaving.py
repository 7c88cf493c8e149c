"""One of two processes that leave their group; see test_leaving.py.

python leaving.py ENDING    prints the names of the group's threads before its end and at it
"""

import atexit
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nacre.utils.distributed import exit_process, init_distributed, leave_distributed

HELD = []


def group_threads() -> list[str]:
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if "gloo" in name]


def use_ddp() -> None:
    network = DistributedDataParallel(torch.nn.Linear(8, 1))
    network.itself = [network]  # a cycle, which only the garbage collector frees
    network(torch.randn(4, 8)).sum().backward()


def carry_out_a_run() -> None:
    from nacre.runs.run import run_scenario
    from tiny_runs import tiny_config

    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(shared)
    run_scenario(tiny_config(scenario="scenes/4-4/overlapped"), Path(shared[0]) / "run")


if __name__ == "__main__":
    torch.set_num_threads(1)
    init_distributed("cpu")
    if sys.argv[1] == "ddp":
        use_ddp()
    elif sys.argv[1] == "run":
        carry_out_a_run()
    print(len(group_threads()) > 0)
    if sys.argv[1] == "exit":
        HELD.append(dist.distributed_c10d._get_default_group())
        atexit.register(print, "the interpreter ended around the group's threads")
        exit_process(3)
    leave_distributed()
    print(*group_threads())
