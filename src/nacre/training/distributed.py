"""The training processes of a run, one or those of ``torchrun``; their device and precision."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nacre.utils.device import choose_device


@dataclass(frozen=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: Its number; 0 writes files and talks to the user.
        size: How many there are.
        device: Where it computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor over the processes."""
        if self.size > 1:
            # nccl moves only what is on its device, gloo only what is on the CPU.
            moved = values.to(self.device)
            dist.all_reduce(moved)
            values = moved.to(values.device)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any of the processes."""
        return bool(self.sum(torch.tensor(int(flag)))) if self.size > 1 else flag

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()


def join_processes(device: str) -> Processes:
    """Join the processes that torchrun started, or be the only one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        return Processes(0, 1, chosen)
    if not dist.is_initialized():
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    return Processes(dist.get_rank(), size, chosen)
