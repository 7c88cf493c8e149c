"""The trainer: from a batch to updated parameters, for one step.

    for each batch:                       (micro-batches fit the device; their gradients add up)
        lr = lr0 * (1 - iteration / iterations) ** 0.9       (`nacre.training.optim` has others)
        for each micro-batch:
            batch = method.relabel(batch, student(images), teacher(images))
            losses = method.losses(batch, student(images), teacher(images))
            (sum of the losses / number of micro-batches).backward()
        method.after_backward(step)       (sees the gradients of these losses alone)
        sum(method.penalties(step)).backward()
        update the parameters

Losses on targets are averaged over the pixels of the whole batch, over all its micro-batches and
all processes, so that neither accumulation nor the number of processes changes the gradient. What
does not learn has no backward pass; the teacher takes over the features of what it shares with the
student (`Parts.shared`).
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nacre.data.dataset import Sample
from nacre.errors import NacreError, ReportedElsewhere
from nacre.labels.channels import ignore_value
from nacre.methods import Batch, Method, Step
from nacre.models.deeplab import DeepLab
from nacre.models.network import Output
from nacre.models.norm import synchronize_batch_norm
from nacre.training.config import TrainConfig
from nacre.training.kept_features import KeptFeatures, View
from nacre.training.optim import (
    lie_as_parameters,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    param_groups,
    set_lr,
)
from nacre.utils.device import Precision, memory_layout, peak_memory
from nacre.utils.tensor_file import Tensors


class NotFinite(NacreError):
    """A loss is not a number any more: the step cannot be learnt with this config."""


@dataclass
class Trainer:
    """A step in the course of being learnt.

    Attributes:
        step: The student, the teacher and what is learnt.
        method: How.
        config: With which recipe.
        lr: The step's first learning rate.
        precision: In which numbers.
        kept: Features of a frozen backbone, where views of images come again.
    """

    step: Step
    method: Method
    config: TrainConfig
    lr: float
    precision: Precision
    kept: KeptFeatures | None = None

    def __post_init__(self) -> None:
        """Make the optimizer and, for several processes, the wrapper that adds gradients."""
        self.iteration = 0
        self.last_image: Tensor | None = None
        self.grad_norm: Tensor | None = None
        self.dist, self.network = self.step.dist, self.step.network
        self.network.train()
        self.method.prepare(self.step)
        fast = self.network.takes_channels_last
        self.layout = memory_layout(self.dist.device) if fast else torch.contiguous_format
        for network in (self.network, self.step.teacher):
            if network is not None:
                network.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.student: Callable[..., Output] = self.network
        if self.dist.world_size > 1:
            self.student = self._across_processes()
        groups = param_groups(self.network, self.config)
        groups = self.method.param_groups(self.step, groups)
        self.optimizer = make_optimizer(self.network, self.config, self.lr, groups)
        device = self.dist.device.type
        self.scaler = torch.amp.GradScaler(device, enabled=self.precision.needs_scaling)

    def _across_processes(self) -> torch.nn.Module:
        """Wrap the network so that gradients are added over the processes."""
        # Buffers are the same everywhere: the normalisation is synchronised.
        synchronize_batch_norm(self.network)
        with warnings.catch_warnings():
            # The option's new name is not known to older releases of torch.
            warnings.filterwarnings("ignore", ".*broadcast_buffers.*", FutureWarning)
            return DistributedDataParallel(
                self.network,
                broadcast_buffers=False,
                find_unused_parameters=not self.network.uses_all_parameters,
            )

    @property
    def is_done(self) -> bool:
        """Whether the last update was made."""
        return self.iteration >= self.step.iterations

    def update(
        self,
        micro_batches: list[Sample],
        *,
        measure: bool = False,
        views: Sequence[Sequence[View]] = (),
    ) -> dict[str, Tensor]:
        """Learn from one batch; return its named losses, on the device.

        Nothing here waits for the device: to read a loss (see `nacre.training.window`) would mean
        that the device does all it was asked for and then has nothing to do.

        Args:
            micro_batches: The batch.
            measure: Whether to measure the gradient, which is left in `grad_norm`.
            views: Which views the micro-batches hold, where features are kept.
        """
        set_lr(self.optimizer, self.config, self.lr, self.iteration, self.step.iterations)
        self.optimizer.zero_grad(set_to_none=True)
        num_valid = self._num_valid_pixels(micro_batches)
        totals: dict[str, Tensor] = {}
        count = len(micro_batches)
        for i, sample in enumerate(micro_batches):
            with self._accumulating(is_last=i + 1 == count), self._explaining(len(sample[0])):
                losses = self._losses(sample, num_valid, views[i] if views else ())
                total = torch.stack(list(losses.values())).sum() / count
                torch.autograd.backward(self.scaler.scale(total))
            for name, value in losses.items():
                part = value.detach() / count
                totals[name] = totals[name] + part if name in totals else part
        self.scaler.unscale_(self.optimizer)
        self._show_gradients()
        totals |= self._penalize()
        self._clip(measure)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.iteration += 1
        return totals

    @contextlib.contextmanager
    def _explaining(self, images: int) -> Iterator[None]:
        """Say in one sentence what to set where the device has not memory enough."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            held = (peak_memory(self.dist.device) or 0) / 2**30
            raise NacreError(
                f"out of memory on {self.dist.device} with {images} images at once ({held:.1f} GiB "
                f"were held); set train.micro_batch below {images}, whose gradients add up to "
                "those of train.batch_size, or model.norm=iabn, which keeps less of each image"
            ) from error

    def check_weights(self) -> None:
        """Refuse to keep weights that are no numbers: the loss saw only those before the update.

        Raises:
            NotFinite: one of them is not finite; what was saved before is.
        """
        state = self.network.state_dict().items()
        finite = {name: x.isfinite().all() for name, x in state if x.is_floating_point()}
        all_finite = torch.stack(list(finite.values())).tolist()
        for name, is_finite in zip(finite, all_finite, strict=True):
            if not is_finite:
                self._refuse(f"the weights {name} are")

    @torch.no_grad()
    def check_learned(self) -> None:
        """Refuse a network whose last update ruined it: its weights, or what they score.

        Raises:
            NotFinite: so that no such model is written and tested.
        """
        self.check_weights()
        if self.last_image is not None:
            output: Output = self.network.eval()(self.last_image)
            if not bool(output.logits.isfinite().all()):
                self._refuse("the network's scores are")

    def _refuse(self, what: str) -> NoReturn:
        raise NotFinite(
            f"{what} not finite any more in step {self.step.index}, after iteration "
            f"{self.iteration}; {self._advice()}"
        )

    def state(self) -> Tensors:
        """Return every tensor that decides how learning goes on."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        parts = {
            "optimizer": optimizer_state(self.optimizer, self.network),
            "method": self.method.state(),
            "parts": self.method.parts.state,
        }
        for kind, part in parts.items():
            tensors |= {f"{kind}.{name}": value for name, value in part.items()}
        return tensors

    def load_state(self, tensors: Tensors, iteration: int, scaler: dict[str, float]) -> None:
        """Take back what `state` returned at an iteration."""
        kinds = ("network", "optimizer", "method", "parts")
        split: dict[str, Tensors] = {kind: {} for kind in kinds}
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            split[kind][name] = value
        self.network.load_state_dict(split["network"])
        load_optimizer_state(self.optimizer, self.network, split["optimizer"])
        self.method.load_state(lie_as_parameters(self.network, split["method"]))
        self.method.parts.state = split["parts"]
        if scaler:
            self.scaler.load_state_dict(scaler)
        self.iteration = iteration

    def _losses(self, sample: Sample, num_valid: float, views: Sequence[View]) -> dict[str, Tensor]:
        device = self.dist.device
        images = sample[0].to(device, non_blocking=True, memory_format=self.layout)
        targets = sample[1].to(device, non_blocking=True)
        batch = Batch(images, targets, num_valid, self._may_be(sample))
        self.last_image = images[:1]
        with self._mixed():
            asked: dict[str, Any] = {"with_stages": self.method.uses_stages}
            if self.kept is not None:
                asked["kept"] = self.kept.of(views, images)
            student: Output = self.student(images, **asked)
        teacher = self._ask_teacher(images, student)
        batch = self.method.relabel(batch, student, teacher)
        losses = self.method.losses(batch, student, teacher)
        return losses | self.method.parts.losses(batch, student)

    def _penalize(self) -> dict[str, Tensor]:
        """Add the gradients of the losses on parameters, once per batch; return these losses.

        They are equal in all processes and never scaled, so there is nothing to exchange.
        """
        losses = self.method.penalties(self.step)
        if losses:
            torch.autograd.backward(torch.stack(list(losses.values())).sum())
        return {name: value.detach() for name, value in losses.items()}

    def _show_gradients(self) -> None:
        """Show the method the gradients, unless the loss scale was too large for this update.

        Such an update will not be made. A GPU is not asked whether it will: the method then sees
        gradients of 0, and the optimizer, which was told by the scaler, does nothing.
        """
        if self.scaler.is_enabled():
            grads = self._gradients()
            is_made = torch.nn.utils.get_total_norm(grads).isfinite()
            if self.dist.device.type != "cpu":
                for gradient in grads:
                    gradient.masked_fill_(~is_made, 0)
            elif not is_made:
                return
        self.method.after_backward(self.step)

    def _clip(self, measure: bool) -> None:
        limit = self.config.grad_clip_norm
        if limit is not None:
            self.grad_norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        elif measure:
            self.grad_norm = torch.nn.utils.get_total_norm(self._gradients())

    def _gradients(self) -> list[Tensor]:
        return [one.grad for one in self.network.parameters() if one.grad is not None]

    def _ask_teacher(self, images: Tensor, student: Output) -> Output | None:
        teacher, shared = self.step.teacher, self.method.parts.shared
        if teacher is None:
            return None
        with torch.no_grad(), self._mixed():
            if shared == "nothing" or not isinstance(teacher, DeepLab):
                return teacher(images, with_stages=self.method.uses_stages)
            if shared == "backbone":
                return teacher.decode_again(student)
            stages = tuple(stage.detach() for stage in student.stages)
            decoded, features = student.decoder_features.detach(), student.features.detach()
            return teacher.classify(decoded, features, stages)

    def _mixed(self) -> contextlib.AbstractContextManager[object]:
        return self.precision.mixed(self.dist.device)

    def _may_be(self, sample: Sample) -> Tensor | None:
        """Return what the pixels of each image may in truth be, by its data set."""
        if self.step.may_be is None:
            return None
        datasets = sample[2] if len(sample) > 2 else torch.zeros(len(sample[0]), dtype=torch.long)
        return self.step.may_be[datasets.to(self.step.may_be.device, non_blocking=True)]

    def _accumulating(self, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Exchange gradients between the processes only with the last micro-batch of a batch."""
        if is_last or not isinstance(self.student, DistributedDataParallel):
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[object] = self.student.no_sync()
        return no_sync

    def _num_valid_pixels(self, micro_batches: list[Sample]) -> float:
        """Return the labelled pixels per micro-batch and process, a mean over the whole batch."""
        count = torch.stack([_num_valid(sample[1]) for sample in micro_batches]).sum()
        return float(self.dist.sum(count)) / (len(micro_batches) * self.dist.world_size)

    def refuse_losses(self, iteration: int, losses: dict[str, float]) -> NoReturn:
        """End learning because of the losses that an iteration had, in all processes alike.

        Raises:
            NotFinite: always; the other processes end in silence.
        """
        named = ", ".join(f"{name} = {value}" for name, value in losses.items())
        raise (NotFinite if self.dist.is_main else ReportedElsewhere)(
            f"the loss is not a finite number in step {self.step.index}, iteration "
            f"{iteration}: {named}; {self._advice()}"
        )

    def _advice(self) -> str:
        keys = self.method.tunable if self.step.index else ()
        weights = "".join(f"a smaller method.{key}, " for key in keys)
        return f"{weights}a smaller learning rate or train.grad_clip_norm may help"


def _num_valid(targets: Tensor) -> Tensor:
    return (targets != ignore_value(targets)).sum()
