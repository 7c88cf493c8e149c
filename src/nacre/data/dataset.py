"""Data sets and loaders of a step: the order of the images, their samples, and batches of tensors.

The order of the images depends on (seed, epoch), the augmentation of an image on (seed, epoch,
image). So neither the number of workers, nor the number of training processes, nor a restart in the
middle of an epoch changes what is learned.
"""

import multiprocessing
import os
import signal
import threading
import traceback
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torch.utils.data._utils import signal_handling

from nacre.data.image_io import Mask
from nacre.data.source import Source, Split
from nacre.data.transforms import ImagesConfig, eval_sample, train_sample
from nacre.errors import NacreError
from nacre.labels.mapping import LabelMapping
from nacre.utils.signals import block_signals, die_with_parent, ignore_stop_signals

Sample = tuple[Tensor, Tensor, Tensor]
"""An image (3,H,W), its targets (H,W) and the number of its data set, or a batch of these."""

EvalSample = tuple[Tensor, Tensor]
"""An image and its targets, or a batch of these."""

T = TypeVar("T")

_WORKER_DIED = (
    "a data-loading worker died; if memory ran out, lower train.num_workers (with 0 the main "
    "process reads the images itself)"
)
_DEATH_MESSAGES = ("DataLoader worker", "Pin memory thread")


@dataclass(frozen=True)
class LabeledImages:
    """Images of one data set, and the mapping from their labels to targets.

    Attributes:
        source: The data set.
        names: The names of the images.
        mapping: The mapping.
        split: The split of the images: training images can be held out for tests, too.
    """

    source: Source
    names: Sequence[str]
    mapping: LabelMapping
    split: Split = "train"

    def __len__(self) -> int:
        return len(self.names)

    def read(self, name: str) -> tuple[Image.Image, Mask]:
        """Return an image and its mask."""
        return self.source.image(self.split, name), self.source.mask(self.split, name)


