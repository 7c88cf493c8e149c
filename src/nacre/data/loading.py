"""From images of a step to batches: what comes when depends on the seed alone.

The order of the images depends on (seed, epoch) and the augmentation of an image on (seed,
epoch, image), so neither worker processes nor the number of training processes nor a restart
in the middle of an epoch changes what is learnt from. A batch of the whole run is dealt to the
training processes in slices, and each slice is cut into parts that fit the device.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from nacre.data.source import Source
from nacre.data.transforms import PicturesConfig, testing_sample, training_sample
from nacre.data.worker_monitor import Desk
from nacre.errors import NacreError
from nacre.scenarios.classes import IGNORED, LabelTable

Sample = tuple[Tensor, Tensor]


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


class TrainingSet(Dataset[Sample]):
    """The images of a step, augmented; indexed by (epoch, image)."""

    def __init__(
        self,
        source: Source,
        names: Sequence[str],
        table: LabelTable,
        pictures: PicturesConfig,
        seed: int,
    ) -> None:
        self.source, self.names, self.table = source, names, table
        self.pictures, self.seed = pictures, seed

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Return the image (3,H,W) and its channels (H,W), both uint8."""
        epoch, at = key
        name = self.names[at]
        rng = np.random.default_rng([self.seed, epoch, zlib.crc32(name.encode())])
        image, mask = self.source.image("train", name), self.source.mask("train", name)
        # What is beside the picture is ignored, whatever the border's convention is.
        return _tensors(
            training_sample(image, mask, self.pictures, rng, pad=IGNORED, table=self.table)
        )


class TestingSet(Dataset[Sample]):
    """The test images of a step, as they are tested."""

    def __init__(
        self, source: Source, names: Sequence[str], table: LabelTable, pictures: PicturesConfig
    ) -> None:
        self.source, self.names, self.table, self.pictures = source, names, table, pictures

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)

    def __getitem__(self, at: int) -> Sample:
        """Return the image (3,H,W) and its channels (H,W), both uint8."""
        name = self.names[at]
        image, mask = self.source.image("val", name), self.source.mask("val", name)
        return _tensors(testing_sample(image, mask, self.pictures, table=self.table))


def training_batches(
    data: TrainingSet, order: BatchOrder, start: int, workers: int, pin: bool
) -> Iterator[list[Sample]]:
    """Yield, for each update from ``start`` on, the parts of this process's share of the batch."""
    # The sampler is the whole order, so a restart goes on in the middle of an epoch.
    loader = DataLoader(
        data,
        batch_sampler=_Sampler(order, start),
        num_workers=workers,
        pin_memory=pin,
        worker_init_fn=(desk := Desk(workers)),
    )
    parts = _plain_errors(loader)
    for _ in range(start, order.iterations):
        yield [next(parts) for _ in range(order.parts_per_batch)]
    desk.clear()


def testing_batches(
    data: TestingSet, batch: int, rank: int, processes: int, workers: int
) -> Iterator[Sample]:
    """Yield batches of this process's test images: every image once over all processes."""
    mine = range(rank, len(data), processes)
    size = batch if data.pictures.test == "crop" else 1
    groups = [list(mine[at : at + size]) for at in range(0, len(mine), size)]
    loader = DataLoader(
        data,
        batch_sampler=groups,
        num_workers=workers,
        worker_init_fn=(desk := Desk(workers)),
    )
    yield from _plain_errors(loader)
    desk.clear()


def _plain_errors(loader: DataLoader[Sample]) -> Iterator[Sample]:
    """Pass batches on; an error of a worker process comes without the worker's traceback."""
    try:
        yield from loader
    except NacreError as error:
        last = str(error).strip().splitlines()[-1]
        raise NacreError(last.rpartition("NacreError: ")[2]) from error


class _Sampler(Sampler[list[tuple[int, int]]]):
    """`BatchOrder.parts` in the form that the loader wants."""

    def __init__(self, order: BatchOrder, start: int) -> None:
        self.order, self.start = order, start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.order.parts(self.start)


def _tensors(sample: tuple[np.ndarray, np.ndarray]) -> Sample:
    return torch.from_numpy(sample[0]), torch.from_numpy(sample[1])
