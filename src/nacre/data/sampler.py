"""The order of images over a step: what comes when depends on the seed alone.

The order of the images depends on (seed, epoch): each epoch is a shuffle of all images, of which
those that do not fill a batch are dropped. A step that has fewer images than a batch goes on over
the borders of epochs instead, so that every batch is full; an image may then be in it twice, each
time augmented in another way. Where several data sets have shares of a batch, each goes through its
own images in this way, as often as its share asks for. Neither worker processes nor the number of
training processes nor a restart in the middle of an epoch changes what is learned from. A batch of
the whole run is dealt to the training processes in slices, their local batches, and each of these
is cut into micro-batches that fit the device.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nacre.errors import NacreError


@dataclass(frozen=True)
class StepSampler:
    """The order of all images of a step over all its epochs.

    Attributes:
        num_images: How many images the step has.
        batch_size: Images per update, over all processes.
        epochs: Passes over the images, where `total` does not say how many updates there are.
        seed: Of the order.
        rank: This process.
        world_size: How many processes there are.
        micro_batch: Images that a process holds at once.
        total: Updates in all, instead of epochs.
        shares: Images of each data set and its share of a batch, where batches are shared out.
    """

    num_images: int
    batch_size: int
    epochs: int
    seed: int
    rank: int = 0
    world_size: int = 1
    micro_batch: int | None = None
    total: int | None = None
    shares: tuple[tuple[int, float], ...] | None = None

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
        assert self.num_images > 0, "a step has images"

    @property
    def local_batch(self) -> int:
        """Images of a batch that this process gets."""
        return self.batch_size // self.world_size

    @property
    def micro_batches(self) -> int:
        """Micro-batches that this process's share of a batch is cut into."""
        return self.local_batch // self._micro

    @property
    def iterations(self) -> int:
        """Updates in all."""
        if self.total is not None:
            return self.total
        if self._drops_rest:
            return self._per_epoch * self.epochs
        return max(1, round(self.num_images * self.epochs / self.batch_size))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the micro-batches from the first update on."""
        return self.starting_at(0)

    def starting_at(self, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield lists of (epoch, image) from update ``start`` on, one per micro-batch."""
        for batch in self._batches(start):
            first = self.rank * self.local_batch
            for a in range(first, first + self.local_batch, self._micro):
                yield batch[a : a + self._micro]

    def _batches(self, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield the whole run's batches."""
        if self.shares is not None:
            yield from self._shared_batches(start)
            return
        # The rest of an epoch is dropped; images fewer than a batch go on over its border.
        used = self._per_epoch * self.batch_size if self._drops_rest else self.num_images
        stream = _Stream(used, self._order)
        for iteration in range(start, self.iterations):
            first = iteration * self.batch_size
            yield [stream[i] for i in range(first, first + self.batch_size)]

    def _shared_batches(self, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield batches of which every data set has its share, in a random order."""
        assert self.shares is not None
        streams, offset = [], 0
        for number, (count, share) in enumerate(self.shares):
            streams.append((_Stream(count, self._order_of(number, count)), offset, share))
            offset += count
        for iteration in range(start, self.iterations):
            done = iteration * self.batch_size
            batch, total, before, after = [], 0.0, 0, 0
            for stream, offset, share in streams:
                total += share
                # Of the first n images of all batches, the data sets so far have round(total n).
                reached = round(total * done), round(total * (done + self.batch_size))
                pairs = (stream[i] for i in range(reached[0] - before, reached[1] - after))
                batch += [(epoch, offset + image) for epoch, image in pairs]
                before, after = reached
            shuffle = np.random.default_rng([self.seed, iteration, len(batch)])
            yield [batch[i] for i in shuffle.permutation(len(batch))]

    @property
    def _drops_rest(self) -> bool:
        return self.num_images >= self.batch_size

    @property
    def _per_epoch(self) -> int:
        return self.num_images // self.batch_size

    @property
    def _micro(self) -> int:
        return self.micro_batch or self.local_batch

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_images)

    def _order_of(self, number: int, count: int) -> Callable[[int], np.ndarray]:
        return lambda epoch: np.random.default_rng([self.seed, epoch, number]).permutation(count)


class _Stream:
    """Endless (epoch, image) pairs of a data set, by position; remembers the last epoch's order."""

    def __init__(self, count: int, order: Callable[[int], np.ndarray]) -> None:
        self.count = count
        self.order = lru_cache(maxsize=2)(order)

    def __getitem__(self, position: int) -> tuple[int, int]:
        epoch, i = divmod(position, self.count)
        return epoch, int(self.order(epoch)[i])
