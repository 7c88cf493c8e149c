"""The processes of a run: one, or those that ``torchrun`` started."""

import atexit
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nacre.errors import NacreError, ReportedElsewhere
from nacre.utils.device import choose_device

T = TypeVar("T")

# The main process may read a whole data set from a slow disk while the others wait. A dead process
# is detected without a timeout: its connections close, and torchrun ends the others.
_TIMEOUT = timedelta(hours=6)


@dataclass(frozen=True)
class Distributed:
    """This process, one of the processes of a run.

    Attributes:
        rank: Number of the process; process 0 writes files and prints.
        world_size: Number of processes.
        device: Device of the process.
    """

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True for the process that decides, writes and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over the processes; sums of CPU tensors do not wait for the GPU."""
        if self.world_size > 1:
            # nccl reduces CUDA tensors, gloo CPU tensors.
            moved = values if values.is_cuda else values.cpu()
            dist.all_reduce(moved)
            values = moved.to(values.device)
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether any process has set it."""
        if self.world_size == 1:
            return flags
        return tuple(bool(count) for count in self.sum(torch.tensor(flags, dtype=torch.int64)))

    def from_main(self, value: T) -> T:
        """Return the main process's value in all processes."""
        if self.world_size == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        received: T = values[0]
        return received

    def all(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        values: list[Any] = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def on_main(self, work: Callable[[], T]) -> T:
        """Call a function in the main process; return its result, or raise its error, in all."""
        if self.world_size == 1:
            return work()
        outcome: tuple[Any, str | None] = (None, None)
        if self.is_main:
            try:
                outcome = (work(), None)
            except NacreError as error:
                self.from_main((None, str(error)))
                raise
        value, problem = self.from_main(outcome)
        if problem is not None:
            raise ReportedElsewhere(problem)
        result: T = value
        return result


def init_distributed(device: str) -> Distributed:
    """Join the processes that torchrun started, if it did; return this process."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":  # the thread that pins memory would open another GPU
        torch.cuda.set_device(chosen)
    if world_size == 1:
        return Distributed(0, 1, chosen)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        # The first DDP object imports this module. If a group exists during the import, the module
        # keeps the group and its threads until the interpreter exits.
        importlib.import_module("torch._dynamo")
        dist.init_process_group(backend, timeout=_TIMEOUT)
        atexit.register(leave_distributed)
    return Distributed(dist.get_rank(), world_size, chosen)


def leave_distributed() -> None:
    """Leave the process group and end its threads.

    A gloo thread that frees a tensor while the interpreter exits aborts the process. The threads
    end with the last reference to the group, so unreachable DDP objects are collected first. In the
    other order the collector would hold the GIL while it waits for a thread that needs it. Call
    this where no frame refers to a DDP object.
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def exit_process(code: int) -> None:
    """Exit one of several processes without finalizing the interpreter."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def explain_lost_process(group: Distributed) -> Iterator[None]:
    """Report the death of another process in one sentence, in the main process only."""
    try:
        yield
    except RuntimeError as error:
        lost = ("connection closed", "connection reset", "broken pipe", "nccl", "socket")
        if group.world_size == 1 or not any(sign in str(error).lower() for sign in lost):
            raise
        message = "another process of this run ended; its error is above or in its log"
        raise (NacreError if group.is_main else ReportedElsewhere)(message) from error
