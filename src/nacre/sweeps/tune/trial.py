"""One trial: the first incremental step on 80 % of its images, tested on the other 20 %.

The held-out images are seen as the step's own labels show them: new classes by name and all else,
old classes too, as background; as in any test they are not augmented and borders do not count.
Nothing but the model of step 0 comes from before the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from nacre.data.dataset import EvalDataset
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.labels.space import LabelIndex
from nacre.scenarios.scenario import ImageLists

HELD_OUT = 0.2
FIRST = 1
"""The step that trials learn: the first incremental one."""


@dataclass(frozen=True, kw_only=True)
class TrialData(ScenarioData):
    """A scenario that ends after its first incremental step, some of whose images are held out.

    Attributes:
        whole: The scenario as a run sees it; its index is read once for all trials.
    """

    whole: ScenarioData

    @property
    def train_index(self) -> LabelIndex:
        """The whole scenario's."""
        return self.whole.train_index

    @property
    def val_index(self) -> LabelIndex:
        """The training images': the test images are not for choosing weights."""
        return self.whole.train_index

    @cached_property
    def image_lists(self) -> ImageLists:
        """The training images of all steps, without those held out."""
        before, first, *later = self.whole.image_lists
        kept, _ = split(first, self.seed)
        return (before, kept, *later)

    def eval_dataset(self, step: int) -> EvalDataset:
        """Return the held-out images with the labels of the step alone."""
        if step != FIRST:
            return self.whole.eval_dataset(step)
        _, held_out = split(self.whole.image_lists[FIRST], self.seed)
        names = [self.train_index.names[image] for image in held_out]
        policy = self.policy.model_copy(update={"border": "ignored"})
        mapping = self.scenario.classes.training_mapping(FIRST, policy)
        return EvalDataset(self.source, names, mapping, self.config, split="train")


def trial_data(whole: ScenarioData) -> TrialData:
    """Return the data of all trials on a scenario."""
    values = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return TrialData(**values, whole=whole)


def split(images: Sequence[int], seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split images at random into those to learn from and those held out, 80 to 20."""
    order = np.random.default_rng([seed, len(images)]).permutation(len(images))
    count = max(1, round(HELD_OUT * len(images)))
    held_out = {int(i) for i in order[:count]}
    kept = tuple(image for i, image in enumerate(images) if i not in held_out)
    return kept, tuple(images[i] for i in sorted(held_out))


def accuracy(metrics: dict[str, Any]) -> float:
    """Return a trial's accuracy: the mean IoU of the new classes, the background aside."""
    value = metrics["mean_iou"]["new_without_background"]
    if value is None:
        raise NacreError(
            "none of the held-out images holds a pixel of a new class; the step has too few images "
            "to choose a weight with"
        )
    return float(value)
