"""The data of steps: their images, and how labels become targets.

`ScenarioData` is a data set dealt to the steps of a scenario. `LearnData` is the data of one step
for a model that exists. A data set labels the classes that its `classes.yaml` names and its masks
hold. Those that the model does not know are *new*; those it knows are simply labeled again; the
rest of what the model knows, and what another data set of the same step teaches, is *hidden* in
this one's background.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nacre.data.dataset import EvalDataset, LabeledImages, TrainDataset
from nacre.data.index import images_by_label
from nacre.data.source import SPLITS, Source, Split
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError, did_you_mean
from nacre.labels.channels import Channels, Growth, first_channels, from_background
from nacre.labels.mapping import LabelMapping, LabelPolicy, mapping_for_tests, mapping_for_training
from nacre.labels.space import BACKGROUND, LabelIndex, LabelSpace
from nacre.scenarios.scenario import (
    ImageLists,
    Memory,
    Scenario,
    check_images,
    digest,
    images_to_test,
    keep_exemplars,
    step_images,
)

MEMORY_SHARE = 0.5
"""Fraction of each batch that kept images take."""

CLOSE = 0.85
"""How alike two class names are that may be one: the share of equal letters, cases aside."""


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
                    **_image_list([names[i] for i in images]),
                }
                for step, images in enumerate(self.image_lists)
            ],
            "tests": [_image_list(self.eval_dataset(k).names) for k in range(self.num_steps)],
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


@dataclass(frozen=True)
class LabeledSet:
    """A data set as a step sees it, its classes under the names that the model uses.

    Attributes:
        name: For people: its folder's name.
        source: Its images and masks.
        renamed: The model's name of a class for its own.
        is_whole: Whether training images are tested, too, if it is given for testing.
    """

    name: str
    source: Source
    renamed: Mapping[str, str]
    is_whole: bool = False

    @property
    def space(self) -> LabelSpace:
        """The meaning of its label values."""
        return self.source.space

    @cached_property
    def train_index(self) -> LabelIndex:
        """The labels of its training images."""
        return self.source.index("train")

    @cached_property
    def val_index(self) -> LabelIndex:
        """The labels of its test images."""
        return self.source.index("val")

    def index(self, split: Split) -> LabelIndex:
        """Return the labels of the images of a split."""
        return self.train_index if split == "train" else self.val_index

    @cached_property
    def names(self) -> dict[int, str]:
        """The model's name of a class by label."""
        return {label: self.renamed.get(name, name) for label, name in self.space.names.items()}

    @cached_property
    def labeled(self) -> tuple[str, ...]:
        """The classes that it labels: those it names and holds at least a pixel of."""
        held = images_by_label(self.train_index) + images_by_label(self.val_index)
        return tuple(name for label, name in self.names.items() if held[label])

    @property
    def unlabeled(self) -> tuple[str, ...]:
        """Classes that it names and holds no pixel of: they may well stand in its background."""
        return tuple(name for name in self.names.values() if name not in self.labeled)

    @property
    def labels(self) -> dict[int, str]:
        """The model's name of each class that it labels, by label."""
        return {label: name for label, name in self.names.items() if name in self.labeled}

    def testing_mapping(self, channels: Channels, policy: LabelPolicy) -> LabelMapping:
        """Return how its labels are seen where a model of these channels is tested on it."""
        return mapping_for_tests(channels, self.space, policy, self.labels)

    def fingerprint(self) -> dict[str, Any]:
        """Return what is learned and tested from what, to notice when it changes."""
        found: dict[str, Any] = {
            "name": self.name,
            "classes": {str(label): name for label, name in self.names.items()},
        }
        for split in SPLITS:
            index = self.index(split)
            pairs = zip(index.names, index.pixel_counts, strict=True)
            found[split] = {
                **_image_list(index.names),
                # Of what the masks contain, to notice masks that were changed.
                "labels": digest([f"{name} {sorted(pixels.items())}" for name, pixels in pairs]),
            }
        return found


@dataclass(frozen=True)
class ComparedSplit:
    """A split of a data set on which networks are compared.

    Attributes:
        set: The data set.
        split: The split.
        is_test: True if IoU is measured on it.
        is_new: True if it is the step's own, on which agreement is measured.
    """

    set: LabeledSet
    split: Split
    is_test: bool
    is_new: bool


def _image_list(names: Sequence[str]) -> dict[str, Any]:
    """Return what is enough to notice that a list of images changed."""
    return {"images": len(names), "sha256": digest(names)}


def rename_classes(
    sets: Sequence[tuple[str, Source]], renames: Mapping[str, str]
) -> list[LabeledSet]:
    """Give the classes of data sets the model's names; refuse a rename that changes nothing."""
    named = {name for _, source in sets for name in source.space.names.values()}
    for old, new in renames.items():
        if old not in named:
            raise NacreError(
                f"--rename {old}={new}: no data set names a class {old!r}"
                f"{did_you_mean(old, named)}; classes: {', '.join(sorted(named))}"
            )
    found = [LabeledSet(name, source, renames) for name, source in sets]
    for one in found:
        names = list(one.names.values())
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise NacreError(f"{one.name}: the class {twice[0]!r} is there twice after --rename")
        if BACKGROUND in names:
            raise NacreError(f"{one.name}: a class cannot be renamed to {BACKGROUND!r}")
    return found


