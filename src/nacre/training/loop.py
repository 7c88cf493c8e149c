"""The loop: how a step is learned by gradients. `nacre.methods.base` prints it for methods."""

import math
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from nacre.data.dataset import Sample
from nacre.methods import Method, Step
from nacre.methods.components import (
    auxiliary_row,
    find_thresholds,
    freeze,
    fuse,
    pseudo_labels,
    unfreeze,
)
from nacre.training.events import Iterated, Saved, StepBegan, Trained
from nacre.training.resume import Checkpoint
from nacre.training.trainer import Trainer, View
from nacre.utils.signals import Interrupted

T = TypeVar("T")

LOG_EVERY = 10
"""Iterations between two lines of events."""

_MAX_UNREAD = 100
"""Updates whose losses are held on the device at once."""


def learn_by_gradient(method: Method, step: Step, checkpoint: Checkpoint | None = None) -> None:
    """Learn a step whose student has grown, or go on where it was interrupted."""
    trainer = begin(method, step)
    if checkpoint is not None:
        checkpoint.restore(trainer)
    if trainer.iteration == 0:
        survey(method, step)
    step.observe(step_began(step, trainer.iteration))
    if method.is_usable and trainer.iteration == 0 and not trainer.is_done:
        step.state = method.state()
        step.on_usable()
    window = LossWindow(trainer, step.sampler.batch_size)
    for batch, views in window.loading(trainer.batches()):
        window.add(update(trainer, batch, views))
        step.observe(Iterated(step.number, trainer.iteration))
        if window.is_due:
            step.observe(window.close())
        # Any process may be told to stop, the main one's clock says when to save: all agree here.
        save_now = checkpoint is not None and checkpoint.is_due
        stop, is_due = step.dist.any(step.should_stop(), save_now)
        if (stop or is_due) and not trainer.is_done:
            window.read()
            trainer.check_weights()
            if checkpoint is not None:
                checkpoint.save(trainer)
                step.observe(Saved(step.number, trainer.iteration))
            if stop:
                raise Interrupted
    finish(trainer)


def step_began(step: Step, first: int) -> StepBegan:
    """Return the event that a step begins at an iteration."""
    return StepBegan(
        step=step.number,
        classes=step.new_names,
        images=step.num_images + len(step.held_data or ()),
        iterations=step.iterations,
        first=first,
    )


def begin(method: Method, step: Step) -> Trainer:
    """Prepare the student and what updates it."""
    step.network.train()
    method.prepare(step)
    trainer = Trainer(method, step, stopped=freeze(method, step))
    method.begin_step(step)
    return trainer


def survey(method: Method, step: Step) -> None:
    """Look at the step's images before the first iteration."""
    find_thresholds(method, step)
    method.survey(step)


def update(
    trainer: Trainer, micro_batches: list[Sample], views: list[list[View]] | None = None
) -> dict[str, Tensor]:
    """Learn from one batch; return its named losses, on the device.

    Nothing here waits for the device: to read a loss (see `nacre.training.loop`) would mean that
    the device does all it was asked for and then has nothing to do.

    Args:
        trainer: With the method, the networks and the optimizer.
        micro_batches: The batch, in pieces that fit the device; their gradients add up.
        views: Which views the micro-batches hold, where features are kept.
    """
    method, step, count = trainer.method, trainer.step, len(micro_batches)
    totals: dict[str, Tensor] = {}
    trainer.begin_update()
    num_valid = trainer.num_valid_pixels(micro_batches)
    for i, sample in enumerate(micro_batches):
        with trainer.accumulating(is_last=i + 1 == count), trainer.explaining(len(sample[0])):
            batch = trainer.to_device(sample, num_valid)
            student, teacher = trainer.ask_networks(batch.images, views[i] if views else ())
            batch = pseudo_labels(method, step, batch, teacher)
            losses = method.losses(batch, student, teacher)
            losses |= auxiliary_row(method, batch, student)
            total = torch.stack(list(losses.values())).sum() / count
            torch.autograd.backward(trainer.scaler.scale(total))
        for name, value in losses.items():
            share = value.detach() / count
            totals[name] = totals[name] + share if name in totals else share
    if trainer.has_gradients():
        method.after_backward(step)
    penalties = method.penalties(step)
    if penalties:  # equal in all processes and never scaled: there is nothing to exchange
        torch.autograd.backward(torch.stack(list(penalties.values())).sum())
    trainer.end_update()
    return totals | {name: value.detach() for name, value in penalties.items()}


def finish(trainer: Trainer) -> None:
    """Make of what the updates left what the step leaves."""
    method, step = trainer.method, trainer.step
    # Statistics are to be those of the network that is kept: fusion comes first.
    fuse(method, step)
    method.end_step(step)
    trainer.check_learned()
    step.network.eval()
    unfreeze(trainer.stopped)
    method.fit(step)


class LossWindow:
    """Means of the losses, the speed and its reasons since the last line of events.

    Losses stay on the device until the line is written, a checkpoint is saved, or so many updates
    that they would take room. Whoever reads them waits until the device has made all updates so
    far; in between nobody waits. A loss that is not a number is therefore noticed a few updates
    late, and told with the iteration that it belongs to.

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
    def is_due(self) -> bool:
        """True if a line of events is due."""
        return self.trainer.iteration % LOG_EVERY == 0 or self.trainer.is_done

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
        if len(self._unread) >= _MAX_UNREAD:
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
        event = Trained(
            step=trainer.step.number,
            iteration=trainer.iteration,
            lr=trainer.optimizer.param_groups[0]["lr"],
            losses={name: round(total / count, 6) for name, total in self.sums.items()},
            images_per_second=round(count * self.batch_size / seconds, 2),
            update_seconds=round(seconds / count, 4),
            data_seconds=round(self.data_seconds / count, 4),
        )
        self._restart()
        return event
