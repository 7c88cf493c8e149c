"""From images of a step to batches of tensors.

The augmentation of an image depends on (seed, epoch, image), so that neither worker processes
nor the number of training processes nor a restart changes what is learned from.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from nacre.data.sampler import StepSampler
from nacre.data.source import Source, Split
from nacre.data.transforms import ImagesConfig, eval_sample, train_sample
from nacre.errors import NacreError
from nacre.labels.mapping import LabelMapping
from nacre.utils.signals import block_signals, die_with_parent, ignore_stop_signals

Sample = tuple[Tensor, Tensor, Tensor]
"""An image (3,H,W), its targets (H,W) and the number of its data set; or a batch of them."""

EvalSample = tuple[Tensor, Tensor]
"""An image and its targets, or a batch of them."""

T = TypeVar("T")

DIED = (
    "a process that loads images died; if memory ran out, fewer train.num_workers need less, and "
    "with 0 the run itself reads and tells errors"
)


@dataclass(frozen=True)
class LabeledImages:
    """Images of one data set, and how their labels become targets."""

    source: Source
    names: Sequence[str]
    mapping: LabelMapping

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)


class TrainDataset(Dataset[Sample]):
    """The images of a step, augmented; indexed by (epoch, image), one data set after another.

    Args:
        folders: The images of each data set.
        config: How images are cut.
        seed: Of the augmentation.
    """

    def __init__(self, folders: Sequence[LabeledImages], config: ImagesConfig, seed: int) -> None:
        self.folders, self.config, self.seed = list(folders), config, seed
        self._keys = [(i, name) for i, one in enumerate(folders) for name in one.names]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._keys)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Return an image and its targets in an epoch, and the number of its data set."""
        epoch, i = key
        number, name = self._keys[i]
        source, mapping = self.folders[number].source, self.folders[number].mapping
        view = self.config.view_of(epoch)
        rng = np.random.default_rng([self.seed, view, zlib.crc32(name.encode())])
        image, mask = source.image("train", name), source.mask("train", name)
        # What is beside the image is ignored, whatever the border's convention is.
        pad, table = mapping.ignored, mapping.table
        cut = train_sample(image, mask, self.config, rng, pad=pad, table=table)
        return *_tensors(cut), torch.tensor(number)

    @property
    def mappings(self) -> tuple[LabelMapping, ...]:
        """The mapping from labels to targets of each data set."""
        return tuple(one.mapping for one in self.folders)


def split_off(dataset: TrainDataset, one_of: int) -> tuple[TrainDataset, TrainDataset]:
    """Return a step's images without one of so many, and these; an image's name decides.

    A data set of which no image would be left keeps all.
    """
    kept, held = [], []
    for one in dataset.folders:
        chosen = {name for name in one.names if zlib.crc32(name.encode()) % one_of == 0}
        if len(chosen) == len(one):
            chosen = set()
        kept.append(replace(one, names=[name for name in one.names if name not in chosen]))
        held.append(replace(one, names=[name for name in one.names if name in chosen]))
    return (
        TrainDataset(kept, dataset.config, dataset.seed),
        TrainDataset(held, dataset.config, dataset.seed),
    )


class EvalDataset(Dataset[EvalSample]):
    """Images as a network is tested on them: the same square of each, not augmented.

    Args:
        source: Where images come from.
        names: The images.
        mapping: How their labels become targets.
        config: How images are cut.
        split: Where the images lie: training images can be held out for tests.
    """

    def __init__(
        self,
        source: Source,
        names: Sequence[str],
        mapping: LabelMapping,
        config: ImagesConfig,
        split: Split = "val",
    ) -> None:
        self.source, self.names, self.mapping, self.config = source, names, mapping, config
        self.split: Split = split

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)

    def __getitem__(self, i: int) -> EvalSample:
        """Return the image and its targets."""
        name = self.names[i]
        image, mask = self.source.image(self.split, name), self.source.mask(self.split, name)
        pixels, labels = eval_sample(image, mask, self.config)
        return _tensors((pixels, self.mapping.apply(labels)))


