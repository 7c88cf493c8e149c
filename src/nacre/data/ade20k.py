"""ADE20K (SceneParsing): 150 classes, 20,210 training and 2,000 test images.

Label 0 means "not annotated": it is background in training and ignored in testing. ``ade20k.json``
has the published class lists of the paper's tasks in three orders: a (``100-10``) is the order of
the data set, ``100-10b`` and ``100-10c`` are the others. The image lists of 100-50 are those of
100-10 with the last five steps merged.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nacre.data.index import Pair
from nacre.data.source import DataConfig, FileSource, Split, find_root
from nacre.errors import NacreError
from nacre.labels.space import LabelSpace
from nacre.scenarios.classes import NamedTask, StepLabels
from nacre.utils.config import NO_EFFECT

KNOWN_COUNTS: dict[Split, int] = {"train": 20_210, "val": 2_000}

LAYOUT = """\
ADEChallengeData2016/          from ADEChallengeData2016.zip (or the folder above)
  images/training/*.jpg        20,210 images
  images/validation/*.jpg      2,000 images
  annotations/training/*.png   20,210 masks
  annotations/validation/*.png 2,000 masks"""

_FOLDERS: dict[Split, str] = {"train": "training", "val": "validation"}


@lru_cache
def _facts() -> dict[str, Any]:
    path = Path(__file__).with_name("ade20k.json")
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


SPACE = LabelSpace(
    names=dict(enumerate(_facts()["class_names"], start=1)),
    background=0,
    ignored=None,
    ignore_background_in_tests=True,
)


def named_tasks() -> dict[str, NamedTask]:
    """Return the tasks of the paper by name, in the orders a, b and c."""
    steps: dict[str, StepLabels] = {
        name: tuple(tuple(step) for step in lists) for name, lists in _facts()["tasks"].items()
    }
    return {
        name: NamedTask(lists, partition_as=steps.get(name.replace("100-50", "100-10")))
        if name.startswith("100-50")
        else NamedTask(lists)
        for name, lists in steps.items()
    }


class AdeConfig(DataConfig):
    """The config of ADE20K."""

    name: Literal["ade20k"] = Field("ade20k", description="the data set: ADE20K")
    root: Path = Field(
        description="the folder ADEChallengeData2016, or the one above", json_schema_extra=NO_EFFECT
    )


class Ade20k(FileSource):
    """ADE20K."""

    space = SPACE
    known_counts = KNOWN_COUNTS

    def __init__(self, config: AdeConfig) -> None:
        needed = ("images", "annotations")
        self.root = find_root(config.root, ["ADEChallengeData2016"], needed, "ADE20K", LAYOUT)

    def list_pairs(self, split: Split) -> list[Pair]:
        """List the folders of a split."""
        images = self.root / "images" / _FOLDERS[split]
        masks = self.root / "annotations" / _FOLDERS[split]
        for folder in (images, masks):
            if not folder.is_dir():
                raise NacreError(f"the folder {folder} is missing; the layout must be:\n{LAYOUT}")
        # The index reports an image without a mask, or a mask without an image.
        names = {path.stem for path in images.glob("*.jpg")}
        names |= {path.stem for path in masks.glob("*.png")}
        # macOS creates hidden files next to those that it copies.
        names = {name for name in names if not name.startswith(".")}
        if not names:
            raise NacreError(f"{images} contains no images; the layout must be:\n{LAYOUT}")
        return [Pair(name, images / f"{name}.jpg", masks / f"{name}.png") for name in names]
