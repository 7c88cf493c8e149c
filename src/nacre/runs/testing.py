"""Tests of a network after a step: those of a scenario, and those of `nacre learn`.

A scenario tests all classes learned so far, on the images that contain one of them. `nacre learn`
tests on folders, each on the classes that it labels. The background of a folder may contain its
other classes, so a prediction of one of these counts as background there.

If a model was continued, the start model predicts the same images in the same pass. So figures
before and after a step come from the same images. For old classes without test images there is the
*agreement*: the IoU between the predictions of the two models on the new images.
"""

from collections.abc import Callable, Iterator, Sequence
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
from nacre.utils.device import choose_precision, configure_backends, count_workers
from nacre.utils.distributed import Distributed

Ious = dict[str, float | None]


@dataclass(frozen=True)
class Pass:
    """A pass over test images.

    Attributes:
        train: The batch size, the precision and the number of workers.
        dist: The processes.
        on_images: A function that is called with the number of images of each batch.
        should_stop: A function that returns True to stop.
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

        With a `start` model's predictor, metrics get its class maps beside the targets: 2,N,H,W.
        """
        train, dist, device = self.train, self.dist, self.dist.device
        workers, pin = count_workers(train.num_workers, device), device.type == "cuda"
        size = train.test_batch(dist.world_size)
        batches = eval_batches(dataset, size, dist.rank, dist.world_size, workers, pin)
        batches = until_stopped(batches, dist, self.should_stop)
        is_one_size = dataset.config.eval_mode != "full"
        configure_backends(train.precision, device, one_size=is_one_size)
        precision = choose_precision(train.precision, device)

        def with_maps_of(start: Predictor) -> Iterator[EvalSample]:
            for images, targets in batches:
                with precision.mixed(device):
                    before = start.classes(images.to(device, non_blocking=True))
                yield images, torch.stack([targets.to(device), before.to(targets.dtype)])

        samples = batches if start is None else with_maps_of(start)
        evaluate(predictor, samples, metrics, device, self.on_images, precision)
        for metric in metrics:
            metric.merge(dist)


@dataclass(frozen=True)
class ScenarioTests:
    """The tests of a scenario."""

    data: ScenarioData
    config: RunConfig

    def measure(self, step: Step) -> dict[str, Any]:
        """Test the network after a step, with the prediction options that it chose."""
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
        config, dataset, scenario = self.config, self.data.eval_dataset(number), self.data.scenario

        def on_images(count: int) -> None:
            observe(ImagesTested(number, count, len(dataset)))

        confusion = ConfusionMatrix(network.num_classes, dist.device)
        one_pass = Pass(config.train, dist, on_images, should_stop)
        one_pass.measure(cut_predictor(network, config.images), dataset, confusion)
        metrics = compute_metrics(scenario.classes, scenario.groups, number, confusion.counts())
        return metrics | {"images": len(dataset), "conventions": config.conventions()}


class _Matrices:
    """The confusion matrices of a network, of its start model, and of the two against each other.

    Args:
        num_known: Channels of the start model; 0 without one.
        num_channels: Channels of the network, the new ones last.
        device: The device of the batches.
    """

    def __init__(self, num_known: int, num_channels: int, device: torch.device) -> None:
        self.num_known = num_known
        self.after = ConfusionMatrix(num_channels, device)
        self.before = ConfusionMatrix(num_known, device)
        self.agreement = ConfusionMatrix(num_channels, device)

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Count a batch; for the start model, a class that it does not know is background."""
        if not self.num_known:
            self.after.update(targets, predicted)
            return
        targets, before = targets
        self.after.update(targets, predicted)
        is_new = (targets >= self.num_known) & (targets != ignore_value(targets))
        self.before.update(torch.where(is_new, 0, targets).to(targets.dtype), before)
        self.agreement.update(before, predicted)

    def merge(self, dist: Distributed) -> None:
        """Add the counts of the other processes."""
        for matrix in (self.after, self.before, self.agreement):
            matrix.merge(dist)

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three matrices."""
        return self.after.counts(), self.before.counts(), self.agreement.counts()


@dataclass
class _SetCounts:
    """The confusion matrices and images of a data set, summed over its splits."""

    set: LabeledSet
    images: int = 0
    training_images: int = 0
    after: Tensor | int = 0
    before: Tensor | int = 0

    def figures(self, confusion: Tensor, channels: Channels, policy: LabelPolicy) -> dict[str, Any]:
        """Return the figures of one matrix; `iou` is empty if the set labels no known class."""
        labeled = [name for name in channels.names if name in self.set.labeled]
        folded = self.set.testing_mapping(channels, policy).fold(confusion)
        ious = dict(zip(channels.names, iou_by_class(folded), strict=True))
        sums = torch.stack([folded.diagonal(), folded.sum(1), folded.sum(0)], 1).tolist()
        counts = dict(zip(channels.names, sums, strict=True))
        return {
            "name": self.set.name,
            "images": self.images,
            "training_images": self.training_images,
            "iou": {name: ious[name] for name in labeled},
            "counts": {name: counts[name] for name in labeled},
        }


