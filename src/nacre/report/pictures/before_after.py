"""Pictures before and after a step of `nacre learn`, chosen by rule.

Of the step's test pictures (the training pictures where it has none) those are shown in which the
two models differ most, and as many in which they differ least among those that hold a class: what
changed, and what stayed. Nobody chooses them by hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nacre.data.dataset import EvalDataset
from nacre.data.learn_data import LearnData
from nacre.data.source import Split
from nacre.models.io import load_model
from nacre.report.pictures.predict import Color, Pixels, TestImage, predict_masks, read_images
from nacre.runs.learn_data import open_learn_data
from nacre.runs.learn_folder import read_learn_config
from nacre.utils.device import choose_device

MOST = 96
"""Pictures that are looked at to choose from."""


@dataclass(frozen=True)
class BeforeAfter:
    """A picture as two models see it.

    Attributes:
        image: The picture and what its labels say.
        before: Channel by pixel as the start model sees it; None without one.
        after: The same for the new model.
    """

    image: TestImage
    before: Pixels | None
    after: Pixels

    @property
    def change(self) -> float:
        """Share of the pixels that are called something else now."""
        if self.before is None:
            return float((self.after > 0).mean())
        return float((self.before != self.after).mean())


@dataclass(frozen=True)
class StepPictures:
    """The chosen pictures of a step, and what its colours mean."""

    pictures: tuple[BeforeAfter, ...]
    classes: tuple[str, ...]
    colors: tuple[Color, ...]


def step_pictures(folder: Path, count: int) -> StepPictures:
    """Look at the pictures of a step with its start model and its own, and choose."""
    config = read_learn_config(folder)
    device = choose_device("auto")
    network, info, _ = load_model(folder / "model.safetensors", device)
    start = load_model(config.start, device) if config.start else None
    data = open_learn_data(config, start[1].classes if start else ())
    images = _read_some(data, MOST)
    after = predict_masks(network, images)
    before: Sequence[Pixels | None] = (
        predict_masks(start[0], images) if start else [None] * len(images)
    )
    seen = [BeforeAfter(*one) for one in zip(images, before, after, strict=True)]
    colors = tuple((c[0], c[1], c[2]) for c in info.colors)
    return StepPictures(tuple(_choose(seen, count)), tuple(info.classes), colors)


def _read_some(data: LearnData, most: int) -> list[TestImage]:
    """Read pictures of every data set of a step, spread evenly, the same ones every time."""
    images: list[TestImage] = []
    each = max(1, most // len(data.sets))
    for one in data.sets:
        split: Split = "val" if len(one.val_index) else "train"
        names = one.index(split).names
        dataset = EvalDataset(one.source, names, one.lut(data.class_names), data.config, split)
        places = np.unique(np.linspace(0, len(names) - 1, min(each, len(names))).round())
        images += read_images(dataset, [int(place) for place in places])
    return images


def _choose(seen: Sequence[BeforeAfter], count: int) -> list[BeforeAfter]:
    by_change = sorted(seen, key=lambda one: (-one.change, one.image.name))
    changed = by_change[: (count + 1) // 2]
    rest = sorted(
        by_change[len(changed) :], key=lambda one: (not (one.after > 0).any(), one.change)
    )
    return [*changed, *rest[: count - len(changed)]]
