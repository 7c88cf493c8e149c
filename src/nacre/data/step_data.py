"""The data of steps: images, and the mappings from their labels to targets.

`ScenarioData` is a data set split into the steps of a scenario. `LearnData` is the data of one step
of `nacre learn`. A data set labels the classes that its `classes.yaml` names and its masks contain.
Classes that the model does not know are *new*. Known classes are labeled again. All other classes
of the model, and those that only another data set of the step labels, are *hidden*: its background
may contain them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
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
"""Fraction of each batch that exemplars fill."""

MIN_SIMILARITY = 0.85
"""Similarity from which two class names may mean the same: the fraction of equal letters."""


@dataclass(frozen=True)
class ScenarioData:
    """A data set split into the steps of a scenario.

    Attributes:
        source: The data set.
        scenario: Its classes and steps; one step for joint training.
        config: Crop and augmentation.
        policy: The rules for labels.
        seed: Seed of the augmentation and of the exemplars.
        memory: Number of exemplars.
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
        """Return the classes and digests of the image lists of all steps, to detect changes."""
        classes, names = self.scenario.classes, self.train_index.names
        return {
            "background": classes.space.background,
            "steps": [
                {
                    "classes": {str(x): classes.space.names[x] for x in classes.new(step)},
                    **_image_list([names[i] for i in images]),
                }
                for step, images in enumerate(self.image_lists)
            ],
            "tests": [_image_list(self.eval_dataset(k).names) for k in range(self.num_steps)],
        }

    def check_tests(self, num_steps: int) -> None:
        """Refuse data without a test image for one of the first `num_steps` steps."""
        for step in range(num_steps):
            if not len(self.eval_dataset(step)):
                raise NacreError(
                    f"scenario {self.scenario.name!r}: no test image contains a class of the "
                    f"first {step + 1} steps ({len(self.val_index)} test images searched)"
                )

    @cached_property
    def memories(self) -> list[Memory]:
        """The exemplars of earlier steps that each step learns from."""
        if not self.memory:
            return [{}] * self.num_steps
        classes, index = self.scenario.classes, self.train_index
        return keep_exemplars(classes, index, self.image_lists, self.memory, seed=self.seed)

    def train_dataset(self, step: int) -> TrainDataset:
        """Return the images of a step, then its exemplars by step, each as a data set.

        An exemplar has the labels of the step that it came from and no others.
        """
        own = [self.train_index.names[i] for i in self.image_lists[step]]
        classes, policy = self.scenario.classes, self.policy
        folders = [
            LabeledImages(self.source, names, classes.training_mapping(origin, policy, at=step))
            for origin, names in [(step, own), *self.memories[step].items()]
        ]
        return TrainDataset(folders, self.config, self.seed)

    def batch_shares(self, step: int) -> tuple[tuple[int, float], ...] | None:
        """Return the number of images and the fraction of each data set; None for one."""
        memory = self.memories[step]
        if not memory:
            return None
        kept = [len(names) for names in memory.values()]
        shares = [(count, MEMORY_SHARE * count / sum(kept)) for count in kept]
        return (len(self.image_lists[step]), 1 - MEMORY_SHARE), *shares

    def eval_dataset(self, step: int) -> EvalDataset:
        """Return the test images after a step."""
        positions = images_to_test(self.scenario.classes, step, self.val_index)
        names = [self.val_index.names[i] for i in positions]
        mapping = self.scenario.classes.testing_mapping(step, self.policy)
        return EvalDataset(LabeledImages(self.source, names, mapping, "val"), self.config)


