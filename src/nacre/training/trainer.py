"""The trainer of a step: networks, optimizer, gradients and the state in the middle of a step.

Losses on targets are averaged over the pixels of the whole batch, over all micro-batches and
processes. So neither gradient accumulation nor the number of processes changes the gradient. Frozen
layers have no backward pass, and the teacher takes over the features of the layers that it shares
with the student (`shared_modules_of`).
"""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from pydantic import BaseModel, Field
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nacre.data.dataset import Sample, train_batches
from nacre.errors import NacreError, ReportedElsewhere, check
from nacre.labels.channels import ignore_value
from nacre.methods import Batch, Method, Step
from nacre.methods.components import shared_modules_of
from nacre.models.network import Network, Output
from nacre.models.norm import synchronize_batch_norm
from nacre.training.config import TrainConfig
from nacre.training.optim import (
    load_optimizer_state,
    make_optimizer,
    match_parameter_layout,
    optimizer_state,
    param_groups,
    set_lr,
)
from nacre.utils.device import choose_precision, count_workers, memory_layout, peak_memory
from nacre.utils.distributed import Distributed
from nacre.utils.tensor_file import Tensors, read_tensors, write_tensors

View = tuple[int, int]
"""The number of a view, and of an image."""

MAX_FEATURE_BYTES = 4 * 2**30
CHECKPOINT_MINUTES = 10.0
"""Minutes between two saves within a step."""


class NotFinite(NacreError):
    """A loss or a weight is not finite: this config cannot train the step."""


