"""A batch and a step: what a method is shown."""

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
        num_valid_pixels: How many pixels a loss on the targets is averaged over. It is the share
            of the whole batch, so that gradient accumulation and several processes change nothing.
            Pseudo-labels do not change it: it is counted with the labels of the data.
        may_be: N,C,C, bool: whether a pixel of an image whose target is y may in truth be c. None
            where that is what the method's loss assumes by itself (`labels.rows_for_loss`).
        replaced_targets: N,H,W, the data's own, where pseudo-labels took their place.
        weights: N, of the images in the cross-entropy, where pseudo-labels say so.
        folder: the number of the data set that all images are from, in passes without augmentation.
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
        """N,C: what background may in truth be, by image; None as for `may_be`."""
        return None if self.may_be is None else self.may_be[:, 0]

    def ce(self, usual: Variant) -> Variant:
        """Return which cross-entropy is right: the usual one unless the data say what hides."""
        return usual if self.may_be is None else "unbiased"

    def sure_targets(self, first_new: int) -> Tensor:
        """Return the data's targets, with background ignored in which a new class may hide."""
        targets = self.data_targets
        if self.hidden is None:
            return targets
        unsure = self.hidden[:, first_new:].any(1)[:, None, None] & (targets == 0)
        return targets.masked_fill(unsure, ignore_value(targets))

    @property
    def data_targets(self) -> Tensor:
        """The targets as the data have them, without pseudo-labels."""
        return self.targets if self.replaced_targets is None else self.replaced_targets


@dataclass(frozen=True)
class Judged:
    """The judgment on held-out images of whether the updates are kept.

    Attributes:
        before: Mean IoU without the updates.
        after: With them.
        kept: Whether that is enough to keep them.
        classes: The channels that the updated part has a say in.
    """

    before: float
    after: float
    kept: bool
    classes: list[int]


@dataclass(kw_only=True)
class Step:
    """One step, from its plan to its result.

    Before it is learned, `network` is the one that it starts from (None: a new one) and `state`
    what the method kept with it; afterwards both are those that the step leaves.

    Attributes:
        number: Its number among the steps that made the model; 0 is the first.
        channels: Of the model after the step.
        growth: What the step adds to them.
        data: The images to learn from, with targets.
        sampler: Which of them come when.
        config: The recipe (`nacre.training.config.Recipe`).
        dist: The processes that compute, and where.
        tests: How the network is tested after it (`nacre.runs`).
        entry: What the model's history says of the step.
        history: The entries of the steps before it.
        overlapped: Whether its images may come again in other steps, with other labels.
        network: The student, as soon as it has grown.
        state: What the method keeps for later steps.
        teacher: The frozen network of the step before, where the method uses one.
        may_be: D,C,C: as in `Batch`, for each data set that it learns from.
        held_data: Images that no update is made from, where the method judges by such.
        weights_before: The network's tensors before it grew, where they are to be fused with.
        thresholds: Of pseudo-labels by entropy, by old channel.
        observe: Receives events.
        should_stop: Whether the user wants to stop.
        on_images: Told in a pass without augmentation how many batches this process has seen.
        on_usable: Called when the network is of use before the first update.
        judged: What the method found the updates to be worth, where it judges them.
        map_elsewhere: Has others carry out such a pass in shares, see `map_images`.
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
        """Channels that the step adds; in step 0 all of them."""
        return self.growth.num_new

    @property
    def num_classes(self) -> int:
        """All channels, background included."""
        return len(self.growth.origins)

    @property
    def new_names(self) -> list[str]:
        """The classes that are new."""
        return list(self.channels.names[self.growth.first_new :])

    @property
    def num_images(self) -> int:
        """The number of images that updates are made from."""
        return len(self.data)

    @property
    def iterations(self) -> int:
        """Updates of the whole step."""
        return self.sampler.iterations

    @property
    def iterations_per_epoch(self) -> int:
        """Updates of one pass over the images."""
        return self._first_epoch.iterations

    @property
    def _first_epoch(self) -> StepSampler:
        return replace(self.sampler, epochs=1, total=None)

    def images(self) -> Iterator[Batch]:
        """Yield this process's share of the step's images, each once and as it would be tested.

        Over all processes the batches are the same, however many processes there are.

        Raises:
            Interrupted: when the user wanted to stop; nothing was saved.
        """
        return self._plain_pass(self.data)

    def held_out(self) -> Iterator[Batch]:
        """Yield this process's share of the images that are held out, as `images` does."""
        return iter(()) if self.held_data is None else self._plain_pass(self.held_data)

    def _plain_pass(self, data: TrainDataset) -> Iterator[Batch]:
        dist, train = self.dist, self.config.train
        pin, workers = dist.device.type == "cuda", count_workers(train.num_workers, dist.device)
        size = train.test_batch(1)  # not a process's share: a batch is the same for any number
        batches = plain_batches(data, size, dist.rank, dist.world_size, workers, pin)
        for done, sample in enumerate(until_stopped(batches, dist, self.should_stop), start=1):
            images, targets, whose = (one.to(dist.device, non_blocking=True) for one in sample)
            rows = None if self.may_be is None else self.may_be[whose].expand(len(images), -1, -1)
            yield Batch(images, targets, may_be=rows, folder=int(whose))
            self.on_images(done)

    def map_images(self, function: Callable[[Network, Iterator[Batch]], T]) -> Iterator[T]:
        """Yield what a function of the network and images returns for shares of such a pass.

        This process has one share, which it carries out itself, unless `map_elsewhere` has many
        carried out by the machines of a cluster: to them the function is sent with all it holds.
        """
        if self.map_elsewhere is None:
            yield function(self.network, self.images())
        else:
            yield from self.map_elsewhere(function)


def until_stopped(
    batches: Iterator[T], dist: Distributed, should_stop: Callable[[], bool]
) -> Iterator[T]:
    """Pass this process's batches on until one of the processes is told to stop."""
    while True:
        batch = next(batches, None)
        # Some processes have a batch more than others; all take part until nobody has one.
        stop, more = dist.any(should_stop(), batch is not None)
        if stop:
            raise Interrupted
        if not more:
            return
        if batch is not None:
            yield batch
