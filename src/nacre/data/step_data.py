"""What a run works on: the data, the scenario on its classes, and the images of each step."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nacre.data import DATASETS, Index, Source, open_source
from nacre.data.loading import BatchOrder, TestingSet, TrainingSet
from nacre.data.ram_cache import Cached
from nacre.errors import NacreError
from nacre.methods import find_method
from nacre.scenarios.classes import LabelTable
from nacre.scenarios.plan import digest
from nacre.scenarios.published_lists import read_lists
from nacre.scenarios.scenario import (
    ImageLists,
    Scenario,
    check_images,
    images_to_test,
    make_scenario,
    read_scenario,
    step_images,
)
from nacre.training.config import RunConfig


@dataclass(frozen=True)
class Prepared:
    """The data and scenario of a config.

    Attributes:
        config: The run's.
        source: Where pictures come from.
        task: Its classes and steps.
        scenario: The same, merged into one step for joint training.
    """

    config: RunConfig
    source: Source
    task: Scenario
    scenario: Scenario

    @cached_property
    def train_index(self) -> Index:
        """The labels of the training images."""
        return self.source.index("train")

    @cached_property
    def val_index(self) -> Index:
        """The labels of the test images."""
        return self.source.index("val")

    @cached_property
    def images(self) -> ImageLists:
        """The training images of each step, checked."""
        if self.config.lists is None:
            lists = step_images(self.scenario, self.train_index)
        else:
            lists = read_lists(self.config.lists, self.task, self.train_index)
            if self.scenario != self.task:
                lists = (tuple(sorted(set().union(*lists))),)
        check_images(self.scenario, self.train_index, lists)
        return lists

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return len(self.scenario.classes.steps)

    def facts(self) -> dict[str, Any]:
        """Return what is learnt from what, as a run keeps it to notice when it changes."""
        classes, names = self.scenario.classes, self.train_index.names
        return {
            "background": classes.space.background,
            "steps": [
                {
                    "classes": {str(one): classes.space.names[one] for one in classes.new(step)},
                    "images": len(images),
                    "sha256": digest([names[at] for at in images]),
                }
                for step, images in enumerate(self.images)
            ],
        }

    def check_tests(self) -> None:
        """Refuse data without a test image for a step: its figures would be empty."""
        for step in range(self.steps):
            if not len(self.testing_set(step)):
                raise NacreError(
                    f"scenario {self.scenario.name!r}: no test image holds a class that is known "
                    f"after step {step} ({len(self.val_index)} test images searched)"
                )

    def order(self, step: int, rank: int = 0, processes: int = 1) -> BatchOrder:
        """Return which images of a step come when in a process."""
        train = self.config.train
        if len(self.images[step]) < train.batch:
            raise NacreError(
                f"train.batch: {train.batch} is more than the {len(self.images[step])} images of "
                f"step {step}; choose a smaller batch (--set train.batch=…)"
            )
        return BatchOrder(
            images=len(self.images[step]),
            batch=train.batch,
            epochs=(train.next_epochs or train.epochs) if step else train.epochs,
            seed=self.config.seed,
            rank=rank,
            processes=processes,
            part=train.micro_batch,
        )

    def training_set(self, step: int) -> TrainingSet:
        """Return the images a step learns from."""
        names = [self.train_index.names[at] for at in self.images[step]]
        border = self.config.conventions.border
        table = self.scenario.classes.training_table(step, border)
        return TrainingSet(self.source, names, table, self.config.pictures, self.config.seed)

    def testing_set(self, step: int) -> TestingSet:
        """Return the images that the network is tested on after a step."""
        positions = images_to_test(self.scenario.classes, step, self.val_index)
        names = [self.val_index.names[at] for at in positions]
        return TestingSet(self.source, names, self._testing_table(step), self.config.pictures)

    def _testing_table(self, step: int) -> LabelTable:
        return self.scenario.classes.testing_table(step, self.config.conventions.unseen)


def prepare(config: RunConfig) -> Prepared:
    """Open the data of a config and apply its scenario."""
    source = open_source(config.data)
    if config.pictures.cache:
        source = Cached(source, config.pictures.cache << 20)
    written = read_scenario(config.scenario)
    tasks = DATASETS[written.data].tasks()
    task = make_scenario(config.scenario, written, source.space, tasks)
    merges = find_method(config.method.name).merges_steps
    return Prepared(config, source, task, task.merged() if merges else task)
