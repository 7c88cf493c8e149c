"""The training processes of a run, one or those of ``torchrun``; their device and precision."""

import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nacre.errors import NacreError


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


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """Return the device a config asks for; ``auto`` takes the fastest that is there."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise NacreError(
            f"train.device: {device!r} cannot be used here ({str(error).splitlines()[0]}); "
            "'auto' takes what is there"
        ) from error
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", local_rank)
    return chosen


@dataclass(frozen=True)
class Precision:
    """In which numbers the networks compute, and why.

    Attributes:
        dtype: Of the networks' activations; the losses are always float32.
        reason: For the log.
    """

    dtype: torch.dtype
    reason: str

    @property
    def is_mixed(self) -> bool:
        """Whether autocast is needed."""
        return self.dtype != torch.float32

    @property
    def needs_scaling(self) -> bool:
        """Whether gradients would vanish without a scale on the loss."""
        return self.dtype == torch.float16


def choose_precision(wanted: str, device: torch.device) -> Precision:
    """Return the precision a config asks for; ``auto`` goes by what the device is good at."""
    if wanted != "auto":
        return Precision(getattr(torch, wanted), f"{wanted}: as configured")
    if device.type != "cuda":
        return Precision(torch.float32, f"float32: mixed precision does not pay on {device.type}")
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Precision(torch.bfloat16, "bfloat16: the GPU computes it natively")
    return Precision(torch.float16, "float16 with a loss scale: the GPU has no native bfloat16")


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes held so far, on a GPU or by this process; None if nobody knows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