class TrainDataset(Dataset[Sample]):
    """The augmented images of a step, one data set after another, indexed by (epoch, image).

    Args:
        folders: The images of each data set.
        config: Crop and augmentation.
        seed: Seed of the augmentation.
    """

    def __init__(self, folders: Sequence[LabeledImages], config: ImagesConfig, seed: int) -> None:
        self.folders, self.config, self.seed = list(folders), config, seed
        self._keys = [(i, name) for i, images in enumerate(folders) for name in images.names]

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Return an image and its targets in an epoch, and the number of its data set."""
        epoch, i = key
        number, name = self._keys[i]
        images, view = self.folders[number], self.config.view_of(epoch)
        rng = np.random.default_rng([self.seed, view, zlib.crc32(name.encode())])
        # Padding is always ignored, whatever `labels.border` is.
        pad, lookup = images.mapping.ignored, images.mapping.lookup
        pixels, targets = train_sample(*images.read(name), self.config, rng, pad=pad, lookup=lookup)
        return torch.from_numpy(pixels), torch.from_numpy(targets), torch.tensor(number)

    @property
    def mappings(self) -> tuple[LabelMapping, ...]:
        """The mapping from labels to targets of each data set."""
        return tuple(images.mapping for images in self.folders)


def split_off(dataset: TrainDataset, one_of: int) -> tuple[TrainDataset, TrainDataset]:
    """Split a step's images in two: all but one of `one_of`, and the others, chosen by name.

    A data set that would lose all of its images keeps them.
    """
    kept, held_out = [], []
    for images in dataset.folders:
        chosen = {name for name in images.names if zlib.crc32(name.encode()) % one_of == 0}
        if len(chosen) == len(images):
            chosen = set()
        kept.append(replace(images, names=[name for name in images.names if name not in chosen]))
        held_out.append(replace(images, names=[name for name in images.names if name in chosen]))
    return (
        TrainDataset(kept, dataset.config, dataset.seed),
        TrainDataset(held_out, dataset.config, dataset.seed),
    )


class EvalDataset(Dataset[EvalSample]):
    """Images for testing: not augmented, and cropped in the same way in every epoch."""

    def __init__(self, images: LabeledImages, config: ImagesConfig) -> None:
        self.images, self.config = images, config

    def __len__(self) -> int:
        return len(self.images)

    @property
    def names(self) -> Sequence[str]:
        """The names of the images."""
        return self.images.names

    def __getitem__(self, i: int) -> EvalSample:
        images = self.images
        pixels, labels = eval_sample(*images.read(images.names[i]), self.config)
        return torch.from_numpy(pixels), torch.from_numpy(images.mapping.apply(labels))


@dataclass(frozen=True)
class StepSampler:
    """The order of the images of a step over all epochs, decided by the seed alone.

    Each epoch shuffles all images and drops those that do not fill a batch. If a step has fewer
    images than a batch, batches cross the borders of epochs instead; such a batch may contain an
    image twice, augmented differently. If several data sets share the batches, each passes through
    its own images in this way. The processes split each batch into local batches, and these into
    micro-batches that fit the device.

    Attributes:
        num_images: Number of images of the step.
        batch_size: Images per update, over all processes.
        epochs: Passes over the images, unless `total` is given.
        seed: Seed of the order.
        rank: Rank of this process.
        world_size: Number of processes.
        micro_batch: Images of a micro-batch; by default a local batch.
        total: Number of updates.
        shares: If data sets share the batches, the number of images of each and its fraction.
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
        if self.batch_size % self.world_size:
            raise NacreError(
                f"train.batch_size: {self.batch_size} images cannot be split evenly among "
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
        """Images per update in this process."""
        return self.batch_size // self.world_size

    @property
    def micro_batches(self) -> int:
        """Micro-batches per update in this process."""
        return self.local_batch // self._micro

    @property
    def iterations(self) -> int:
        """The number of updates."""
        if self.total is not None:
            return self.total
        if self._drops_rest:
            return self._per_epoch * self.epochs
        return max(1, round(self.num_images * self.epochs / self.batch_size))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.starting_at(0)

    def starting_at(self, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield lists of (epoch, image) for each micro-batch, beginning with update ``start``."""
        for batch in self._batches(start):
            first = self.rank * self.local_batch
            for a in range(first, first + self.local_batch, self._micro):
                yield batch[a : a + self._micro]

    def _batches(self, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield the batches of all processes; each stream of images fills its fraction of them."""
        streams = self._streams()
        for iteration in range(start, self.iterations):
            done = iteration * self.batch_size
            batch, total, before, after = [], 0.0, 0, 0
            for stream, offset, share in streams:
                total += share
                # The streams so far provide round(total * n) of the first n images.
                reached = round(total * done), round(total * (done + self.batch_size))
                pairs = (stream[i] for i in range(reached[0] - before, reached[1] - after))
                batch += [(epoch, offset + image) for epoch, image in pairs]
                before, after = reached
            if self.shares is not None:
                shuffle = np.random.default_rng([self.seed, iteration, len(batch)])
                batch = [batch[i] for i in shuffle.permutation(len(batch))]
            yield batch

    def _streams(self) -> list[tuple["_Stream", int, float]]:
        """Return each stream of images, the number of its first image, and its fraction."""
        if self.shares is None:
            used = self._per_epoch * self.batch_size if self._drops_rest else self.num_images
            return [(_Stream(used, self.num_images, self.seed), 0, 1.0)]
        streams, offset = [], 0
        for number, (count, share) in enumerate(self.shares):
            streams.append((_Stream(count, count, self.seed, number), offset, share))
            offset += count
        return streams

    @property
    def _drops_rest(self) -> bool:
        return self.num_images >= self.batch_size

    @property
    def _per_epoch(self) -> int:
        return self.num_images // self.batch_size

    @property
    def _micro(self) -> int:
        return self.micro_batch or self.local_batch


class _Stream:
    """An endless shuffle: each epoch visits `used` of `count` images in an order of its own."""

    def __init__(self, used: int, count: int, seed: int, *of: int) -> None:
        def order(epoch: int) -> np.ndarray:
            return np.random.default_rng([seed, epoch, *of]).permutation(count)

        self.used, self.order = used, lru_cache(maxsize=2)(order)

    def __getitem__(self, position: int) -> tuple[int, int]:
        """Return the epoch and the image at a position."""
        epoch, i = divmod(position, self.used)
        return epoch, int(self.order(epoch)[i])


def train_batches(
    dataset: Dataset[Sample], sampler: StepSampler, start: int, num_workers: int, pin: bool
) -> Iterator[list[Sample]]:
    """Yield the micro-batches of this process for each update, beginning with ``start``."""
    micro_batches = _load(dataset, sampler.starting_at(start), num_workers, pin)
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
    """Yield batches of a step's images as for testing: each image once over all processes.

    A batch contains one data set only, and processes receive whole batches: neither other data sets
    nor the number of processes changes a batch. The third tensor is the number of the data set.
    """
    config, folders = dataset.config, dataset.folders
    plain: ConcatDataset[EvalSample]
    plain = ConcatDataset([EvalDataset(images, config) for images in folders])
    size = batch_size if config.eval_mode == "crop" else 1
    groups, first = [], 0
    for number, images in enumerate(folders):
        keys = range(first, first + len(images))
        groups += [(number, list(keys[i : i + size])) for i in range(0, len(keys), size)]
        first += len(keys)
    groups = groups[rank::world_size]
    batches = _load(plain, [keys for _, keys in groups], num_workers, pin)
    for (number, _), (pixels, targets) in zip(groups, batches, strict=True):
        yield pixels, targets, torch.tensor(number)


def eval_batches(
    dataset: EvalDataset,
    batch_size: int,
    rank: int,
    world_size: int,
    num_workers: int,
    pin: bool = False,
) -> Iterator[EvalSample]:
    """Yield batches of the test images: each image once over all processes."""
    mine = range(rank, len(dataset), world_size)
    size = batch_size if dataset.config.eval_mode == "crop" else 1
    groups = [list(mine[i : i + size]) for i in range(0, len(mine), size)]
    return _load(dataset, groups, num_workers, pin)


def _load(
    dataset: Dataset[T], groups: Iterable[list[Any]], num_workers: int, pin: bool
) -> Iterator[T]:
    """Yield batches of a data set, given as lists of keys.

    An error of a worker is raised without the worker's traceback. A worker that dies is an error
    where the next batch is requested, and nowhere else.
    """
    loader = DataLoader(
        dataset,
        batch_sampler=groups,
        num_workers=num_workers,
        pin_memory=pin,
        # Without its own generator it would draw from the one that dropout draws from.
        generator=torch.Generator(),
        worker_init_fn=partial(_begin_worker, os.getpid()),
    )
    batches = _begin(loader)
    try:
        yield from batches
    except (NacreError, RuntimeError, ConnectionError, EOFError) as error:
        is_death = num_workers > 0 and not str(error).startswith("Caught ")  # in a worker
        if isinstance(error, RuntimeError):
            is_death = str(error).startswith(_DEATH_MESSAGES)
        if not is_death and not isinstance(error, NacreError):
            raise
        # The error's frames keep the loader alive, and its workers would outlive the program.
        del batches
        traceback.clear_frames(error.__traceback__)
        if not isinstance(error, NacreError):
            raise NacreError(_WORKER_DIED) from error
        last = str(error).strip().splitlines()[-1]
        raise NacreError(last.rpartition("NacreError: ")[2]) from error


def _begin(loader: DataLoader[T]) -> Iterator[T]:
    """Start the workers of a loader, so that the death of one can never stop the trainer.

    torch's SIGCHLD handler raises wherever the main thread is. If that is between the two halves
    of a `with lock:`, the lock stays held, and the loader's shutdown waits for it forever. So the
    handler never checks these workers, and the loader itself does when a batch is 5 s late. The
    event that ends the workers is shared with them, and one may die while it holds the event's
    lock: here the trainer has an event of its own and kills them.
    """
    check = signal_handling._error_if_any_worker_fails  # type: ignore[attr-defined]
    signal_handling._error_if_any_worker_fails = lambda: None  # type: ignore[attr-defined]
    try:
        with block_signals():
            batches: Any = iter(loader)
        if loader.num_workers:
            signal_handling._remove_worker_pids(id(batches))  # type: ignore[attr-defined]
            batches._worker_pids_set = False
    finally:
        signal_handling._error_if_any_worker_fails = check  # type: ignore[attr-defined]
    if loader.num_workers:
        batches._workers_done_event = _WorkersDone(batches._workers)
    return cast("Iterator[T]", batches)


class _WorkersDone(threading.Event):
    """The event that ends the workers of a loader: it kills them, for they have nothing to save."""

    def __init__(self, workers: Sequence[BaseProcess]) -> None:
        super().__init__()
        self.workers = workers

    def set(self) -> None:
        """Kill the workers."""
        super().set()
        for worker in self.workers:
            worker.kill()


def _begin_worker(trainer: int, worker: int) -> None:
    """Begin a worker process: it leaves stop signals to the trainer, and dies with it."""
    is_served = multiprocessing.get_start_method() == "forkserver"  # which dies with it too
    # A worker holds nothing that is worth saving.
    die_with_parent(os.getppid() if is_served else trainer, signal.SIGKILL)
    ignore_stop_signals()