class Trainer:
    """The networks of a step and the optimizer that updates the student.

    Args:
        method: The method of the step.
        step: The step; its student has grown.
        frozen: Parameters that are frozen for this step only.
    """

    def __init__(self, method: Method, step: Step, frozen: Sequence[torch.nn.Parameter] = ()):
        self.method, self.step, self.frozen = method, step, frozen
        self.config: TrainConfig = step.config.train
        self.lr = self.config.incremental_lr if step.growth.num_old else self.config.lr
        self.dist, self.network = step.dist, step.network
        self.precision = choose_precision(self.config.precision, self.dist.device)
        self.kept = keep_features(self.network, method, step.config.images.views)
        self.iteration = 0
        self.last_image: Tensor | None = None
        fast = self.network.takes_channels_last
        layout = memory_layout(self.dist.device, training=True)
        self.layout = layout if fast else torch.contiguous_format
        for network in (self.network, step.teacher):
            if network is not None:
                network.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.student: Callable[..., Output] = self.network
        if self.dist.world_size > 1:
            self.student = self._wrap_ddp()
        groups = method.param_groups(step, param_groups(self.network, self.config))
        self.optimizer = make_optimizer(self.network, self.config, self.lr, groups)
        device = self.dist.device.type
        self.scaler = torch.amp.GradScaler(device, enabled=self.precision.needs_scaling)

    def _wrap_ddp(self) -> torch.nn.Module:
        """Wrap the network so that gradients are averaged over the processes."""
        synchronize_batch_norm(self.network)  # so buffers are equal and need no broadcast
        with warnings.catch_warnings():
            # The option's new name does not exist in older releases of torch.
            warnings.filterwarnings("ignore", ".*broadcast_buffers.*", FutureWarning)
            return DistributedDataParallel(
                self.network,
                broadcast_buffers=False,
                find_unused_parameters=not self.network.uses_all_parameters,
            )

    @property
    def is_done(self) -> bool:
        """True after the last update."""
        return self.iteration >= self.step.iterations

    def batches(self) -> Iterator[tuple[list[Sample], list[list[View]]]]:
        """Yield this process's share of each batch as micro-batches, and their views if kept."""
        step, device = self.step, self.dist.device
        pin, workers = device.type == "cuda", count_workers(self.config.num_workers, device)
        keys = step.sampler.starting_at(self.iteration)
        view_of = step.data.config.view_of
        views = ([(view_of(epoch), image) for epoch, image in part] for part in keys)
        for batch in train_batches(step.data, step.sampler, self.iteration, workers, pin):
            yield batch, [next(views) for _ in batch] if self.kept is not None else []

    def begin_update(self) -> None:
        """Set the learning rate of an update, and clear the gradients."""
        set_lr(self.optimizer, self.config, self.lr, self.iteration, self.step.iterations)
        self.optimizer.zero_grad(set_to_none=True)

    def end_update(self) -> None:
        """Clip the gradients if the config sets a limit, and update the parameters."""
        limit = self.config.grad_clip_norm
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.iteration += 1

    def to_device(self, sample: Sample, num_valid: float) -> Batch:
        """Return a micro-batch on the device."""
        device = self.dist.device
        images = sample[0].to(device, non_blocking=True, memory_format=self.layout)
        targets = sample[1].to(device, non_blocking=True)
        self.last_image = images[:1]
        may_be = self.step.may_be  # per data set; an image takes the row of its own
        if may_be is not None:
            may_be = may_be[sample[2].to(may_be.device, non_blocking=True)]
        return Batch(images, targets, num_valid, may_be)

    def forward(self, images: Tensor, views: Sequence[View]) -> tuple[Output, Output | None]:
        """Return the outputs of the student, and of the teacher if there is one."""
        with self._autocast():
            options: dict[str, Any] = {"with_stages": self.method.uses_stages}
            if self.kept is not None:
                options["kept"] = self.kept.of(views, images)
            student: Output = self.student(images, **options)
        return student, self.forward_teacher(images, student)

    def forward_teacher(self, images: Tensor, student: Output) -> Output | None:
        """Return the teacher's output; features that it shares are taken from the student's."""
        teacher, shared = self.step.teacher, shared_modules_of(self.method)
        if teacher is None:
            return None
        with torch.no_grad(), self._autocast():
            again = teacher.decode_again(student, shared)
            return again or teacher(images, with_stages=self.method.uses_stages)

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        return self.precision.mixed(self.dist.device)

    def no_sync(self, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Exchange gradients between processes with the last micro-batch of a batch only."""
        if is_last or not isinstance(self.student, DistributedDataParallel):
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[object] = self.student.no_sync()
        return no_sync

    def num_valid_pixels(self, micro_batches: list[Sample]) -> float:
        """Return the mean number of labeled pixels per micro-batch, over all processes."""
        masks = [sample[1] for sample in micro_batches]
        count = torch.stack([(mask != ignore_value(mask)).sum() for mask in masks]).sum()
        return float(self.dist.sum(count)) / (len(masks) * self.dist.world_size)

    def has_gradients(self) -> bool:
        """Unscale the gradients; return False if they overflowed, because the scale was too large.

        Nothing may wait for a GPU, so its overflowed gradients become 0 instead: the method can
        use them, and the scaler makes the optimizer skip the update.
        """
        self.scaler.unscale_(self.optimizer)
        if not self.scaler.is_enabled():
            return True
        gradients = [x.grad for x in self.network.parameters() if x.grad is not None]
        is_finite = torch.nn.utils.get_total_norm(gradients).isfinite()
        if self.dist.device.type == "cpu":
            return bool(is_finite)
        for gradient in gradients:
            gradient.masked_fill_(~is_finite, 0)
        return True

    @contextlib.contextmanager
    def explain_oom(self, images: int) -> Iterator[None]:
        """Turn an out-of-memory error into a sentence that names the keys to set."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            peak = (peak_memory(self.dist.device) or 0) / 2**30
            raise NacreError(
                f"out of memory on {self.dist.device} with {images} images at once ({peak:.1f} GiB "
                f"in use); set train.micro_batch below {images}, whose gradients add up to those "
                "of train.batch_size, or model.norm=iabn, which keeps less of each image"
            ) from error

    def check_weights(self) -> None:
        """Refuse to save weights that are not finite: the loss was computed before the update."""
        state = self.network.state_dict().items()
        finite = {name: x.isfinite().all() for name, x in state if x.is_floating_point()}
        all_finite = torch.stack(list(finite.values())).tolist()
        for name, is_finite in zip(finite, all_finite, strict=True):
            if not is_finite:
                self._raise_ruined(f"the weights {name} are")

    @torch.no_grad()
    def check_learned(self) -> None:
        """Refuse a network whose weights or scores are not finite after the last update."""
        self.check_weights()
        if self.last_image is not None:
            output: Output = self.network.eval()(self.last_image)
            if not bool(output.logits.isfinite().all()):
                self._raise_ruined("the network's scores are")

    def _raise_ruined(self, what: str) -> NoReturn:
        raise NotFinite(
            f"{what} not finite any more in step {self.step.number}, after iteration "
            f"{self.iteration}; {self._advice()}"
        )

    def raise_not_finite(self, iteration: int, losses: dict[str, float]) -> NoReturn:
        """Raise the error of a loss that is not finite; only the main process reports it."""
        named = ", ".join(f"{name} = {value}" for name, value in losses.items())
        raise (NotFinite if self.dist.is_main else ReportedElsewhere)(
            f"the loss is not a finite number in step {self.step.number}, iteration "
            f"{iteration}: {named}; {self._advice()}"
        )

    def _advice(self) -> str:
        keys = self.method.tunable if self.step.number else ()
        weights = "".join(f"a smaller method.{key}, " for key in keys)
        return f"{weights}a smaller learning rate or train.grad_clip_norm may help"

    def state(self) -> Tensors:
        """Return every tensor that training needs to resume exactly."""
        thresholds = self.step.thresholds
        sections = {
            "network": self.network.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.network),
            "method": self.method.state(),
            "step": {} if thresholds is None else {"thresholds": thresholds},
        }
        return {f"{s}.{name}": x for s, tensors in sections.items() for name, x in tensors.items()}

    def load_state(self, tensors: Tensors, iteration: int, scaler: dict[str, float]) -> None:
        """Restore what `state` returned at an iteration."""
        sections: dict[str, Tensors] = {"network": {}, "optimizer": {}, "method": {}, "step": {}}
        for key, value in tensors.items():
            section, _, name = key.partition(".")
            sections[section][name] = value
        self.network.load_state_dict(sections["network"])
        load_optimizer_state(self.optimizer, self.network, sections["optimizer"])
        self.method.load_state(match_parameter_layout(self.network, sections["method"]))
        self.step.thresholds = sections["step"].get("thresholds")
        if scaler:
            self.scaler.load_state_dict(scaler)
        self.iteration = iteration