@dataclass(frozen=True)
class Compared:
    """The figures of a model and of its start model, by test set, and their agreement."""

    after: list[dict[str, Any]]
    before: list[dict[str, Any]]
    agreement: dict[str, Any] | None


@dataclass(frozen=True)
class LearnTests:
    """The tests of a step of `nacre learn`.

    Attributes:
        data: The data of the step.
        config: The config of the step.
        given: The user's network, if the start model's file alone cannot build it.
    """

    data: LearnData
    config: LearnConfig
    given: nn.Module | None = None

    def measure(self, step: Step) -> dict[str, Any]:
        """Test the network after a step beside the start model."""
        start = self._start_predictor(step.dist.device)
        splits = self._splits(start is not None)
        total = sum(len(compared.set.index(compared.split)) for compared in splits)

        def on_images(count: int) -> None:
            step.observe(ImagesTested(step.number, count, total))

        one_pass = Pass(self.config.train, step.dist, on_images, step.should_stop)
        predictor = whole_predictor(step.network, step.config.images)
        compared = self.compare(predictor, step.channels, start, one_pass)
        iou, iou_before = class_ious(compared.after), class_ious(compared.before)
        agreement = compared.agreement["iou"] if compared.agreement else {}
        by_gradient = find_method(step.config.method.name).learns_by_gradient
        has_updates = by_gradient and step.iterations > 0
        stride = step.network.stride
        return {
            "step": step.number,
            "classes": list(step.channels.names),
            "new": list(self.data.new),
            "images": sum(test["images"] for test in compared.after),
            "iou": iou,
            "iou_before": iou_before,
            "verdicts": judge(self.data, stride, iou, iou_before, agreement, has_updates),
            "mean_iou": mean_ious(iou, self.data.known, self.data.new),
            "agreement": compared.agreement,
            "tests": compared.after,
            "tests_before": compared.before,
            "conventions": step.config.conventions(),
        }

    def _start_predictor(self, device: torch.device) -> Predictor | None:
        """Return the start model's predictor; the config's options override the file's."""
        if self.config.start is None:
            return None
        network, info, _ = load_model(self.config.start, device, self.given)
        images = self.config.images
        mirror = info.mirror if images.mirror == "auto" else images.mirror
        edges = info.edges if images.edges == "auto" else images.edges
        return replace(model_predictor(network, info), mirror=mirror, edges=edges)

    def _splits(self, has_start: bool) -> list[ComparedSplit]:
        """Return the splits to predict; agreement needs no labels, but a start model."""
        splits = self.data.compared_splits()
        return [compared for compared in splits if compared.is_test or has_start]

    def compare(
        self, predictor: Predictor, channels: Channels, start: Predictor | None, one_pass: Pass
    ) -> Compared:
        """Test a network, beside its start model if there is one."""
        known, device = self.data.known if start else (), one_pass.dist.device
        tested: dict[str, _SetCounts] = {}
        agreement, num_new = torch.zeros(len(channels), len(channels), dtype=torch.int64), 0
        for compared in self._splits(start is not None):
            dataset = self.data.eval_dataset(compared, channels)
            matrices = _Matrices(len(known), len(channels), device)
            one_pass.measure(predictor, dataset, matrices, start=start)
            after, before, both = matrices.compute()
            if compared.is_test:
                counts = tested.setdefault(compared.set.name, _SetCounts(compared.set))
                counts.images += len(dataset)
                counts.training_images += len(dataset) if compared.split == "train" else 0
                counts.after, counts.before = counts.after + after, counts.before + before
            if compared.is_new:
                agreement, num_new = agreement + both, num_new + len(dataset)

        def figures(when: str, channels: Channels) -> list[dict[str, Any]]:
            policy = self.data.policy
            tests = (c.figures(getattr(c, when), channels, policy) for c in tested.values())
            return [test for test in tests if test["iou"]]

        if start is None:
            return Compared(figures("after", channels), [], None)
        assert self.data.before is not None, "a step that continues a model knows its channels"
        ious = dict(zip(known, iou_by_class(agreement), strict=False))
        agreed = {k: x for k, x in ious.items() if k != BACKGROUND and x is not None}
        before_figures = figures("before", self.data.before)
        return Compared(
            figures("after", channels), before_figures, {"images": num_new, "iou": agreed}
        )


def class_ious(tests: Sequence[dict[str, Any]]) -> Ious:
    """Return the IoU of each class over all test sets that label it."""
    sums: dict[str, list[int]] = {}
    for test in tests:
        for name, counts in test["counts"].items():
            before = sums.get(name, [0, 0, 0])
            sums[name] = [a + b for a, b in zip(before, counts, strict=True)]
    return {name: iou(*counts) for name, counts in sums.items()}


def mean_ious(ious: Ious, known: Sequence[str], new: Sequence[str]) -> Ious:
    """Return the mean IoUs of the old, the new and all tested classes."""
    old = [name for name in known if name != BACKGROUND]
    groups = {"old": old, "new": list(new), "all": [*old, *new]}
    return {
        f"{group}_without_background": mean_of([ious.get(name) for name in names])
        for group, names in groups.items()
        if names
    }
