"""Tests of a network after a step: those of a scenario, and those of `nacre learn`.

A scenario tests all classes seen so far, on the images that hold one of them. `nacre learn` tests
on folders, each of which judges the classes that it labels and no others: where it marks
background, a class that it does not label may stand, so a prediction of such a class counts as
background there.

Where a model was continued, the start model looks at the same images in the same pass. So figures
before and after a step are of the same images, and where nobody has test images of an old class,
*agreement* says how much of what the start model predicted on the new images is still predicted:
the IoU of the two models' class maps.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nacre.data.dataset import EvalDataset, EvalSample, eval_batches
from nacre.data.step_data import ComparedSplit, LabeledSet, LearnData, ScenarioData
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.metrics import (
    ConfusionMatrix,
    Metric,
    compute_metrics,
    iou,
    iou_by_class,
    mean_of,
)
from nacre.evaluation.predictor import Predictor, cut_predictor, model_predictor, whole_predictor
from nacre.labels.channels import Channels, ignore_value
from nacre.labels.mapping import LabelPolicy
from nacre.labels.space import BACKGROUND
from nacre.methods import Step, find_method
from nacre.methods.step import until_stopped
from nacre.models.io import load_model
from nacre.models.network import Network
from nacre.runs.verdicts import judge
from nacre.training.config import LearnConfig, RunConfig, TrainConfig
from nacre.training.events import ImagesTested, Observer
from nacre.utils.device import count_workers, set_precision, sizes_vary
from nacre.utils.distributed import Distributed

Ious = dict[str, float | None]


@dataclass(frozen=True)
class Pass:
    """A pass over test images: by which processes, and who is told.

    Attributes:
        train: Says the batch size, the precision and the workers.
        dist: The processes.
        on_images: Called with the number of images of each batch.
        should_stop: Whether the user wants to stop.
    """

    train: TrainConfig
    dist: Distributed
    on_images: Callable[[int], None] = lambda count: None
    should_stop: Callable[[], bool] = lambda: False

    def measure(
        self,
        predictor: Predictor,
        dataset: EvalDataset,
        *metrics: Metric,
        start: Predictor | None = None,
    ) -> None:
        """Predict all images and add the class maps to metrics, over all processes.

        Args:
            predictor: Predicts the images.
            dataset: The images.
            metrics: The metrics to update.
            start: The start model's predictor. The metrics then get its class maps beside the
                targets: 2,N,H,W.
        """
        train, dist, device = self.train, self.dist, self.dist.device
        workers, pin = count_workers(train.num_workers, device), device.type == "cuda"
        size = train.test_batch(dist.world_size)
        batches = eval_batches(dataset, size, dist.rank, dist.world_size, workers, pin)
        batches = until_stopped(batches, dist, self.should_stop)
        precision = set_precision(train.precision, device)

        def beside(start: Predictor) -> Iterator[EvalSample]:
            for images, targets in batches:
                with precision.mixed(device):
                    was = start.classes(images.to(device, non_blocking=True))
                yield images, torch.stack([targets.to(device), was.to(targets.dtype)])

        with sizes_vary(dataset.config.eval_mode == "full"):
            shown = batches if start is None else beside(start)
            evaluate(predictor, shown, metrics, device, self.on_images, precision)
        for metric in metrics:
            metric.merge(dist)


@dataclass(frozen=True)
class ScenarioTests:
    """The tests of a scenario: all classes seen so far, on the images that hold one of them."""

    data: ScenarioData
    config: RunConfig

    def measure(self, step: Step) -> dict[str, Any]:
        """Test the network after a step, as it decided to see images."""
        tests = replace(self, config=step.config)
        return tests.test(step.network, step.number, step.dist, step.observe, step.should_stop)

    def test(
        self,
        network: Network,
        number: int,
        dist: Distributed,
        observe: Observer = lambda event: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Test a network on the test images of a step."""
        config, dataset = self.config, self.data.eval_dataset(number)

        def on_images(count: int) -> None:
            observe(ImagesTested(number, count, len(dataset)))

        confusion = ConfusionMatrix(network.num_classes, dist.device)
        one_pass = Pass(config.train, dist, on_images, should_stop)
        one_pass.measure(cut_predictor(network, config.images), dataset, confusion)
        scenario = self.data.scenario
        counts = confusion.counts()
        metrics = compute_metrics(scenario.classes, scenario.groups, number, counts)
        return metrics | {"images": len(dataset), "conventions": config.measured_under()}


class _Matrices:
    """The confusion matrices of a network, and of the one it started from.

    Args:
        num_known: How many channels the start model has; 0 without one.
        num_channels: How many the network has, new ones last.
        device: Where batches are.
    """

    def __init__(self, num_known: int, num_channels: int, device: torch.device) -> None:
        self.num_known = num_known
        self.after = ConfusionMatrix(num_channels, device)
        self.before = ConfusionMatrix(num_known, device)
        self.agreement = ConfusionMatrix(num_channels, device)

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Count a batch; what the start model does not know is background to it."""
        if not self.num_known:
            self.after.update(targets, predicted)
            return
        targets, was = targets
        self.after.update(targets, predicted)
        is_new = (targets >= self.num_known) & (targets != ignore_value(targets))
        self.before.update(torch.where(is_new, 0, targets).to(targets.dtype), was)
        self.agreement.update(was, predicted)

    def merge(self, dist: Distributed) -> None:
        """Add what other processes counted."""
        for one in (self.after, self.before, self.agreement):
            one.merge(dist)

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three matrices."""
        return self.after.counts(), self.before.counts(), self.agreement.counts()


