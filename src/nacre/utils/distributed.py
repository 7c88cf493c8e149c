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

# The main process may read a whole data set from a slow disk while the others wait for it. A
# process that died is noticed without this: its connections close, and torchrun ends the others.
_TIMEOUT = timedelta(hours=6)


@dataclass(frozen=True)
class Distributed:
    """This process among those of the run.

    Attributes:
        rank: Its number; 0 writes files and talks to the user.
        world_size: How many there are.
        device: Where it computes.
    """

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True if this process decides, writes and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor over the processes, where it is: numbers of the CPU wait for no GPU."""
        if self.world_size > 1:
            # nccl moves what is on a GPU, gloo only what is in the CPU's memory.
            moved = values if values.is_cuda else values.cpu()
            dist.all_reduce(moved)
            values = moved.to(values.device)
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return whether each flag is set in any of the processes."""
        if self.world_size == 1:
            return flags
        return tuple(bool(count) for count in self.sum(torch.tensor(flags, dtype=torch.int64)))

    def from_main(self, value: T) -> T:
        """Return the main process's value in all of them: it decides and tells."""
        if self.world_size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        received: T = box[0]
        return received

    def all(self, value: T) -> list[T]:
        """Return every process's value, by rank."""
        values: list[Any] = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def on_main(self, work: Callable[[], T]) -> T:
        """Work in the main process alone; all get what it returns, or end with its error."""
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
    """Join the processes that torchrun started, or be the only one."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":  # else the thread that pins memory would open another GPU
        torch.cuda.set_device(chosen)
    if world_size == 1:
        return Distributed(0, 1, chosen)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        # The first DDP object imports this. An import while a group exists keeps the group, and
        # with it the group's threads, until the interpreter ends.
        importlib.import_module("torch._dynamo")
        dist.init_process_group(backend, timeout=_TIMEOUT)
        atexit.register(leave_distributed)
    return Distributed(dist.get_rank(), world_size, chosen)


def leave_distributed() -> None:
    """Leave the process group and end its threads.

    A gloo thread that frees a tensor while the interpreter ends aborts the process. The threads end
    when the last reference to the group goes, so unreachable DDP objects are collected first. In
    the other order the collector would hold the GIL while it waits for a thread that wants it.
    Call this where no frame holds a DDP object any more.
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def exit_process(code: int) -> None:
    """End one of several processes at once, without ending the interpreter around its threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def explain_lost_process(group: Distributed) -> Iterator[None]:
    """Report the death of another process meanwhile in one sentence, by the main process."""
    try:
        yield
    except RuntimeError as error:
        lost = ("connection closed", "connection reset", "broken pipe", "nccl", "socket")
        if group.world_size == 1 or not any(sign in str(error).lower() for sign in lost):
            raise
        message = "another process of this run ended; its last words stand above or in its log"
        raise (NacreError if group.is_main else ReportedElsewhere)(message) from error
