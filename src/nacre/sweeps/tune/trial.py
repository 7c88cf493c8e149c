"""One trial: the first incremental step on 80 % of its images, tested on the other 20 %.

The held-out images are seen as the step's own labels show them: new classes by name and all else,
old classes too, as background; as in any test they are not augmented and borders do not count.
Nothing but the model of step 0 comes from before the step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nacre.data import Index
from nacre.data.dataset import EvalDataset, Sample
from nacre.data.step_data import ScenarioData
from nacre.data.transforms import eval_sample
from nacre.errors import NacreError
from nacre.runs.run import Run
from nacre.scenarios.scenario import ImageLists
from nacre.training.config import RunConfig
from nacre.training.events import Observer
from nacre.utils.io import load_json

HELD_OUT = 0.2
FIRST = 1
"""The step that trials learn: the first incremental one."""


class HeldOutSet(EvalDataset):
    """Training images as tests see images: the same square of each, not augmented."""

    def __getitem__(self, at: int) -> Sample:
        """Return the image (3,H,W) and its channels (H,W), both uint8."""
        name = self.names[at]
        image, mask = self.source.image("train", name), self.source.mask("train", name)
        pixels, channels = eval_sample(image, mask, self.pictures, table=self.table)
        return torch.from_numpy(pixels), torch.from_numpy(channels)


@dataclass(frozen=True)
class StepZero(ScenarioData):
    """A scenario of which only step 0 is learnt, as in any run."""

    @property
    def steps(self) -> int:
        """Step 0 alone."""
        return 1


@dataclass(frozen=True)
class TrialData(ScenarioData):
    """A scenario that ends after its first incremental step, some of whose images are held out.

    Attributes:
        whole: The scenario as a run sees it.
    """

    whole: ScenarioData

    @property
    def steps(self) -> int:
        """Step 0, which is taken over, and the first incremental one."""
        return FIRST + 1

    @property
    def train_index(self) -> Index:
        """The whole scenario's, read once for all trials."""
        return self.whole.train_index

    @property
    def val_index(self) -> Index:
        """The training images': the test images are not for choosing weights."""
        return self.whole.train_index

    @cached_property
    def images(self) -> ImageLists:
        """The training images of all steps, without those held out."""
        before, first, *later = self.whole.images
        kept, _ = split(first, self.config.seed)
        return (before, kept, *later)

    def eval_dataset(self, step: int) -> EvalDataset:
        """Return the held-out images with the labels of the step alone."""
        if step != FIRST:
            return self.whole.eval_dataset(step)
        _, held_out = split(self.whole.images[FIRST], self.config.seed)
        names = [self.train_index.names[at] for at in held_out]
        table = self.scenario.classes.training_table(FIRST, "ignored")
        return HeldOutSet(self.source, names, table, self.config.pictures)


class PartialRun(Run):
    """A run of less than a scenario: it leaves no metrics that could be taken for a run's."""

    def __init__(
        self,
        prepared: ScenarioData,
        out: Path,
        *,
        base: Path | None = None,
        observers: Iterable[Observer] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(
            prepared.config, out, base=base, observers=observers, should_stop=should_stop
        )
        self.given = prepared

    def _prepare(self) -> ScenarioData:
        return self.given

    def _finish(self) -> dict[str, Any]:
        metrics = load_json(self.folder.step_metrics(self.prepared.num_steps - 1))
        assert isinstance(metrics, dict)
        return metrics


def split(images: Sequence[int], seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split images at random into those to learn from and those held out, 80 to 20."""
    order = np.random.default_rng([seed, len(images)]).permutation(len(images))
    count = max(1, round(HELD_OUT * len(images)))
    held_out = {int(at) for at in order[:count]}
    kept = tuple(image for at, image in enumerate(images) if at not in held_out)
    return kept, tuple(images[at] for at in sorted(held_out))


def trial_data(config: RunConfig, whole: ScenarioData) -> TrialData:
    """Return the data of a trial with a config of the same scenario."""
    return TrialData(config, whole.source, whole.task, whole.scenario, whole)


def accuracy(metrics: dict[str, Any]) -> float:
    """Return a trial's accuracy: the mean IoU of the new classes, the background aside."""
    value = metrics["mean_iou"]["new_without_background"]
    if value is None:
        raise NacreError(
            "none of the held-out images holds a pixel of a new class; the step has too few images "
            "to choose a weight with"
        )
    return float(value)
