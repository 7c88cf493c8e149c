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
from nacre.data.learn_data import LabeledSet, LearnData
from nacre.data.source import Split
from nacre.evaluation.confusion import ConfusionMatrix, iou, iou_by_class, mean_of
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.predictor import cut_predictor
from nacre.models.network import Network
from nacre.scenarios.classes import BACKGROUND
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

    def test(self, network: Network, class_names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the counts of a network on every test set that can judge one of its classes."""
        found = []
        for one, splits in self.data.test_sets():
            datasets = [self.data.eval_dataset(one, split, class_names) for split in splits]
            images = sum(len(dataset) for dataset in datasets)
            if not images:
                continue
            confusion = sum(
                (self._confusion(network, dataset) for dataset in datasets),
                start=torch.zeros(len(class_names), len(class_names), dtype=torch.int64),
            )
            judged = [name for name in class_names if name in one.labeled]
            folded = fold_hidden(confusion, one, class_names)
            ious = dict(zip(class_names, iou_by_class(folded), strict=True))
            found.append(
                {
                    "name": one.name,
                    "images": images,
                    "iou": {name: ious[name] for name in judged},
                    "counts": _counts(folded, class_names, judged),
                }
            )
        return found

    def num_images(self, class_names: Sequence[str]) -> int:
        """Return how many images `test` looks at."""
        return sum(
            len(self.data.eval_dataset(one, split, class_names))
            for one, splits in self.data.test_sets()
            for split in splits
        )

    def _confusion(self, network: Network, dataset: EvalDataset) -> Tensor:
        batches = self._batches(dataset)
        confusion = ConfusionMatrix(network.num_classes, self.dist.device)
        predictor = cut_predictor(network, self.recipe.images)
        with sizes_vary(self.recipe.images.eval_mode == "full"):
            evaluate(
                predictor, batches, [confusion], self.dist.device, self.on_images, self.precision
            )
        confusion.merge(self.dist)
        return confusion.counts()

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
        confusion = ConfusionMatrix(len(names), self.dist.device)
        seen = [cut_predictor(one, self.recipe.images) for one in (before, after)]
        images = 0
        before.eval()
        after.eval()
        for dataset in self._new_pictures():
            images += len(dataset)
            for pictures, _ in self._batches(dataset):
                batch = pictures.to(self.dist.device, non_blocking=True)
                with self.precision.mixed(self.dist.device):
                    was, now = (one.classes(batch) for one in seen)
                confusion.update(was, now)
        confusion.merge(self.dist)
        ious = confusion.compute()[: len(known)]
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
            lut = one.lut(self.data.class_names)
            names = one.index(split).names
            yield EvalDataset(one.source, names, lut, self.data.config, split)


def fold_hidden(confusion: Tensor, one: LabeledSet, class_names: Sequence[str]) -> Tensor:
    """Count predictions of classes that a test set does not label as background."""
    folded = confusion.clone()
    for channel, hides in enumerate(one.hidden(class_names)):
        if hides:
            folded[:, 0] += folded[:, channel]
            folded[:, channel] = 0
    return folded


def _counts(
    confusion: Tensor, class_names: Sequence[str], judged: Sequence[str]
) -> dict[str, list[int]]:
    """Return, by class, the pixels hit, of the truth and of the prediction."""
    found = {}
    for name in judged:
        channel = list(class_names).index(name)
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
    return {name: iou(*counts) for name, counts in sums.items()}


def mean_ious(ious: Ious, known: Sequence[str], new: Sequence[str]) -> Ious:
    """Return the means over old, new and all classes that were tested."""
    old = [name for name in known if name != BACKGROUND]
    groups = {"old": old, "new": list(new), "all": [*old, *new]}
    return {
        f"{group}_without_background": mean_of([ious.get(name) for name in names])
        for group, names in groups.items()
        if names
    }