@dataclass(frozen=True)
class LabeledSet:
    """A data set of a step, its classes renamed as in the model.

    Attributes:
        name: The name of its folder, for messages.
        source: The data set.
        renamed: The model's name of a class, by its name in the data set.
        is_whole: True if a test also uses its training images.
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
        """The classes that it names and that have a pixel."""
        images = images_by_label(self.train_index) + images_by_label(self.val_index)
        return tuple(name for label, name in self.names.items() if images[label])

    @property
    def unlabeled(self) -> tuple[str, ...]:
        """The classes that it names but that have no pixel; its background may contain them."""
        return tuple(name for name in self.names.values() if name not in self.labeled)

    @property
    def labels(self) -> dict[int, str]:
        """The model's name of each labeled class, by label."""
        return {label: name for label, name in self.names.items() if name in self.labeled}

    def testing_mapping(self, channels: Channels, policy: LabelPolicy) -> LabelMapping:
        """Return the mapping of its labels for testing a model with these channels."""
        return mapping_for_tests(channels, self.space, policy, self.labels)

    def fingerprint(self) -> dict[str, Any]:
        """Return its classes and digests of its images and labels, to detect changes."""
        fingerprint: dict[str, Any] = {
            "name": self.name,
            "classes": {str(label): name for label, name in self.names.items()},
        }
        for split in SPLITS:
            index = self.index(split)
            pairs = zip(index.names, index.pixel_counts, strict=True)
            fingerprint[split] = {
                **_image_list(index.names),
                "labels": digest([f"{name} {sorted(pixels.items())}" for name, pixels in pairs]),
            }
        return fingerprint


@dataclass(frozen=True)
class ComparedSplit:
    """A split of a data set on which networks are compared.

    Attributes:
        set: The data set.
        split: The split.
        is_test: True if IoU is measured on it.
        is_new: True if it belongs to the step; agreement is measured on it.
    """

    set: LabeledSet
    split: Split
    is_test: bool
    is_new: bool


def _image_list(names: Sequence[str]) -> dict[str, Any]:
    """Return the number and a digest of images."""
    return {"images": len(names), "sha256": digest(names)}


def rename_classes(
    sets: Sequence[tuple[str, Source]], renames: Mapping[str, str]
) -> list[LabeledSet]:
    """Return the data sets with the model's class names; refuse a rename without effect."""
    named = {name for _, source in sets for name in source.space.names.values()}
    for old, new in renames.items():
        if old not in named:
            raise NacreError(
                f"--rename {old}={new}: no data set names a class {old!r}"
                f"{did_you_mean(old, named)}; classes: {', '.join(sorted(named))}"
            )
    renamed = [LabeledSet(name, source, renames) for name, source in sets]
    for dataset in renamed:
        names = list(dataset.names.values())
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise NacreError(f"{dataset.name}: --rename gives two classes the name {twice[0]!r}")
        if BACKGROUND in names:
            raise NacreError(f"{dataset.name}: a class cannot be renamed to {BACKGROUND!r}")
    return renamed


