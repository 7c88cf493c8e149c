"""From images of a step to batches: what comes when depends on the seed alone.

The order of the images depends on (seed, epoch) and the augmentation of an image on (seed,
epoch, image), so neither worker processes nor the number of training processes nor a restart
in the middle of an epoch changes what is learnt from. A batch of the whole run is dealt to the
training processes in slices, and each slice is cut into parts that fit the device.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nacre.data.sampler import BatchOrder, _Sampler
from nacre.data.source import Source
from nacre.data.transforms import PicturesConfig, eval_sample, train_sample
from nacre.data.worker_monitor import Desk
from nacre.errors import NacreError
from nacre.scenarios.classes import IGNORED, LabelTable

Sample = tuple[Tensor, Tensor]


class TrainDataset(Dataset[Sample]):
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
            train_sample(image, mask, self.pictures, rng, pad=IGNORED, table=self.table)
        )


class EvalDataset(Dataset[Sample]):
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
        return _tensors(eval_sample(image, mask, self.pictures, table=self.table))


def train_batches(
    data: TrainDataset, order: BatchOrder, start: int, workers: int, pin: bool
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


def eval_batches(
    data: EvalDataset, batch: int, rank: int, processes: int, workers: int
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


def _tensors(sample: tuple[np.ndarray, np.ndarray]) -> Sample:
    return torch.from_numpy(sample[0]), torch.from_numpy(sample[1])
