"""The batch and the step: the inputs of a method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import Tensor

from nacre.data.dataset import StepSampler, TrainDataset, plain_batches
from nacre.labels.channels import Channels, Growth, ignore_value
from nacre.losses.softmax import Variant
from nacre.models.network import Network
from nacre.utils.device import count_workers
from nacre.utils.distributed import Distributed
from nacre.utils.signals import Interrupted
from nacre.utils.tensor_file import Tensors

T = TypeVar("T")

Mapper = Callable[[Callable[[Network, Iterator["Batch"]], Any]], Iterator[Any]]


@dataclass(frozen=True)
class Batch:
    """The input of one call of `losses`.

    Attributes:
        images: N,3,H,W, uint8 RGB.
        targets: N,H,W, channel numbers; 255 is ignored.
        num_valid_pixels: The divisor of losses on the targets: this call's share of the labeled
            pixels of the whole batch, so that neither accumulation nor the number of processes
            changes a loss. It is counted before pseudo-labels.
        may_be: N,C,C, bool: whether a pixel of the image with target y may be channel c. None if
            the method's own assumption holds (`labels.rows_for_loss`).
        replaced_targets: N,H,W, the labels of the data if `targets` are pseudo-labels.
        weights: N, weights of the images in the cross-entropy, if pseudo-labels weigh them.
        folder: The number of the images' data folder, in a pass without augmentation.
    """

    images: Tensor
    targets: Tensor
    num_valid_pixels: float | None = None
    may_be: Tensor | None = None
    replaced_targets: Tensor | None = None
    weights: Tensor | None = None
    folder: int = 0

    @property
    def hidden(self) -> Tensor | None:
        """N,C: the channels that the background of each image may be; None as for `may_be`."""
        return None if self.may_be is None else self.may_be[:, 0]

    def ce(self, default: Variant) -> Variant:
        """Return the cross-entropy to use: unbiased if the data sets declare hidden classes."""
        return default if self.may_be is None else "unbiased"

    def sure_targets(self, first_new: int) -> Tensor:
        """Return the labels of the data without background in which a new class may be hidden."""
        targets = self.data_targets
        if self.hidden is None:
            return targets
        unsure = self.hidden[:, first_new:].any(1)[:, None, None] & (targets == 0)
        return targets.masked_fill(unsure, ignore_value(targets))

    @property
    def data_targets(self) -> Tensor:
        """The labels of the data, without pseudo-labels."""
        return self.targets if self.replaced_targets is None else self.replaced_targets


@dataclass(frozen=True)
class Judged:
    """The verdict of held-out images on the updates of a step.

    Attributes:
        before: Mean IoU without the updates.
        after: Mean IoU with them.
        kept: Whether the updates are kept.
        classes: The channels that the updated network has learned.
    """

    before: float
    after: float
    kept: bool
    classes: list[int]


@dataclass(kw_only=True)
class Step:
    """One step, from its plan to its result.

    Before the step `network` is the start model (None: a new one) and `state` the method's tensors
    for it; afterwards they are those of the learned model.

    Attributes:
        number: The number of the step in the history of the model, from 0.
        channels: The channels of the model after the step.
        growth: The channels that the step adds.
        data: The training images.
        sampler: The order of the images.
        config: The training config (`nacre.training.config.Recipe`).
        dist: The device and the processes.
        tests: How to test the network after the step (`nacre.runs`).
        entry: The step's entry in the history of the model.
        history: The entries of the steps before.
        overlapped: Whether other steps may use the same images with other labels.
        network: The student; it has grown when a method gets it.
        state: The method's tensors for later steps.
        teacher: The frozen network of the step before, if the method needs it.
        may_be: D,C,C: `Batch.may_be` for each data folder.
        held_data: The held-out images.
        weights_before: The tensors of the network before it grew, for fusion.
        thresholds: Of pseudo-labels by entropy, for each old channel.
        observe: Receives events.
        should_stop: Returns True if the user wants to stop.
        on_images: Receives the number of batches so far, in a pass without augmentation.
        on_usable: Called if the network can be used before the first update.
        judged: The method's verdict on the updates.
        map_elsewhere: Runs a function on shares of the images on other machines (`map_images`).
    """

    number: int
    channels: Channels
    growth: Growth
    data: TrainDataset
    sampler: StepSampler
    config: Any
    dist: Distributed
    tests: Any = None
    entry: dict[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    overlapped: bool = True
    network: Network = None  # type: ignore[assignment]  # methods see it when it is there
    state: Tensors = field(default_factory=dict)
    teacher: Network | None = None
    may_be: Tensor | None = None
    held_data: TrainDataset | None = None
    weights_before: Mapping[str, Tensor] = field(default_factory=dict)
    thresholds: Tensor | None = None
    observe: Callable[[Any], None] = lambda event: None
    should_stop: Callable[[], bool] = lambda: False
    on_images: Callable[[int], None] = lambda done: None
    on_usable: Callable[[], None] = lambda: None
    judged: Judged | None = None
    map_elsewhere: Mapper | None = None

    @property
    def num_new(self) -> int:
        """Number of channels that the step adds, in step 0 all of them."""
        return self.growth.num_new

    @property
    def num_classes(self) -> int:
        """Number of channels after the step, background included."""
        return len(self.growth.origins)

    @property
    def new_names(self) -> list[str]:
        """The names of the new classes."""
        return list(self.channels.names[self.growth.first_new :])

    @property
    def num_images(self) -> int:
        """Number of training images."""
        return len(self.data)

    @property
    def iterations(self) -> int:
        """Number of updates."""
        return self.sampler.iterations

    @property
    def iterations_per_epoch(self) -> int:
        """Number of updates of one pass over the images."""
        return replace(self.sampler, epochs=1, total=None).iterations

    def images(self) -> Iterator[Batch]:
        """Yield this process's share of the images, each once and without augmentation.

        The batches do not depend on the number of processes.

        Raises:
            Interrupted: The user wants to stop; nothing was saved.
        """
        return self._plain_pass(self.data)

    def held_out(self) -> Iterator[Batch]:
        """Yield this process's share of the held-out images, as `images` does."""
        return iter(()) if self.held_data is None else self._plain_pass(self.held_data)

    def _plain_pass(self, data: TrainDataset) -> Iterator[Batch]:
        dist, train = self.dist, self.config.train
        pin, workers = dist.device.type == "cuda", count_workers(train.num_workers, dist.device)
        size = train.test_batch(1)  # the same for any number of processes
        batches = plain_batches(data, size, dist.rank, dist.world_size, workers, pin)
        for done, sample in enumerate(until_stopped(batches, dist, self.should_stop), start=1):
            images, targets, folder = (part.to(dist.device, non_blocking=True) for part in sample)
            rows = None if self.may_be is None else self.may_be[folder].expand(len(images), -1, -1)
            yield Batch(images, targets, may_be=rows, folder=int(folder))
            self.on_images(done)

    def map_images(self, function: Callable[[Network, Iterator[Batch]], T]) -> Iterator[T]:
        """Yield the results of a function of the network and a share of the images.

        There is one share, this process's, unless `map_elsewhere` runs the function on many shares
        on the machines of a cluster.
        """
        if self.map_elsewhere is None:
            yield function(self.network, self.images())
        else:
            yield from self.map_elsewhere(function)


def until_stopped(
    batches: Iterator[T], dist: Distributed, should_stop: Callable[[], bool]
) -> Iterator[T]:
    """Yield this process's batches; raise Interrupted if any process should stop."""
    while True:
        batch = next(batches, None)
        # Some processes have one batch more than others; all call `any` equally often.
        stop, more = dist.any(should_stop(), batch is not None)
        if stop:
            raise Interrupted
        if not more:
            return
        if batch is not None:
            yield batch
