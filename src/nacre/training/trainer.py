"""The trainer: what the loop (`nacre.training.loop`) updates parameters with.

Losses on targets are averaged over the pixels of the whole batch, over all its micro-batches and
all processes, so that neither accumulation nor the number of processes changes the gradient. What
does not learn has no backward pass; the teacher takes over the features of what it shares with the
student (`shared_modules_of`).
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nacre.data.dataset import Sample, train_batches
from nacre.errors import NacreError, ReportedElsewhere
from nacre.labels.channels import ignore_value
from nacre.methods import Batch, Method, Step
from nacre.methods.components import shared_modules_of
from nacre.models.network import Network, Output
from nacre.models.norm import synchronize_batch_norm
from nacre.training.config import TrainConfig
from nacre.training.optim import (
    lie_as_parameters,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    param_groups,
    set_lr,
)
from nacre.utils.device import choose_precision, count_workers, memory_layout, peak_memory
from nacre.utils.tensor_file import Tensors

View = tuple[int, int]
"""The number of a view, and of an image."""

MAX_FEATURE_BYTES = 4 * 2**30


class NotFinite(NacreError):
    """A loss is not a number any more: the step cannot be learned with this config."""


class Trainer:
    """The trainer: it updates the parameters of a step's student.

    Args:
        method: How the step is learned.
        step: Its student is ready to learn.
        stopped: Parameters that do not learn in this step alone.
    """

    def __init__(self, method: Method, step: Step, stopped: Sequence[torch.nn.Parameter] = ()):
        self.method, self.step, self.stopped = method, step, stopped
        self.config: TrainConfig = step.config.train
        self.lr = self.config.incremental_lr if step.growth.num_old else self.config.lr
        self.dist, self.network = step.dist, step.network
        self.precision = choose_precision(self.config.precision, self.dist.device)
        self.kept = keep_features(self.network, method, step.config.images.views)
        self.iteration = 0
        self.last_image: Tensor | None = None
        fast = self.network.takes_channels_last
        self.layout = memory_layout(self.dist.device) if fast else torch.contiguous_format
        for network in (self.network, step.teacher):
            if network is not None:
                network.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.student: Callable[..., Output] = self.network
        if self.dist.world_size > 1:
            self.student = self._across_processes()
        groups = method.param_groups(step, param_groups(self.network, self.config))
        self.optimizer = make_optimizer(self.network, self.config, self.lr, groups)
        device = self.dist.device.type
        self.scaler = torch.amp.GradScaler(device, enabled=self.precision.needs_scaling)

    def _across_processes(self) -> torch.nn.Module:
        """Wrap the network so that gradients are added over the processes."""
        # Buffers are the same everywhere: the normalization is synchronized.
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
        """True if the last update was made."""
        return self.iteration >= self.step.iterations

    def batches(self) -> Iterator[tuple[list[Sample], list[list[View]]]]:
        """Yield this process's share of each batch to come, in micro-batches, and what they show.

        Which views of which images they hold is said where features of views are kept.
        """
        step, device = self.step, self.dist.device
        pin, workers = device.type == "cuda", count_workers(self.config.num_workers, device)
        keys = step.sampler.starting_at(self.iteration)
        view_of = step.data.config.view_of
        views = ([(view_of(epoch), image) for epoch, image in one] for one in keys)
        for batch in train_batches(step.data, step.sampler, self.iteration, workers, pin):
            yield batch, [next(views) for _ in batch] if self.kept is not None else []

    def begin_update(self) -> None:
        """Set the learning rate of an update, and forget the gradients of the one before."""
        set_lr(self.optimizer, self.config, self.lr, self.iteration, self.step.iterations)
        self.optimizer.zero_grad(set_to_none=True)

    def end_update(self) -> None:
        """Update the parameters."""
        limit = self.config.grad_clip_norm
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.iteration += 1

    @contextlib.contextmanager
    def explaining(self, images: int) -> Iterator[None]:
        """Explain in one sentence what to set where the device has not memory enough."""
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
            f"{what} not finite any more in step {self.step.number}, after iteration "
            f"{self.iteration}; {self._advice()}"
        )

    def state(self) -> Tensors:
        """Return every tensor that decides how learning goes on."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        thresholds = self.step.thresholds
        parts = {
            "optimizer": optimizer_state(self.optimizer, self.network),
            "method": self.method.state(),
            "step": {} if thresholds is None else {"thresholds": thresholds},
        }
        for kind, part in parts.items():
            tensors |= {f"{kind}.{name}": value for name, value in part.items()}
        return tensors

    def load_state(self, tensors: Tensors, iteration: int, scaler: dict[str, float]) -> None:
        """Take back what `state` returned at an iteration."""
        kinds = ("network", "optimizer", "method", "step")
        split: dict[str, Tensors] = {kind: {} for kind in kinds}
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            split[kind][name] = value
        self.network.load_state_dict(split["network"])
        load_optimizer_state(self.optimizer, self.network, split["optimizer"])
        self.method.load_state(lie_as_parameters(self.network, split["method"]))
        self.step.thresholds = split["step"].get("thresholds")
        if scaler:
            self.scaler.load_state_dict(scaler)
        self.iteration = iteration

    def to_device(self, sample: Sample, num_valid: float) -> Batch:
        """Return a micro-batch on the device."""
        device = self.dist.device
        images = sample[0].to(device, non_blocking=True, memory_format=self.layout)
        targets = sample[1].to(device, non_blocking=True)
        self.last_image = images[:1]
        may_be = self.step.may_be  # by data set; an image's is that of its own
        if may_be is not None:
            may_be = may_be[sample[2].to(may_be.device, non_blocking=True)]
        return Batch(images, targets, num_valid, may_be)

    def ask_networks(self, images: Tensor, views: Sequence[View]) -> tuple[Output, Output | None]:
        """Return what the student says of images, and the teacher if there is one."""
        with self._mixed():
            asked: dict[str, Any] = {"with_stages": self.method.uses_stages}
            if self.kept is not None:
                asked["kept"] = self.kept.of(views, images)
            student: Output = self.student(images, **asked)
        return student, self.ask_teacher(images, student)

    def has_gradients(self) -> bool:
        """Unscale the gradients; say whether they are some: a scale that was too large makes none.

        A GPU is not asked whether it was: the method then sees gradients of 0, and the optimizer,
        which was told by the scaler, does nothing.
        """
        self.scaler.unscale_(self.optimizer)
        if not self.scaler.is_enabled():
            return True
        grads = [one.grad for one in self.network.parameters() if one.grad is not None]
        is_made = torch.nn.utils.get_total_norm(grads).isfinite()
        if self.dist.device.type == "cpu":
            return bool(is_made)
        for gradient in grads:
            gradient.masked_fill_(~is_made, 0)
        return True

    def ask_teacher(self, images: Tensor, student: Output) -> Output | None:
        """Return what the teacher says; what it shares with the student is not computed again."""
        teacher, shared = self.step.teacher, shared_modules_of(self.method)
        if teacher is None:
            return None
        with torch.no_grad(), self._mixed():
            again = teacher.decode_again(student, shared)
            return again or teacher(images, with_stages=self.method.uses_stages)

    def _mixed(self) -> contextlib.AbstractContextManager[object]:
        return self.precision.mixed(self.dist.device)

    def accumulating(self, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Exchange gradients between the processes only with the last micro-batch of a batch."""
        if is_last or not isinstance(self.student, DistributedDataParallel):
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[object] = self.student.no_sync()
        return no_sync

    def num_valid_pixels(self, micro_batches: list[Sample]) -> float:
        """Return the labeled pixels per micro-batch and process, a mean over the whole batch."""
        count = torch.stack([_num_valid(sample[1]) for sample in micro_batches]).sum()
        return float(self.dist.sum(count)) / (len(micro_batches) * self.dist.world_size)

    def refuse_losses(self, iteration: int, losses: dict[str, float]) -> NoReturn:
        """End learning because of the losses that an iteration had, in all processes alike.

        Raises:
            NotFinite: always; the other processes end in silence.
        """
        named = ", ".join(f"{name} = {value}" for name, value in losses.items())
        raise (NotFinite if self.dist.is_main else ReportedElsewhere)(
            f"the loss is not a finite number in step {self.step.number}, iteration "
            f"{iteration}: {named}; {self._advice()}"
        )

    def _advice(self) -> str:
        keys = self.method.tunable if self.step.number else ()
        weights = "".join(f"a smaller method.{key}, " for key in keys)
        return f"{weights}a smaller learning rate or train.grad_clip_norm may help"


def _num_valid(targets: Tensor) -> Tensor:
    return (targets != ignore_value(targets)).sum()


class KeptFeatures:
    """Features of a frozen backbone, kept for the epochs in which the same views come again.

    With `images.views` an image is augmented in as many ways and no more. What the decoder reads of
    the backbone is computed once for each view, in half precision, and every later epoch costs the
    decoder alone. Features are always computed image by image and rounded, whether they are kept or
    not, so neither the batch that an image came in, nor a restart, nor the bytes that are left
    change what is learned.

    Args:
        network: Its backbone does not learn.
        most_bytes: The bytes to keep at most; features of further views are computed again.
    """

    def __init__(self, network: Network, most_bytes: int = MAX_FEATURE_BYTES) -> None:
        self.network, self.bytes_left = network, most_bytes
        self._kept: dict[View, tuple[Tensor, ...]] = {}

    def of(self, views: Iterable[View], images: Tensor) -> tuple[Tensor, ...]:
        """Return what the decoder reads of a batch of images."""
        rows = [self._one(view, images[i : i + 1]) for i, view in enumerate(views)]
        dtype = next(self.network.parameters()).dtype
        maps = (torch.cat(parts).to(dtype) for parts in zip(*rows, strict=True))
        return tuple(one.contiguous(memory_format=torch.channels_last) for one in maps)

    def _one(self, view: View, image: Tensor) -> tuple[Tensor, ...]:
        known = self._kept.get(view)
        if known is not None:
            return known
        maps = tuple(one.half() for one in self.network.read_maps(image))
        size = sum(one.numel() * one.element_size() for one in maps)
        if size <= self.bytes_left:
            self._kept[view] = maps
            self.bytes_left -= size
        return maps


def keep_features(network: Network, method: Method, views: int | None) -> KeptFeatures | None:
    """Return where features are kept, if views come again and nobody asks for more of them."""
    if views is None or method.uses_stages or not method.freezes_backbone:
        return None
    return KeptFeatures(network) if network.takes_maps else None