class KeptFeatures:
    """Features of a frozen backbone, kept because the same views of the images come again.

    With `images.views` an image has a fixed number of augmented views. The backbone's features of a
    view are computed once, in half precision, and every later epoch only runs the decoder. Features
    are always computed image by image and rounded, even if they are not kept. So neither the batch
    of an image, nor a restart, nor the memory limit changes the result.

    Args:
        network: A network whose backbone is frozen.
        max_bytes: Memory limit; features of further views are computed again.
    """

    def __init__(self, network: Network, max_bytes: int = MAX_FEATURE_BYTES) -> None:
        self.network, self.bytes_left = network, max_bytes
        self._kept: dict[View, tuple[Tensor, ...]] = {}

    def of(self, views: Iterable[View], images: Tensor) -> tuple[Tensor, ...]:
        """Return the decoder's input for a batch of images."""
        rows = [self._one(view, images[i : i + 1]) for i, view in enumerate(views)]
        dtype = next(self.network.parameters()).dtype
        maps = (torch.cat(column).to(dtype) for column in zip(*rows, strict=True))
        layout = memory_layout(images.device, training=True)
        return tuple(x.contiguous(memory_format=layout) for x in maps)

    def _one(self, view: View, image: Tensor) -> tuple[Tensor, ...]:
        known = self._kept.get(view)
        if known is not None:
            return known
        maps = tuple(x.half() for x in self.network.read_maps(image))
        size = sum(x.numel() * x.element_size() for x in maps)
        if size <= self.bytes_left:
            self._kept[view] = maps
            self.bytes_left -= size
        return maps


