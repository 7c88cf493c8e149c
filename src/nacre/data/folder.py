"""Your own images: ``images/``, ``masks/`` and ``classes.yaml`` in one folder.

``classes.yaml`` says what the label values in the masks mean (see `nacre.labels.space`). A mask has
the name of its image and ends in ``.png``. ``train.txt`` and ``val.txt``, in the folder or in
``splits/``, name the images of a split, one per line. Without them the subfolders ``train`` and
``val`` are the splits; without these, an image is for testing when the first byte of the SHA-256 of
its name is below 51, which is one in five, whatever other images there are.
"""

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from nacre.data.image_io import IMAGE_SUFFIXES
from nacre.data.index import Pair
from nacre.data.source import SPLITS, DataConfig, FileSource, Split, first_names
from nacre.errors import NacreError, has_control_characters
from nacre.labels.space import LabelSpace, read_classes
from nacre.utils.config import NO_EFFECT
from nacre.utils.io import read_text
from nacre.utils.system import expand_user

_TEST_BYTES = 51


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
        self.config = config
        self.root = expand_user(config.root)
        images, masks = self.root / "images", self.root / "masks"
        for folder in (self.root, images, masks):
            if not folder.is_dir():
                raise NacreError(
                    f"there is no folder {folder}; a data folder contains images/, masks/ and "
                    "classes.yaml"
                )
        self._images, self._masks = _files(images, IMAGE_SUFFIXES), _files(masks, (".png",))
        if not self._images:
            raise NacreError(f"{images} contains no images ({', '.join(IMAGE_SUFFIXES)})")
        if not self._masks:
            raise NacreError(f"{masks} contains no masks (.png)")

    @cached_property
    def space(self) -> LabelSpace:
        """The meaning of the values in the masks."""
        path = self.config.classes
        return read_classes(self.root / "classes.yaml" if path is None else expand_user(path))

    def list_pairs(self, split: Split) -> list[Pair]:
        """Return the images of a split."""
        images, masks = self.root / "images", self.root / "masks"
        # An image without a mask or the other way round is found by the index.
        return [
            Pair(
                name,
                self._images.get(name, images / f"{name}.jpg"),
                self._masks.get(name, masks / f"{name}.png"),
            )
            for name in self._names(split)
        ]

    def _names(self, split: Split) -> list[str]:
        """Return the names in the list of a split, or in its subfolder, or those that it draws."""
        lists = {one: self._list_file(one) for one in SPLITS}
        path = lists[split]
        if path is not None:
            return self._read(path)
        there = [one for one, path in lists.items() if path is not None]
        if there:
            raise NacreError(
                f"{self.root} has {there[0]}.txt but not {split}.txt; give both lists or none"
            )
        names = self._images.keys() | self._masks.keys()
        folders = {name.partition("/")[0] for name in names}
        if not folders.issuperset(SPLITS):
            return [name for name in names if is_for_testing(name) == (split == "val")]
        others = sorted(folders.difference(SPLITS))
        if others:
            raise NacreError(
                f"{self.root / 'images'} holds train, val and {first_names(others)}; train.txt and "
                "val.txt must say which images are for training and for testing"
            )
        return [name for name in names if name.startswith(f"{split}/")]

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
                f"a mask: {first_names(unknown)}; a line is the path of an image below "
                f"{self.root / 'images'}"
            )
        repeated = sorted(name for name, times in Counter(found).items() if times > 1)
        if repeated:
            raise NacreError(f"{path} names an image more than once: {first_names(repeated)}")
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
        if suffix.lower() not in suffixes:
            continue
        if has_control_characters(name):
            raise NacreError(
                f"the name of the file {folder / relative} is not text in UTF-8 or has control "
                "characters; rename it"
            )
        name = unicodedata.normalize("NFC", name)  # macOS writes letters and their accents apart
        if name in found:
            both = sorted([f"{found[name]}", f"{folder / relative}"])
            raise NacreError(f"{both[0]} and {both[1]} have the same name; one must go")
        found[name] = folder / relative
    return found


def _below(folder: Path, start: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield paths below a folder, none that is hidden; what cannot be read is an error."""
    real = os.path.realpath(folder)
    if real in above:
        raise NacreError(f"the folder {folder} is a link to one that it lies in; remove it")
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        raise NacreError(f"the folder {folder} cannot be read: {error.strerror}") from error
    for name in names:
        if (folder / name).is_dir():
            yield from _below(folder / name, f"{start}{name}/", (*above, real))
        else:
            yield start + name


def _without_suffix(name: str) -> str:
    path = Path(unicodedata.normalize("NFC", name))
    known = path.suffix.lower() in IMAGE_SUFFIXES
    return path.with_suffix("").as_posix() if known else path.as_posix()