def train_batches(
    dataset: Dataset[Sample], sampler: StepSampler, start: int, num_workers: int, pin: bool
) -> Iterator[list[Sample]]:
    """Yield, for each update from ``start`` on, the micro-batches of this process."""
    # The sampler is the whole order, so a restart goes on in the middle of an epoch.
    loader = _loader(dataset, sampler.starting_at(start), num_workers, pin)
    micro_batches = _plain_errors(loader)
    for _ in range(start, sampler.iterations):
        yield [next(micro_batches) for _ in range(sampler.micro_batches)]


def plain_batches(
    dataset: TrainDataset,
    batch_size: int,
    rank: int,
    world_size: int,
    num_workers: int,
    pin: bool = False,
) -> Iterator[Sample]:
    """Yield batches of a step's images, each image once over all processes and not augmented.

    Images are cut as they are tested. A batch is of one data set, whose last one may be short, and
    whole batches are dealt to the processes: neither other data sets nor the number of processes
    changes what a batch holds. Beside images and targets stands the number of the data set.
    """
    config, folders = dataset.config, dataset.folders
    plain: ConcatDataset[EvalSample] = ConcatDataset(
        [EvalDataset(one.source, one.names, one.mapping, config, "train") for one in folders]
    )
    size = batch_size if config.eval_mode == "crop" else 1
    groups, first = [], 0
    for number, one in enumerate(folders):
        places = range(first, first + len(one))
        groups += [(number, list(places[i : i + size])) for i in range(0, len(one), size)]
        first += len(one)
    groups = groups[rank::world_size]
    loader = _loader(plain, [places for _, places in groups], num_workers, pin)
    for (number, _), (images, targets) in zip(groups, _plain_errors(loader), strict=True):
        yield images, targets, torch.tensor(number)


def eval_batches(
    dataset: EvalDataset,
    batch_size: int,
    rank: int,
    world_size: int,
    num_workers: int,
    pin: bool = False,
) -> Iterator[EvalSample]:
    """Yield batches of this process's test images: every image once over all processes."""
    mine = range(rank, len(dataset), world_size)
    size = batch_size if dataset.config.eval_mode == "crop" else 1
    groups = [list(mine[i : i + size]) for i in range(0, len(mine), size)]
    loader = _loader(dataset, groups, num_workers, pin)
    yield from _plain_errors(loader)


def _loader(
    dataset: Dataset[T], batches: Iterable[list[Any]], num_workers: int, pin: bool
) -> DataLoader[T]:
    """Return what loads batches of a data set, given as lists of keys."""
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        pin_memory=pin,
        # Without a generator of its own it would draw from the one that dropout draws from.
        generator=torch.Generator(),
        worker_init_fn=partial(_begin_worker, os.getpid()),
    )


def _plain_errors(loader: DataLoader[T]) -> Iterator[T]:
    """Pass batches on; an error of a worker process comes without the worker's traceback."""
    try:
        with block_signals():
            batches = iter(loader)
        yield from batches
    except (NacreError, ConnectionError, EOFError) as error:
        # Whoever keeps the error would keep the loader, whose processes then outlive the program.
        del batches
        traceback.clear_frames(error.__traceback__)
        if not isinstance(error, NacreError):  # the pipe of a worker that is gone
            raise NacreError(DIED) from error
        last = str(error).strip().splitlines()[-1]
        raise NacreError(last.rpartition("NacreError: ")[2]) from error


def _begin_worker(trainer: int, worker: int) -> None:
    """Begin a worker process, in which stops are the trainer's business, and die with it."""
    is_served = multiprocessing.get_start_method() == "forkserver"  # which dies with it too
    # Nothing that a helper holds is worth a moment more than its trainer.
    die_with_parent(os.getppid() if is_served else trainer, signal.SIGKILL)
    ignore_stop_signals()


@contextlib.contextmanager
def explain_worker_crash() -> Iterator[None]:
    """Explain in one sentence that a worker died; torch reports it wherever the trainer is then."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise NacreError(DIED) from error


def _tensors(sample: tuple[np.ndarray, np.ndarray]) -> EvalSample:
    return torch.from_numpy(sample[0]), torch.from_numpy(sample[1])
