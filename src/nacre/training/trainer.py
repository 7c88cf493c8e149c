"""Learning one step: the loop over batches, from images to updated parameters.

    for each batch:                       (parts: what fits the device; their gradients add up)
        lr = lr0 * (1 - iteration / iterations) ** power
        for each part:
            losses = method.losses(part, student(part), teacher(part))
            (sum of the losses / number of parts).backward()
        method.after_backward(student)    (sees the gradients of these losses alone)
        sum(method.penalties(student)).backward()
        update by SGD with Nesterov momentum

Losses on labels are averaged over the pixels of the whole batch, over all its parts and all
processes, so that neither accumulation nor the number of processes changes the gradient.
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nacre.data.dataset import Sample, TrainDataset, train_batches
from nacre.data.sampler import BatchOrder
from nacre.errors import NacreError
from nacre.losses.compile import compiled_strips
from nacre.methods import Batch, Method
from nacre.models.network import Network, Output
from nacre.scenarios.classes import IGNORED
from nacre.training.config import TrainConfig
from nacre.training.distributed import Processes
from nacre.training.events import Recorder
from nacre.utils.device import Precision
from nacre.utils.tensor_file import Tensors

# Convolutions are faster with the channels of a pixel side by side, on CPUs and on GPUs.
LAYOUT = torch.channels_last


class Interrupted(Exception):
    """The user asked to stop; what was learnt so far is saved."""


class NotFinite(NacreError):
    """A loss is not a number any more: the step cannot be learnt with this config."""


@dataclass
class Learner:
    """A step in the course of being learnt.

    Attributes:
        step: Its number.
        network: The student, already grown.
        teacher: The frozen network of the step before, where the method uses one.
        method: What is learnt and kept.
        config: How.
        lr: The step's first learning rate.
        order: Which images come when.
        processes: Who computes.
        precision: In which numbers.
    """

    step: int
    network: Network
    teacher: Network | None
    method: Method
    config: TrainConfig
    lr: float
    order: BatchOrder
    processes: Processes
    precision: Precision

    def __post_init__(self) -> None:
        """Make the optimiser and, for several processes, the wrapper that adds gradients."""
        self.iteration = 0
        self.network.train()
        self.network.to(memory_format=LAYOUT)  # type: ignore[call-overload]
        self.student: torch.nn.Module = self.network
        if self.processes.size > 1:
            # Buffers are the same everywhere: the normalisation is synchronised.
            self.student = DistributedDataParallel(self.network, broadcast_buffers=False)
        self.optimiser = torch.optim.SGD(
            self.network.parameters(),
            lr=self.lr,
            momentum=self.config.momentum,
            weight_decay=self.config.weight_decay,
            nesterov=self.config.momentum > 0,
        )
        device = self.processes.device.type
        self.scaler = torch.amp.GradScaler(device, enabled=self.precision.needs_scaling)

    def learn(
        self,
        data: TrainDataset,
        recorder: Recorder,
        should_stop: Callable[[], bool],
        save: Callable[["Learner"], None],
    ) -> None:
        """Learn from the present iteration to the last.

        Raises:
            Interrupted: when ``should_stop`` said so; the state was saved.
        """
        saved = time.monotonic()
        window = _Window(self.config.log_every)
        pin = self.processes.device.type == "cuda"
        batches = train_batches(data, self.order, self.iteration, self.config.workers, pin)
        for parts in batches:
            losses = self.update(parts)
            self.iteration += 1
            recorder("iteration", step=self.step, iteration=self.iteration)
            if window.add(losses, self.order.batch, self.iteration):
                means = self._over_processes(window.means())
                recorder(
                    "train",
                    step=self.step,
                    iteration=self.iteration,
                    lr=self.optimiser.param_groups[0]["lr"],
                    losses=means,
                    images_per_second=round(window.restart(), 2),
                )
            due = time.monotonic() - saved > 60 * self.config.save_minutes
            stop = self.processes.any(should_stop())
            if (due or stop) and self.iteration < self.order.iterations:
                save(self)
                saved = time.monotonic()
                recorder("saved", step=self.step, iteration=self.iteration)
                if stop:
                    raise Interrupted

    def update(self, parts: list[Sample]) -> dict[str, float]:
        """Learn from one batch; return its named losses."""
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate()
        self.optimiser.zero_grad(set_to_none=True)
        pixels = self._pixels(parts)
        totals: dict[str, float] = {}
        for at, (images, labels) in enumerate(parts):
            with self._gradients_added_up(last=at + 1 == len(parts)):
                losses = self._losses(images, labels, pixels)
                values = {name: float(value.detach()) for name, value in losses.items()}
                self._check(values)
                total = torch.stack(list(losses.values())).sum() / len(parts)
                torch.autograd.backward(self.scaler.scale(total))
            for name, value in values.items():
                totals[name] = totals.get(name, 0.0) + value / len(parts)
        self.scaler.unscale_(self.optimiser)
        if self._gradients_are_finite():
            self.method.after_backward(self.network)
        totals |= self._penalise()
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.method.after_update(self.network)
        return totals

    def state(self) -> Tensors:
        """Return every tensor that decides how learning goes on."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            momentum = self.optimiser.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        return tensors | {f"method.{name}": value for name, value in self.method.state().items()}

    def load_state(self, tensors: Tensors, iteration: int, scaler: dict[str, float]) -> None:
        """Take back what `state` returned at an iteration."""
        split: dict[str, Tensors] = {"network": {}, "momentum": {}, "method": {}}
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            split[kind][name] = value
        self.network.load_state_dict(split["network"])
        parameters = dict(self.network.named_parameters())
        for name, momentum in split["momentum"].items():
            self.optimiser.state[parameters[name]]["momentum_buffer"] = momentum
        self.method.load_state(split["method"])
        if scaler:
            self.scaler.load_state_dict(scaler)
        self.iteration = iteration

    def _rate(self) -> float:
        left: float = 1 - self.iteration / self.order.iterations
        return self.lr * left**self.config.power

    def _losses(self, images: Tensor, labels: Tensor, pixels: float) -> dict[str, Tensor]:
        device = self.processes.device
        images = images.to(device, non_blocking=True, memory_format=LAYOUT)
        batch = Batch(images, labels.to(device, non_blocking=True), pixels)
        with self._mixed():
            student: Output = self.student(images)
        teacher = self._ask_teacher(images)
        with compiled_strips(self.config.compile):
            return self.method.losses(batch, student, teacher)

    def _penalise(self) -> dict[str, float]:
        """Add the gradients of the losses on parameters, once a batch; return these losses.

        They are equal in all processes and never scaled, so there is nothing to exchange.
        """
        losses = self.method.penalties(self.network)
        values = {name: float(value.detach()) for name, value in losses.items()}
        self._check(values)
        if losses:
            torch.autograd.backward(torch.stack(list(losses.values())).sum())
        return values

    def _gradients_are_finite(self) -> bool:
        """Whether this update will be made: a loss scale that is too large makes it skipped."""
        if not self.scaler.is_enabled():
            return True
        found = [one.grad for one in self.network.parameters() if one.grad is not None]
        return bool(torch.nn.utils.get_total_norm(found).isfinite())

    def _ask_teacher(self, images: Tensor) -> Output | None:
        if self.teacher is None:
            return None
        with torch.inference_mode(), self._mixed():
            output: Output = self.teacher(images)
        return output

    def _mixed(self) -> contextlib.AbstractContextManager[object]:
        if not self.precision.is_mixed:
            return contextlib.nullcontext()
        return torch.autocast(self.processes.device.type, self.precision.dtype)

    def _gradients_added_up(self, last: bool) -> contextlib.AbstractContextManager[object]:
        """Exchange gradients between the processes only with the last part of a batch."""
        if last or not isinstance(self.student, DistributedDataParallel):
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[object] = self.student.no_sync()
        return no_sync

    def _pixels(self, parts: list[Sample]) -> float:
        """Return the labelled pixels a part and process, on average over the whole batch."""
        count = torch.stack([(labels != IGNORED).sum() for _, labels in parts]).sum()
        return float(self.processes.sum(count)) / (len(parts) * self.processes.size)

    def _check(self, losses: dict[str, float]) -> None:
        if all(math.isfinite(value) for value in losses.values()):
            return
        named = ", ".join(f"{name} = {value}" for name, value in losses.items())
        weights = "".join(f"a smaller method.{weight}, " for weight in self.method.weights)
        raise NotFinite(
            f"the loss is not a finite number in step {self.step}, iteration {self.iteration}: "
            f"{named}; {weights if self.step else ''}a smaller learning rate or train.clip may help"
        )

    def _over_processes(self, losses: dict[str, float]) -> dict[str, float]:
        values = self.processes.sum(torch.tensor(list(losses.values()), dtype=torch.float32))
        means = (values / self.processes.size).tolist()
        return {name: round(value, 6) for name, value in zip(losses, means, strict=True)}


class _Window:
    """Means of the losses and the speed since the last line of events."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.sums: dict[str, float] = {}
        self.count = self.images = 0
        self.began = time.monotonic()

    def add(self, losses: dict[str, float], images: int, iteration: int) -> bool:
        """Add a batch; return whether a line is due."""
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1
        self.images += images
        return iteration % self.every == 0

    def means(self) -> dict[str, float]:
        return {name: value / self.count for name, value in self.sums.items()}

    def restart(self) -> float:
        """Begin anew; return the images a second of the window that ends."""
        speed = self.images / max(time.monotonic() - self.began, 1e-9)
        self.sums, self.count, self.images, self.began = {}, 0, 0, time.monotonic()
        return speed
