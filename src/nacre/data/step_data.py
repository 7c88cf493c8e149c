"""The data of a scenario's steps: the images of each, and how their labels become targets."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nacre.data.dataset import EvalDataset, LabeledImages, TrainDataset
from nacre.data.source import Source
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError
from nacre.labels.mapping import LabelPolicy
from nacre.labels.space import LabelIndex
from nacre.scenarios.exemplars import Memory, keep_exemplars
from nacre.scenarios.plan import digest
from nacre.scenarios.scenario import (
    ImageLists,
    Scenario,
    check_images,
    images_to_test,
    step_images,
)

MEMORY_SHARE = 0.5
"""Fraction of each batch that kept images take."""


@dataclass(frozen=True)
class ScenarioData:
    """A data set under a scenario.

    Attributes:
        source: Where images come from.
        scenario: Its classes and steps, merged into one for joint training.
        config: How images are cut.
        policy: How labels are seen.
        seed: Of the augmentation.
        memory: How many images are kept for later steps.
    """

    source: Source
    scenario: Scenario
    config: ImagesConfig
    policy: LabelPolicy
    seed: int
    memory: int = 0

    @cached_property
    def train_index(self) -> LabelIndex:
        """The labels of the training images."""
        return self.source.index("train")

    @cached_property
    def val_index(self) -> LabelIndex:
        """The labels of the test images."""
        return self.source.index("val")

    @cached_property
    def image_lists(self) -> ImageLists:
        """The training images of each step, checked."""
        lists = step_images(self.scenario, self.train_index)
        check_images(self.scenario, self.train_index, lists)
        return lists

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return len(self.scenario.classes.steps)

    def fingerprint(self) -> dict[str, Any]:
        """Return what is learned from and tested on what, for a run to notice when it changes."""
        classes, names = self.scenario.classes, self.train_index.names
        return {
            "background": classes.space.background,
            "steps": [
                {
                    "classes": {str(one): classes.space.names[one] for one in classes.new(step)},
                    "images": len(images),
                    "sha256": digest([names[i] for i in images]),
                }
                for step, images in enumerate(self.image_lists)
            ],
            "tests": [
                {"images": len(names), "sha256": digest(names)}
                for names in (list(self.eval_dataset(k).names) for k in range(self.num_steps))
            ],
        }

    def check_tests(self, num_steps: int) -> None:
        """Refuse data without a test image for one of the first steps: no figures without."""
        for step in range(num_steps):
            if not len(self.eval_dataset(step)):
                raise NacreError(
                    f"scenario {self.scenario.name!r}: no test image holds a class that is known "
                    f"after step {step} ({len(self.val_index)} test images searched)"
                )

    @cached_property
    def memories(self) -> list[Memory]:
        """The images of earlier steps that each step learns from besides its own."""
        if not self.memory:
            return [{}] * self.num_steps
        classes, index = self.scenario.classes, self.train_index
        return keep_exemplars(classes, index, self.image_lists, self.memory, seed=self.seed)

    def train_dataset(self, step: int) -> TrainDataset:
        """Return the images a step learns from: its own, then those kept, by where they are from.

        A kept image has the labels of the step it came from and no others.
        """
        own = [self.train_index.names[i] for i in self.image_lists[step]]
        classes, policy = self.scenario.classes, self.policy
        folders = [
            LabeledImages(self.source, names, classes.training_mapping(origin, policy, at=step))
            for origin, names in [(step, own), *self.memories[step].items()]
        ]
        return TrainDataset(folders, self.config, self.seed)

    def batch_shares(self, step: int) -> tuple[tuple[int, float], ...] | None:
        """Return images and share of a batch of each of these folders; None with one."""
        memory = self.memories[step]
        if not memory:
            return None
        kept = [len(names) for names in memory.values()]
        shares = [(count, MEMORY_SHARE * count / sum(kept)) for count in kept]
        return (len(self.image_lists[step]), 1 - MEMORY_SHARE), *shares

    def eval_dataset(self, step: int) -> EvalDataset:
        """Return the images that the network is tested on after a step."""
        positions = images_to_test(self.scenario.classes, step, self.val_index)
        names = [self.val_index.names[i] for i in positions]
        mapping = self.scenario.classes.testing_mapping(step, self.policy)
        return EvalDataset(LabeledImages(self.source, names, mapping, "val"), self.config)
