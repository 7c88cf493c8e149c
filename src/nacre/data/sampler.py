"""The order of images over a step: what comes when depends on the seed alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Sampler

from nacre.errors import NacreError


@dataclass(frozen=True)
class BatchOrder:
    """The order of all images of a step over all its epochs.

    Attributes:
        images: How many images the step has.
        batch: Images an update, over all processes.
        epochs: Passes over the images.
        seed: Of the order.
        rank: This process.
        processes: How many processes there are.
        part: Images a process holds at once.
    """

    images: int
    batch: int
    epochs: int
    seed: int
    rank: int = 0
    processes: int = 1
    part: int | None = None

    def __post_init__(self) -> None:
        """Refuse batches that cannot be dealt evenly."""
        if self.batch % self.processes:
            raise NacreError(
                f"train.batch: {self.batch} images cannot be dealt evenly to {self.processes} "
                "processes; choose a multiple"
            )
        if self.share % (self.part or self.share):
            raise NacreError(
                f"train.micro_batch: the {self.share} images of a process are not a multiple "
                f"of {self.part}"
            )
        assert self.images >= self.batch, "a step has a whole batch of images"

    @property
    def share(self) -> int:
        """Images of a batch that this process gets."""
        return self.batch // self.processes

    @property
    def parts_per_batch(self) -> int:
        """Parts that this process's share of a batch is cut into."""
        return self.share // (self.part or self.share)

    @property
    def per_epoch(self) -> int:
        """Updates an epoch; the images left over are dropped."""
        return self.images // self.batch

    @property
    def iterations(self) -> int:
        """Updates in all."""
        return self.per_epoch * self.epochs

    def parts(self, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield lists of (epoch, image) from update ``start`` on, one list a part of a batch."""
        size = self.part or self.share
        order = self._order(start // self.per_epoch)
        for iteration in range(start, self.iterations):
            epoch, at = divmod(iteration, self.per_epoch)
            if at == 0:
                order = self._order(epoch)
            first = at * self.batch + self.rank * self.share
            for a in range(first, first + self.share, size):
                yield [(epoch, int(image)) for image in order[a : a + size]]

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.images)


class _Sampler(Sampler[list[tuple[int, int]]]):
    """`BatchOrder.parts` in the form that the loader wants."""

    def __init__(self, order: BatchOrder, start: int) -> None:
        self.order, self.start = order, start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.order.parts(self.start)
