"""The losses since the last line of events: they stay on the device until the line is written.

A window is read when a line of events is due, before a checkpoint is written, and after so many
updates that its numbers would take room. Whoever reads it waits until the device has made all
updates so far; in between nobody waits. A loss that is not a number is therefore noticed a few
updates late, and told with the iteration that it belongs to.
"""

import math
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from nacre.training.events import Trained
from nacre.training.trainer import Trainer
from nacre.utils.device import peak_memory

T = TypeVar("T")

LOG_EVERY = 10
"""Iterations between two lines of events."""

_MOST = 100
"""Updates whose losses are held on the device at once."""


class LossWindow:
    """Means of the losses, the speed and its reasons since the last line of events.

    Args:
        trainer: Makes the updates.
        batch_size: Images of an update, over all processes.
    """

    def __init__(self, trainer: Trainer, batch_size: int) -> None:
        self.trainer, self.batch_size = trainer, batch_size
        self._unread: list[tuple[int, dict[str, Tensor]]] = []
        self._restart()

    def _restart(self) -> None:
        self.sums: dict[str, float] = {}
        self.count = 0
        self.data_seconds = 0.0
        self.began = time.monotonic()

    @property
    def closes_next(self) -> bool:
        """True if a line of events is due after the next update."""
        return self._is_last(self.trainer.iteration + 1)

    @property
    def is_due(self) -> bool:
        """True if a line of events is due now."""
        return self._is_last(self.trainer.iteration)

    def _is_last(self, iteration: int) -> bool:
        return iteration % LOG_EVERY == 0 or iteration >= self.trainer.step.iterations

    def loading(self, batches: Iterable[T]) -> Iterator[T]:
        """Pass batches on, counting how long they are waited for."""
        waiting = time.monotonic()
        for batch in batches:
            self.data_seconds += time.monotonic() - waiting
            yield batch
            waiting = time.monotonic()

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of the update that was just made."""
        self._unread.append((self.trainer.iteration - 1, losses))
        self.count += 1
        if len(self._unread) >= _MOST:
            self.read()

    def read(self) -> None:
        """Fetch the losses of all processes from the device.

        Raises:
            NotFinite: one of them is not a finite number.
        """
        if not self._unread:
            return
        unread, self._unread = self._unread, []
        dist = self.trainer.dist
        values = torch.stack([value.float() for _, one in unread for value in one.values()])
        means = iter((dist.sum(values.cpu()) / dist.world_size).tolist())
        for iteration, losses in unread:
            found = {name: next(means) for name in losses}
            if not all(math.isfinite(value) for value in found.values()):
                self.trainer.refuse_losses(iteration, found)
            for name, value in found.items():
                self.sums[name] = self.sums.get(name, 0.0) + value

    def close(self) -> Trained:
        """Return the means over the window, and begin anew."""
        self.read()
        trainer, count = self.trainer, self.count
        seconds = max(time.monotonic() - self.began, 1e-9)
        norm = None if trainer.grad_norm is None else float(trainer.grad_norm)
        event = Trained(
            step=trainer.step.index,
            iteration=trainer.iteration,
            lr=trainer.optimizer.param_groups[0]["lr"],
            losses={name: round(total / count, 6) for name, total in self.sums.items()},
            images_per_second=round(count * self.batch_size / seconds, 2),
            update_seconds=round(seconds / count, 4),
            data_seconds=round(self.data_seconds / count, 4),
            gradient_norm=None if norm is None or not math.isfinite(norm) else round(norm, 6),
            memory_bytes=peak_memory(trainer.dist.device),
        )
        self._restart()
        return event