def choose_new_classes(
    sets: Sequence[LabeledSet],
    known: Sequence[str],
    chosen: Sequence[str] = (),
    new: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the classes that a step adds, in the order of the data sets and their labels.

    Args:
        sets: The step's data.
        known: What the model knows, background included.
        chosen: Take only these of the data's classes; all of them if there are none.
        new: Names that are new although they look like known ones.

    Raises:
        NacreError: nothing is new, a chosen class is not there, or a name is close to another.
    """
    named = list(dict.fromkeys(name for one in sets for name in one.names.values()))
    labeled = {name for one in sets for name in one.labeled}
    for option, wanted in (("--classes", chosen), ("--new", new)):
        missing = [name for name in wanted if name not in named]
        if missing:
            raise NacreError(
                f"{option} {missing[0]}: no data set names this class"
                f"{did_you_mean(missing[0], named)}; classes: {', '.join(named)}"
            )
    for name in new:
        if name in known:
            raise NacreError(f"--new {name}: the model knows a class of this very name already")
    wanted_names = [name for name in named if name not in known and name in (chosen or named)]
    empty = [name for name in wanted_names if name not in labeled]
    if empty and (chosen or not any(name in labeled for name in wanted_names)):
        where = ", ".join(one.name for one in sets)
        raise NacreError(f"no image of {where} holds a pixel of {empty[0]!r}")
    found = tuple(name for name in wanted_names if name in labeled)
    if not found:
        raise NacreError(
            f"there is no new class in {', '.join(one.name for one in sets)}: the model knows "
            f"{', '.join(name for name in named if name in known)} already"
        )
    _check_close(sets, found, known, new)
    return found


def _check_close(
    sets: Sequence[LabeledSet], found: Sequence[str], known: Sequence[str], new: Sequence[str]
) -> None:
    """Ask about new names that look like known ones, or like those of another data set."""
    owner = {name: one.name for one in reversed(sets) for name in one.names.values()}
    old = [name for name in known if name != BACKGROUND]
    for i, name in enumerate(found):
        # Whoever names two classes in one file means two.
        others = [other for other in found[:i] if owner[other] != owner[name]]
        twin = None if name in new else _twin(name, [*old, *others])
        if twin is not None:
            raise NacreError(
                f"is {name!r} the same class as {twin!r}? If it is, say --rename {name}={twin}; "
                f"if it is another one, say --new {name}"
            )


def _twin(name: str, others: Sequence[str]) -> str | None:
    """Return another name that may mean the same."""

    def plain(text: str) -> str:
        return "".join(char for char in text.casefold() if char.isalnum()).rstrip("s")

    for other in others:
        a, b = plain(name), plain(other)
        if [*filter(str.isdigit, a)] != [*filter(str.isdigit, b)]:
            continue
        if a == b or (
            min(len(a), len(b)) > 4 and difflib.SequenceMatcher(None, a, b).ratio() >= CLOSE
        ):
            return other
    return None


@dataclass(frozen=True)
class LearnData:
    """All data of a step.

    Attributes:
        sets: What it learns from.
        tests: What it is tested on besides.
        before: Channels of the model it starts from; None without one.
        new: The classes it adds.
        config: How images are cut.
        seed: Of the augmentation.
        policy: How labels are seen.
    """

    sets: tuple[LabeledSet, ...]
    tests: tuple[LabeledSet, ...]
    before: Channels | None
    new: tuple[str, ...]
    config: ImagesConfig
    seed: int
    policy: LabelPolicy

    @property
    def known(self) -> tuple[str, ...]:
        """Class names of the model it starts from, background included; none without one."""
        return self.before.names if self.before else ()

    @cached_property
    def channels(self) -> Channels:
        """The channels after the step."""
        own = {
            one.names[label]: color
            for one in self.sets
            for label, color in one.space.colors.items()
            if label in one.names
        }
        return self.before.extended(self.new, own) if self.before else first_channels(self.new, own)

    @property
    def growth(self) -> Growth:
        """The channels that the step adds to the model."""
        return from_background(len(self.known), len(self.channels))

    def training_mapping(self, one: LabeledSet) -> LabelMapping:
        """Return how the labels of one of its data sets are seen in training."""
        return mapping_for_training(self.channels, one.space, self.policy, one.labels)

    def train_dataset(self) -> TrainDataset:
        """Return the images to learn from."""
        folders = [
            LabeledImages(one.source, one.train_index.names, self.training_mapping(one))
            for one in self.sets
        ]
        return TrainDataset(folders, self.config, self.seed)

    def compared_splits(self) -> Iterator[ComparedSplit]:
        """Yield the splits on which networks are compared.

        These are the test images of a step's folders, or their training images if they have none,
        and the test images of the folders given for testing, or all of their images on request.
        """
        for one in self.sets:
            has_tests = len(one.val_index) > 0
            own: Split = "val" if has_tests else "train"
            yield ComparedSplit(one, own, is_test=has_tests, is_new=True)
        for one in self.tests:
            splits: tuple[Split, ...] = ("train", "val") if one.is_whole else ("val",)
            for split in splits:
                yield ComparedSplit(one, split, is_test=True, is_new=False)

    def eval_dataset(self, compared: ComparedSplit, channels: Channels) -> EvalDataset:
        """Return all images of a split, whole: a test does not depend on what a network knows."""
        one, whole = compared.set, self.config.model_copy(update={"eval_mode": "full"})
        mapping = one.testing_mapping(channels, self.policy)
        names = one.index(compared.split).names
        return EvalDataset(LabeledImages(one.source, names, mapping, compared.split), whole)

    def fingerprint(self) -> dict[str, Any]:
        """Return what is learned from what, to notice when it changes."""
        return {
            "known": list(self.known),
            "new": list(self.new),
            "data": [one.fingerprint() for one in self.sets],
            "tests": [one.fingerprint() for one in self.tests],
        }


def set_name(path: Path) -> str:
    """Return what a data folder is called."""
    return path.resolve().name or str(path)