def choose_new_classes(
    sets: Sequence[LabeledSet],
    known: Sequence[str],
    chosen: Sequence[str] = (),
    new: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the classes that a step adds, in the order of the data sets and their labels.

    Args:
        sets: The step's data.
        known: Class names of the model, the background included.
        chosen: Take only these of the data's classes; all of them if empty.
        new: Names that are new although they resemble known ones.

    Raises:
        NacreError: No class is new, a chosen class does not exist, or a name resembles another.
    """
    named = list(dict.fromkeys(name for dataset in sets for name in dataset.names.values()))
    labeled = {name for dataset in sets for name in dataset.labeled}
    where = ", ".join(dataset.name for dataset in sets)
    for option, names in (("--classes", chosen), ("--new", new)):
        missing = [name for name in names if name not in named]
        if missing:
            raise NacreError(
                f"{option} {missing[0]}: no data set names this class"
                f"{did_you_mean(missing[0], named)}; classes: {', '.join(named)}"
            )
    for name in new:
        if name in known:
            raise NacreError(f"--new {name}: the model already has a class named {name!r}")
    unknown = [name for name in named if name not in known and name in (chosen or named)]
    empty = [name for name in unknown if name not in labeled]
    if empty and (chosen or len(empty) == len(unknown)):
        raise NacreError(f"no image of {where} has a pixel of {empty[0]!r}")
    classes = tuple(name for name in unknown if name in labeled)
    if not classes:
        raise NacreError(
            f"{where} has no new class: the model already knows "
            f"{', '.join(name for name in named if name in known)}; to improve known classes, "
            "learn them beside a new class, or without --start and join both models with "
            "`nacre merge` (if ledger or duo learned them)"
        )
    _check_similar(sets, classes, known, new)
    return classes


def _check_similar(
    sets: Sequence[LabeledSet], classes: Sequence[str], known: Sequence[str], new: Sequence[str]
) -> None:
    """Refuse new names that resemble known ones, or those of another data set."""
    owner = {name: dataset.name for dataset in reversed(sets) for name in dataset.names.values()}
    old = [name for name in known if name != BACKGROUND]
    for i, name in enumerate(classes):
        # Two similar names in the same file are two classes.
        others = [other for other in classes[:i] if owner[other] != owner[name]]
        similar = None if name in new else _find_similar(name, [*old, *others])
        if similar is not None:
            raise NacreError(
                f"{name!r} resembles the class {similar!r}; if they are the same class, add "
                f"--rename {name}={similar}, else add --new {name}"
            )


def _find_similar(name: str, others: Sequence[str]) -> str | None:
    """Return another name that may mean the same."""

    def plain(text: str) -> str:
        return "".join(char for char in text.casefold() if char.isalnum()).rstrip("s")

    for other in others:
        a, b = plain(name), plain(other)
        if [*filter(str.isdigit, a)] != [*filter(str.isdigit, b)]:
            continue
        is_long = min(len(a), len(b)) > 4
        if a == b or (is_long and SequenceMatcher(None, a, b).ratio() >= MIN_SIMILARITY):
            return other
    return None


@dataclass(frozen=True)
class LearnData:
    """The data of one step of `nacre learn`.

    Attributes:
        sets: The data sets to learn from.
        tests: The data sets to test on in addition.
        before: Channels of the model that the step starts from, if any.
        new: The classes that the step adds.
        config: Crop and augmentation.
        seed: Seed of the augmentation.
        policy: The rules for labels.
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
        """The class names of the start model, background included; empty without a model."""
        return self.before.names if self.before else ()

    @cached_property
    def channels(self) -> Channels:
        """The channels after the step."""
        own = {
            dataset.names[label]: color
            for dataset in self.sets
            for label, color in dataset.space.colors.items()
            if label in dataset.names
        }
        return self.before.extended(self.new, own) if self.before else first_channels(self.new, own)

    @property
    def growth(self) -> Growth:
        """The channels that the step adds to the model."""
        return from_background(len(self.known), len(self.channels))

    def training_mapping(self, dataset: LabeledSet) -> LabelMapping:
        """Return the mapping of a data set for training."""
        return mapping_for_training(self.channels, dataset.space, self.policy, dataset.labels)

    def train_dataset(self) -> TrainDataset:
        """Return the images to learn from."""
        folders = [
            LabeledImages(dataset.source, dataset.train_index.names, self.training_mapping(dataset))
            for dataset in self.sets
        ]
        return TrainDataset(folders, self.config, self.seed)

    def compared_splits(self) -> Iterator[ComparedSplit]:
        """Yield the splits on which networks are compared.

        These are the test images of the step's data sets (the training images of one without test
        images), and the test images, or on request all images, of the data sets for testing.
        """
        for dataset in self.sets:
            has_tests = len(dataset.val_index) > 0
            split: Split = "val" if has_tests else "train"
            yield ComparedSplit(dataset, split, is_test=has_tests, is_new=True)
        for dataset in self.tests:
            for split in SPLITS if dataset.is_whole else ("val",):
                yield ComparedSplit(dataset, split, is_test=True, is_new=False)

    def eval_dataset(self, compared: ComparedSplit, channels: Channels) -> EvalDataset:
        """Return all images of a split at full size, whatever classes the network knows."""
        dataset, split = compared.set, compared.split
        config = self.config.model_copy(update={"eval_mode": "full"})
        mapping = dataset.testing_mapping(channels, self.policy)
        names = dataset.index(split).names
        return EvalDataset(LabeledImages(dataset.source, names, mapping, split), config)

    def fingerprint(self) -> dict[str, Any]:
        """Return the classes and digests of all images and labels, to detect changes."""
        return {
            "known": list(self.known),
            "new": list(self.new),
            "data": [dataset.fingerprint() for dataset in self.sets],
            "tests": [dataset.fingerprint() for dataset in self.tests],
        }


def set_name(path: Path) -> str:
    """Return the name of a data folder."""
    return path.resolve().name or str(path)
