"""How a step changed what a model knows: every test set before and after it, and agreement.

A test set judges the classes that it labels and no others: where it marks background, a class that
it does not label may stand, so a prediction of such a class counts as background there.

Where nobody has test pictures of an old class, *agreement* says how much of what the start model
saw in the new pictures is still seen: the IoU of the two models' predictions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nacre.data.dataset import EvalDataset
from nacre.data.learn_data import LearnData
from nacre.data.source import Split
from nacre.evaluation.evaluate import ConfusionCounter, evaluate
from nacre.evaluation.inference import predict_classes
from nacre.evaluation.metrics import iou_by_class
from nacre.labels.channels import Channels
from nacre.labels.space import BACKGROUND
from nacre.models.network import Network
from nacre.training.config import Recipe
from nacre.training.step import batches_to_test
from nacre.utils.device import Precision, set_precision, sizes_vary
from nacre.utils.distributed import Distributed

Ious = dict[str, float | None]
OnImages = Callable[[int], None]


@dataclass(frozen=True)
class Tester:
    """Tests networks on the data of a step.

    Attributes:
        data: The step's.
        recipe: How pictures are seen.
        dist: Who computes.
        on_images: Called with the number of images of each batch.
        should_stop: Whether the user wants to stop.
    """

    data: LearnData
    recipe: Recipe
    dist: Distributed
    on_images: OnImages = lambda count: None
    should_stop: Callable[[], bool] = lambda: False

    def test(self, network: Network, channels: Channels) -> list[dict[str, Any]]:
        """Return the counts of a network on every test set that can judge one of its classes."""
        found = []
        for one, splits in self.data.test_sets():
            datasets = [self.data.eval_dataset(one, split, channels) for split in splits]
            images = sum(len(dataset) for dataset in datasets)
            if not images:
                continue
            confusion = sum(
                (self._confusion(network, dataset) for dataset in datasets),
                start=torch.zeros(len(channels), len(channels), dtype=torch.int64),
            )
            judged = [name for name in channels.names if name in one.labeled]
            folded = datasets[0].mapping.fold(confusion)
            ious = dict(zip(channels.names, iou_by_class(folded), strict=True))
            found.append(
                {
                    "name": one.name,
                    "images": images,
                    "iou": {name: ious[name] for name in judged},
                    "counts": _counts(folded, channels, judged),
                }
            )
        return found

    def num_images(self, channels: Channels) -> int:
        """Return how many images `test` looks at."""
        return sum(
            len(self.data.eval_dataset(one, split, channels))
            for one, splits in self.data.test_sets()
            for split in splits
        )

    def _confusion(self, network: Network, dataset: EvalDataset) -> Tensor:
        batches = self._batches(dataset)
        window = self.recipe.test_window
        with sizes_vary(self.recipe.images.eval_mode == "full"):
            counts = evaluate(
                network, batches, self.dist.device, self.on_images, window, self.precision
            )
        return self.dist.sum(counts)

    @property
    def precision(self) -> Precision:
        """In which numbers the networks compute: those in which they learn."""
        return set_precision(self.recipe.train.precision, self.dist.device)

    def _batches(self, dataset: EvalDataset) -> Iterator[tuple[Tensor, Tensor]]:
        return batches_to_test(dataset, self.recipe.train, self.dist, self.should_stop)

    @torch.inference_mode()
    def agreement(self, before: Network, after: Network) -> dict[str, Any]:
        """Return, for each old class, how much of what was seen before is still seen."""
        known, names = self.data.known, self.data.class_names
        counter = ConfusionCounter(len(names), self.dist.device)
        images = 0
        before.eval()
        after.eval()
        for dataset in self._new_pictures():
            images += len(dataset)
            for pictures, targets in self._batches(dataset):
                batch = pictures.to(self.dist.device, non_blocking=True)
                size = (targets.shape[-2], targets.shape[-1])
                with self.precision.mixed(self.dist.device):
                    was = predict_classes(before(batch).scores, size, counter.check)
                    now = predict_classes(after(batch).scores, size, counter.check)
                counter.add(was, now)
        ious = iou_by_class(self.dist.sum(counter.total()))[: len(known)]
        return {
            "images": images,
            "iou": {
                name: iou
                for name, iou in zip(known, ious, strict=True)
                if name != BACKGROUND and iou is not None
            },
        }

    def _new_pictures(self) -> Iterator[EvalDataset]:
        """The step's own test pictures; its training pictures where it has none."""
        for one in self.data.sets:
            split: Split = "val" if len(one.val_index) else "train"
            mapping = one.testing_mapping(self.data.channels, self.data.policy)
            names = one.index(split).names
            yield EvalDataset(one.source, names, mapping, self.data.config, split)


def _counts(confusion: Tensor, channels: Channels, judged: Sequence[str]) -> dict[str, list[int]]:
    """Return, by class, the pixels hit, of the truth and of the prediction."""
    found = {}
    for name in judged:
        channel = channels.of[name]
        found[name] = [
            int(confusion[channel, channel]),
            int(confusion[channel].sum()),
            int(confusion[:, channel].sum()),
        ]
    return found


def class_ious(tests: Sequence[dict[str, Any]]) -> Ious:
    """Return the IoU of each class over all test sets that label it."""
    sums: dict[str, list[int]] = {}
    for test in tests:
        for name, counts in test["counts"].items():
            before = sums.get(name, [0, 0, 0])
            sums[name] = [a + b for a, b in zip(before, counts, strict=True)]
    return {
        name: hit / max(1, truth + predicted - hit) if truth else None
        for name, (hit, truth, predicted) in sums.items()
    }


def mean_ious(ious: Ious, known: Sequence[str], new: Sequence[str]) -> Ious:
    """Return the means over old, new and all classes that were tested."""

    def mean(names: Sequence[str]) -> float | None:
        values = [ious[name] for name in names if ious.get(name) is not None]
        return sum(v for v in values if v is not None) / len(values) if values else None

    old = [name for name in known if name != BACKGROUND]
    groups = {"old": old, "new": list(new), "all": [*old, *new]}
    return {f"{group}_without_background": mean(names) for group, names in groups.items() if names}