@dataclass
class _Tested:
    """The matrices of a data set, added up over its splits, with the number of its images."""

    set: LabeledSet
    images: int = 0
    training: int = 0
    after: Tensor | int = 0
    before: Tensor | int = 0

    def figures(self, confusion: Tensor, channels: Channels, policy: LabelPolicy) -> dict[str, Any]:
        """Return the figures of one of its matrices; `iou` is empty if it judges no class."""
        judged = [name for name in channels.names if name in self.set.labeled]
        folded = self.set.testing_mapping(channels, policy).fold(confusion)
        ious = dict(zip(channels.names, iou_by_class(folded), strict=True))
        sums = torch.stack([folded.diagonal(), folded.sum(1), folded.sum(0)], 1).tolist()
        counts = dict(zip(channels.names, sums, strict=True))
        return {
            "name": self.set.name,
            "images": self.images,
            "training_images": self.training,
            "iou": {name: ious[name] for name in judged},
            "counts": {name: counts[name] for name in judged},
        }


@dataclass(frozen=True)
class Compared:
    """The figures of a model, and of the one it started from.

    Attributes:
        after: On every test set that judges one of its classes.
        before: The same of the start model, on the same images.
        agreement: How much of what the start model saw is still seen; None without one.
    """

    after: list[dict[str, Any]]
    before: list[dict[str, Any]]
    agreement: dict[str, Any] | None


@dataclass(frozen=True)
class LearnTests:
    """The tests of a step of `nacre learn`: before it and after it, on the same images.

    Attributes:
        data: The step's.
        config: Its config.
        given: What the start model was learned from, if its file alone cannot build it.
    """

    data: LearnData
    config: LearnConfig
    given: nn.Module | None = None

    def measure(self, step: Step) -> dict[str, Any]:
        """Test the network after a step beside the start model."""
        start = self._start_predictor(step.dist.device)
        total = sum(len(compared.set.index(compared.split)) for compared in self._splits(start))

        def on_images(count: int) -> None:
            step.observe(ImagesTested(step.number, count, total))

        one_pass = Pass(self.config.train, step.dist, on_images, step.should_stop)
        predictor = whole_predictor(step.network, step.config.images)
        found = self.compare(predictor, step.channels, start, one_pass)
        iou, iou_before = class_ious(found.after), class_ious(found.before)
        agreement = found.agreement["iou"] if found.agreement else None
        by_gradient = find_method(step.config.method.name).learns_by_gradient
        has_updates = by_gradient and step.iterations > 0
        stride = step.network.stride
        return {
            "step": step.number,
            "classes": list(step.channels.names),
            "new": list(self.data.new),
            "images": sum(test["images"] for test in found.after),
            "iou": iou,
            "iou_before": iou_before,
            "verdicts": judge(self.data, stride, iou, iou_before, agreement, has_updates),
            "mean_iou": mean_ious(iou, self.data.known, self.data.new),
            "agreement": found.agreement,
            "tests": found.after,
            "tests_before": found.before,
            "conventions": step.config.measured_under(),
        }

    def _start_predictor(self, device: torch.device) -> Predictor | None:
        """Return how the start model sees images; what the config says lies over its file."""
        if self.config.start is None:
            return None
        network, info, _ = load_model(self.config.start, device, self.given)
        images = self.config.images
        mirror = info.mirror if images.mirror == "auto" else images.mirror
        edges = info.edges if images.edges == "auto" else images.edges
        return replace(model_predictor(network, info), mirror=mirror, edges=edges)

    def _splits(self, start: Predictor | None) -> Iterable[ComparedSplit]:
        return (compared for compared in self.data.compared_splits() if compared.is_test or start)

    def compare(
        self, predictor: Predictor, channels: Channels, start: Predictor | None, one_pass: Pass
    ) -> Compared:
        """Test a network, and beside it the one it started from."""
        known, device = self.data.known if start else (), one_pass.dist.device
        tested: dict[str, _Tested] = {}
        agreement, num_new = torch.zeros(len(channels), len(channels), dtype=torch.int64), 0
        for compared in self._splits(start):
            dataset = self.data.eval_dataset(compared, channels)
            matrices = _Matrices(len(known), len(channels), device)
            one_pass.measure(predictor, dataset, matrices, start=start)
            after, before, both = matrices.compute()
            if compared.is_test:
                row = tested.setdefault(compared.set.name, _Tested(compared.set))
                row.images += len(dataset)
                row.training += len(dataset) if compared.split == "train" else 0
                row.after, row.before = row.after + after, row.before + before
            if compared.is_new:
                agreement, num_new = agreement + both, num_new + len(dataset)

        def figures(when: str, channels: Channels) -> list[dict[str, Any]]:
            policy = self.data.policy
            found = (one.figures(getattr(one, when), channels, policy) for one in tested.values())
            return [one for one in found if one["iou"]]

        if start is None:
            return Compared(figures("after", channels), [], None)
        assert self.data.before is not None, "a step that continues a model knows its channels"
        agreed = _agreement(agreement, num_new, known)
        return Compared(figures("after", channels), figures("before", self.data.before), agreed)


def _agreement(confusion: Tensor, images: int, known: Sequence[str]) -> dict[str, Any]:
    ious = dict(zip(known, iou_by_class(confusion), strict=False))
    ious = {name: one for name, one in ious.items() if name != BACKGROUND and one is not None}
    return {"images": images, "iou": ious}


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
