"""The order of images over a step: what comes when depends on the seed alone.

The order of the images depends on (seed, epoch), so neither worker processes nor the number of
training processes nor a restart in the middle of an epoch changes what is learnt from. A batch of
the whole run is dealt to the training processes in slices, their local batches, and each of these
is cut into micro-batches that fit the device.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Sampler

from nacre.errors import NacreError


@dataclass(frozen=True)
class StepSampler:
    """The order of all images of a step over all its epochs.

    Attributes:
        num_images: How many images the step has.
        batch_size: Images per update, over all processes.
        epochs: Passes over the images.
        seed: Of the order.
        rank: This process.
        world_size: How many processes there are.
        micro_batch: Images that a process holds at once.
    """

    num_images: int
    batch_size: int
    epochs: int
    seed: int
    rank: int = 0
    world_size: int = 1
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        """Refuse batches that cannot be dealt evenly."""
        if self.batch_size % self.world_size:
            raise NacreError(
                f"train.batch_size: {self.batch_size} images cannot be dealt evenly to "
                f"{self.world_size} processes; choose a multiple"
            )
        if self.local_batch % self._micro:
            raise NacreError(
                f"train.micro_batch: the {self.local_batch} images of a process are not a "
                f"multiple of {self.micro_batch}"
            )
        assert self.num_images >= self.batch_size, "a step has a whole batch of images"

    @property
    def local_batch(self) -> int:
        """Images of a batch that this process gets."""
        return self.batch_size // self.world_size

    @property
    def micro_batches(self) -> int:
        """Micro-batches that this process's share of a batch is cut into."""
        return self.local_batch // self._micro

    @property
    def iterations_per_epoch(self) -> int:
        """Updates per epoch; the images left over are dropped."""
        return self.num_images // self.batch_size

    @property
    def iterations(self) -> int:
        """Updates in all."""
        return self.iterations_per_epoch * self.epochs

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the micro-batches from the first update on."""
        return self.starting_at(0)

    def starting_at(self, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield lists of (epoch, image) from update ``start`` on, one per micro-batch."""
        order = self._order(start // self.iterations_per_epoch)
        for iteration in range(start, self.iterations):
            epoch, i = divmod(iteration, self.iterations_per_epoch)
            if i == 0:
                order = self._order(epoch)
            first = i * self.batch_size + self.rank * self.local_batch
            for a in range(first, first + self.local_batch, self._micro):
                yield [(epoch, int(image)) for image in order[a : a + self._micro]]

    @property
    def _micro(self) -> int:
        return self.micro_batch or self.local_batch

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_images)


class LoaderSampler(Sampler[list[tuple[int, int]]]):
    """A step's order from an update on, in the form that torch's loader wants."""

    def __init__(self, sampler: StepSampler, start: int) -> None:
        self.sampler, self.start = sampler, start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.sampler.starting_at(self.start)
