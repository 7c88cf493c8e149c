"""Your own images: ``images/``, ``masks/`` and ``classes.yaml`` in one folder.

``classes.yaml`` says what the label values in the masks mean (see ``classes_yaml``). A mask has the
name of its image and ends in ``.png``. ``train.txt`` and ``val.txt``, in the folder or in
``splits/``, name the images of a split, one per line. Without them, an image is for testing when
the first byte of the SHA-256 of its name is below 51, which is one in five, whatever other images
there are.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from nacre.data.image_io import IMAGE_SUFFIXES
from nacre.data.index import Pair
from nacre.data.source import DataConfig, FileSource, Split
from nacre.errors import NacreError, has_control_characters
from nacre.labels.space import LabelSpace, read_classes
from nacre.utils.config import NO_EFFECT
from nacre.utils.io import read_text
from nacre.utils.system import expand_user

_TEST_BYTES = 51
_SHOWN = 5
_LONGEST = 100


class FolderConfig(DataConfig):
    """The place of your own images."""

    name: Literal["folder"] = Field("folder", description="the data set: your own folder")
    root: Path = Field(
        description="folder with images/, masks/ and classes.yaml", json_schema_extra=NO_EFFECT
    )
    classes: Path | None = Field(
        None,
        description="classes.yaml, if it does not lie in the folder itself",
        json_schema_extra=NO_EFFECT,
    )


class Folder(FileSource):
    """Source of images from a folder."""

    def __init__(self, config: FolderConfig) -> None:
        """Read which classes, images and masks there are; no image is opened."""
        self.config = config
        self.root = expand_user(config.root)
        images, masks = self.root / "images", self.root / "masks"
        for part in (self.root, images, masks):
            if not part.is_dir():
                raise NacreError(
                    f"the folder {part} is missing; {self.config.root} must hold images/, masks/ "
                    "and classes.yaml"
                )
        self._images, self._masks = _files(images, IMAGE_SUFFIXES), _files(masks, (".png",))
        if not self._images:
            raise NacreError(f"{images} holds no images; they end in {', '.join(IMAGE_SUFFIXES)}")

    @cached_property
    def space(self) -> LabelSpace:
        """The meaning of the values in the masks."""
        path = self.config.classes
        return read_classes(self.root / "classes.yaml" if path is None else expand_user(path))

    @property
    def has_lists(self) -> bool:
        """True if lists say which images are for testing."""
        return self._list_file("val") is not None

    def list_pairs(self, split: Split) -> list[Pair]:
        """Return the images of a split."""
        return [self.find(split, name) for name in self._splits[split]]

    def find(self, split: Split, name: str) -> Pair:
        """Return the image and mask of a name, whichever split it is in."""
        return Pair(name, self._images.get(name), self._masks.get(name))

    @cached_property
    def _splits(self) -> dict[Split, list[str]]:
        train, val = self._list_file("train"), self._list_file("val")
        if train is None and val is None:
            # An image without a mask or the other way round is found by the index.
            names = sorted(self._images.keys() | self._masks.keys())
            tests = {name for name in names if is_for_testing(name)}
            return {
                "train": [name for name in names if name not in tests],
                "val": sorted(tests),
            }
        if train is None or val is None:
            there, other = ("val", "train") if train is None else ("train", "val")
            raise NacreError(
                f"{self.root} has {there}.txt but not {other}.txt; give both lists or none"
            )
        lists: dict[Split, list[str]] = {"train": self._read(train), "val": self._read(val)}
        both = sorted(set(lists["train"]) & set(lists["val"]))
        if both:
            raise NacreError(f"{len(both)} images are both in {train} and in {val}: {_first(both)}")
        return lists

    def _list_file(self, split: Split) -> Path | None:
        for path in (self.root / f"{split}.txt", self.root / "splits" / f"{split}.txt"):
            if path.is_file():
                return path
        return None

    def _read(self, path: Path) -> list[str]:
        """Read the names in a list; they may have an extension."""
        names = [line.strip() for line in read_text(path, "list").splitlines()]
        found = [_without_suffix(name) for name in names if name]
        unknown = [name for name in found if name not in self._images and name not in self._masks]
        if unknown:
            raise NacreError(
                f"{len(unknown)} of the {len(found)} names in {path} have neither an image nor "
                f"a mask: {_first(unknown)}"
            )
        repeated = sorted(name for name, times in Counter(found).items() if times > 1)
        if repeated:
            raise NacreError(f"{path} names an image more than once: {_first(repeated)}")
        if not found:
            raise NacreError(f"{path} names no image")
        return found


def is_for_testing(name: str) -> bool:
    """Return whether an image is for testing when there are no split lists: one in five is."""
    return hashlib.sha256(name.encode()).digest()[0] < _TEST_BYTES


def _files(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Find the files below a folder, by their path without extension."""
    found: dict[str, Path] = {}
    for relative in _below(folder):
        name, suffix = os.path.splitext(relative)
        if suffix.lower() not in suffixes or os.path.basename(relative).startswith("."):
            continue
        if has_control_characters(name):
            raise NacreError(
                f"the name of the file {folder / relative} is not text in UTF-8 or has control "
                "characters; rename it"
            )
        if name in found:
            both = sorted([f"{found[name]}", f"{folder / relative}"])
            raise NacreError(f"{both[0]} and {both[1]} have the same name; one must go")
        found[name] = folder / relative
    return found


def _below(folder: Path) -> Iterator[str]:
    """Yield paths below a folder; one that may not be looked into is an error, not empty."""

    def tell(error: OSError) -> None:
        raise NacreError(f"the folder {error.filename} cannot be read: {error.strerror}")

    for here, _, files in os.walk(folder, onerror=tell, followlinks=False):
        above = Path(here).relative_to(folder).as_posix()
        yield from files if above == "." else (f"{above}/{file}" for file in files)


def _without_suffix(name: str) -> str:
    path = Path(name)
    known = path.suffix.lower() in IMAGE_SUFFIXES
    return path.with_suffix("").as_posix() if known else path.as_posix()


def _first(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:_LONGEST] for name in names[:_SHOWN]) + more
