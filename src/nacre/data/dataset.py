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
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from nacre.data.sampler import LoaderSampler, StepSampler
from nacre.data.source import Source, Split
from nacre.data.transforms import ImagesConfig, eval_sample, train_sample
from nacre.errors import NacreError
from nacre.labels.mapping import LabelMapping
from nacre.utils.signals import block_signals, die_with_parent, ignore_stop_signals

Sample = tuple[Tensor, ...]
"""An image (3,H,W) and its targets (H,W), both uint8, and, where there are several data sets, the
number of its own; or a batch of them."""

EvalSample = tuple[Tensor, Tensor]
"""An image and its targets, or a batch of them."""

T = TypeVar("T")

DIED = (
    "a process that loads images died; if memory ran out, fewer train.num_workers need less, and "
    "with 0 the run itself reads and tells errors"
)


class TrainDataset(Dataset[Sample]):
    """The images of a step, augmented; indexed by (epoch, image).

    Args:
        source: Where images come from.
        names: The images.
        mapping: How their labels become targets.
        config: How images are cut.
        seed: Of the augmentation.
    """

    def __init__(
        self,
        source: Source,
        names: Sequence[str],
        mapping: LabelMapping,
        config: ImagesConfig,
        seed: int,
    ) -> None:
        self.source, self.names, self.mapping = source, names, mapping
        self.config, self.seed = config, seed

    def only(self, names: Sequence[str]) -> "TrainDataset":
        """Return some of its images."""
        return TrainDataset(self.source, names, self.mapping, self.config, self.seed)

    @property
    def mappings(self) -> tuple[LabelMapping, ...]:
        """The mapping from labels to targets, of its one data set."""
        return (self.mapping,)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Return the image and its targets in an epoch."""
        epoch, i = key
        name = self.names[i]
        view = self.config.view_of(epoch)
        rng = np.random.default_rng([self.seed, view, zlib.crc32(name.encode())])
        image, mask = self.source.image("train", name), self.source.mask("train", name)
        # What is beside the image is ignored, whatever the border's convention is.
        pad, table = self.mapping.ignored, self.mapping.table
        return _tensors(train_sample(image, mask, self.config, rng, pad=pad, table=table))


class UnionDataset(Dataset[Sample]):
    """The training images of several data sets, one after another; each says whose it is."""

    def __init__(self, parts: Sequence[TrainDataset]) -> None:
        self.parts = list(parts)
        self.config = parts[0].config
        self.names = [name for part in parts for name in part.names]
        self.mappings = tuple(part.mapping for part in parts)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Return an image, its targets and the number of its data set."""
        epoch, i = key
        part = int(np.searchsorted(self._ends, i, side="right"))
        start = 0 if part == 0 else int(self._ends[part - 1])
        image, targets = self.parts[part][epoch, i - start]
        return image, targets, torch.tensor(part)


def split_off(
    dataset: TrainDataset | UnionDataset, one_of: int
) -> tuple[TrainDataset | UnionDataset, TrainDataset | UnionDataset]:
    """Return a step's images without one of so many, and these; an image's name decides.

    A data set of which no image would be left keeps all.
    """
    if isinstance(dataset, UnionDataset):
        pairs = [_split_names(part, one_of) for part in dataset.parts]
        return UnionDataset([kept for kept, _ in pairs]), UnionDataset([held for _, held in pairs])
    return _split_names(dataset, one_of)


def _split_names(dataset: TrainDataset, one_of: int) -> tuple[TrainDataset, TrainDataset]:
    is_held = {name: zlib.crc32(name.encode()) % one_of == 0 for name in dataset.names}
    if all(is_held.values()):
        is_held = dict.fromkeys(is_held, False)
    return dataset.only([n for n in dataset.names if not is_held[n]]), dataset.only(
        [n for n in dataset.names if is_held[n]]
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
        return _tensors(eval_sample(image, mask, self.config, table=self.mapping.table))


def train_batches(
    dataset: Dataset[Sample], sampler: StepSampler, start: int, num_workers: int, pin: bool
) -> Iterator[list[Sample]]:
    """Yield, for each update from ``start`` on, the micro-batches of this process."""
    # The sampler is the whole order, so a restart goes on in the middle of an epoch.
    loader = _loader(dataset, LoaderSampler(sampler, start), num_workers, pin)
    micro_batches = _plain_errors(loader)
    for _ in range(start, sampler.iterations):
        yield [next(micro_batches) for _ in range(sampler.micro_batches)]


def plain_batches(
    dataset: TrainDataset | UnionDataset,
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
    parts = dataset.parts if isinstance(dataset, UnionDataset) else [dataset]
    plain: ConcatDataset[EvalSample] = ConcatDataset(
        [EvalDataset(one.source, one.names, one.mapping, one.config, "train") for one in parts]
    )
    size = batch_size if dataset.config.eval_mode == "crop" else 1
    groups, first = [], 0
    for part, one in enumerate(parts):
        places = range(first, first + len(one))
        groups += [(part, list(places[i : i + size])) for i in range(0, len(one), size)]
        first += len(one)
    groups = groups[rank::world_size]
    loader = _loader(plain, [places for _, places in groups], num_workers, pin)
    for (part, _), (images, targets) in zip(groups, _plain_errors(loader), strict=True):
        yield images, targets, torch.tensor(part)


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