def keep_features(network: Network, method: Method, views: int | None) -> KeptFeatures | None:
    """Return the store of features, if views come again and the decoder needs nothing else."""
    if views is None or method.uses_stages or not method.freezes_backbone:
        return None
    return KeptFeatures(network) if network.takes_maps else None


RESUME = "resume"
RANDOM = "random."


class Checkpoint:
    """The file with the state in the middle of a step.

    Only the main process's clock decides when a save is due, and it tells the others (see
    `nacre.training.loop`): processes with different clocks would wait for each other for ever.
    """

    def __init__(self, path: Path, dist: Distributed) -> None:
        self.path, self.dist = path, dist
        self.saved = time.monotonic()

    @property
    def is_due(self) -> bool:
        """True in the main process if it is time to save."""
        return self.dist.is_main and time.monotonic() - self.saved > 60 * CHECKPOINT_MINUTES

    def save(self, trainer: Trainer) -> None:
        """Write the trainer's state."""
        tensors = trainer.state() | _generators(self.dist)
        content = {
            "step": trainer.step.number,
            "iteration": trainer.iteration,
            "scaler": trainer.scaler.state_dict(),
        }
        self.dist.on_main(lambda: save_resume(self.path, tensors, content))
        self.saved = time.monotonic()

    def restore(self, trainer: Trainer) -> None:
        """Restore the trainer's state, if a state of its step was saved."""
        if self.dist.from_main(self.path.exists()):
            tensors, content = load_resume(self.path, self.dist.device)
            if content["step"] == trainer.step.number:
                random = {key: tensors.pop(key) for key in list(tensors) if key.startswith(RANDOM)}
                trainer.load_state(tensors, content["iteration"], content["scaler"])
                _set_generators(random, self.dist)
        iterations = self.dist.all(trainer.iteration)
        if len(set(iterations)) > 1:
            raise NacreError(f"the processes would resume at different iterations: {iterations}")

    def remove(self) -> None:
        """Remove the file, if there is one."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise NacreError(f"could not remove {self.path}: {error.strerror}") from error


def _generators(dist: Distributed) -> Tensors:
    """Return the state of every process's random generators, which dropout draws from."""
    mine = {"cpu": torch.get_rng_state()}
    if dist.device.type == "cuda":
        mine["cuda"] = torch.cuda.get_rng_state(dist.device)
    elif dist.device.type == "mps":
        mine["mps"] = torch.mps.get_rng_state()
    by_rank = enumerate(dist.all(mine))
    return {f"{RANDOM}{rank}.{kind}": x for rank, states in by_rank for kind, x in states.items()}


def _set_generators(states: Tensors, dist: Distributed) -> None:
    """Restore this process's generators, as far as the device is the same.

    A process that did not exist before takes the main one's: some draws must be equal in all.
    """
    rank = dist.rank if f"{RANDOM}{dist.rank}.cpu" in states else 0
    cpu, cuda, mps = (states.get(f"{RANDOM}{rank}.{kind}") for kind in ("cpu", "cuda", "mps"))
    if cpu is not None:
        torch.set_rng_state(cpu.cpu())
    if cuda is not None and dist.device.type == "cuda":
        torch.cuda.set_rng_state(cuda.cpu(), dist.device)
    if mps is not None and dist.device.type == "mps":
        torch.mps.set_rng_state(mps.cpu())


class _Header(BaseModel):
    """The header of the file."""

    step: int = Field(strict=True, ge=0)
    iteration: int = Field(strict=True, ge=0)
    scaler: dict[str, float]


def save_resume(path: Path, tensors: Tensors, content: dict[str, Any]) -> None:
    """Write the state in the middle of a step."""
    write_tensors(path, tensors, {"kind": RESUME, **content})


def load_resume(path: Path, device: torch.device) -> tuple[Tensors, dict[str, Any]]:
    """Read the state in the middle of a step."""
    tensors, content = read_tensors(path, RESUME, device)
    check(_Header, content, str(path))
    return tensors, content
