"""Your own images: ``images/``, ``masks/`` and ``classes.yaml`` in one folder.

``classes.yaml`` lists the classes of the labels (`nacre.labels.space`). A mask has the name of its
image and the suffix ``.png``. ``train.txt`` and ``val.txt``, in the folder or in ``splits/``, list
the images of the splits, one per line. Without them, the subfolders ``train`` and ``val`` are the
splits. Without these, an image is for testing if the first byte of the SHA-256 of its name is below
51: one in five, independent of the other images.
"""

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
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

_NUM_TEST_BYTES = 51


class FolderConfig(DataConfig):
    """The config of your own images."""

    name: Literal["folder"] = Field("folder", description="the data set: your own folder")
    root: Path = Field(
        description="folder with images/, masks/ and classes.yaml", json_schema_extra=NO_EFFECT
    )
    classes: Path | None = Field(
        None,
        description="path of classes.yaml, if it is not in the folder itself",
        json_schema_extra=NO_EFFECT,
    )


class Folder(FileSource):
    """Images from a folder."""

    def __init__(self, config: FolderConfig) -> None:
        self.config = config
        self.root = expand_user(config.root)
        images, masks = self.root / "images", self.root / "masks"
        for folder in (self.root, images, masks):
            if not folder.is_dir():
                names = [path.name for path in self.root.glob("*/")]
                if folder != self.root and (wrong := misspelled_folder(names)):
                    raise NacreError(f"{self.root} has {wrong[0]}; rename it to {wrong[1]}")
                raise NacreError(
                    f"there is no folder {folder}; a data folder contains images/, masks/ and "
                    "classes.yaml"
                )
        self._images, self._masks = _files(images, IMAGE_SUFFIXES), _files(masks, (".png",))
        if not self._images:
            raise NacreError(f"{images} contains no images ({', '.join(IMAGE_SUFFIXES)})")
        if not self._masks and not _files(masks, IMAGE_SUFFIXES):
            raise NacreError(f"{masks} contains no masks (.png)")

    @cached_property
    def space(self) -> LabelSpace:
        """The meaning of the values in the masks."""
        path = self.config.classes
        return read_classes(self.root / "classes.yaml" if path is None else expand_user(path))

    def list_pairs(self, split: Split) -> list[Pair]:
        """Return the images of a split."""
        images, masks = self.root / "images", self.root / "masks"
        # The index reports an image without a mask, or a mask without an image.
        return [
            Pair(
                name,
                self._images.get(name, images / f"{name}.jpg"),
                self._masks.get(name, masks / f"{name}.png"),
            )
            for name in self._names(split)
        ]

    def _names(self, split: Split) -> list[str]:
        """Return the images of a split by its list, its subfolder or the hash of the name."""
        lists = {each: self._list_file(each) for each in SPLITS}
        path = lists[split]
        if path is not None:
            return self._read(path)
        existing = [each for each, path in lists.items() if path is not None]
        if existing:
            raise NacreError(
                f"{self.root} has {existing[0]}.txt but not {split}.txt; give both lists or none"
            )
        names = self._images.keys() | self._masks.keys()
        folders = {name.partition("/")[0] for name in names}
        if not folders.issuperset(SPLITS):
            return [name for name in names if is_for_testing(name) == (split == "val")]
        others = sorted(folders.difference(SPLITS))
        if others:
            raise NacreError(
                f"{self.root / 'images'} contains train, val and {first_names(others)}; list the "
                "images for training and testing in train.txt and val.txt"
            )
        return [name for name in names if name.startswith(f"{split}/")]

    def _list_file(self, split: Split) -> Path | None:
        for path in (self.root / f"{split}.txt", self.root / "splits" / f"{split}.txt"):
            if path.is_file():
                return path
        return None

    def _read(self, path: Path) -> list[str]:
        """Read the names in a list, with or without suffixes."""
        names = [line.strip() for line in read_text(path, "list").splitlines()]
        listed = [_without_suffix(name) for name in names if name]
        unknown = [name for name in listed if name not in self._images and name not in self._masks]
        if unknown:
            have = "has" if len(unknown) == 1 else "have"
            raise NacreError(
                f"{len(unknown)} of the {len(listed)} names in {path} {have} neither an image nor "
                f"a mask: {first_names(unknown)}; a line is the path of an image below "
                f"{self.root / 'images'}"
            )
        repeated = sorted(name for name, times in Counter(listed).items() if times > 1)
        if repeated:
            raise NacreError(f"{path} names an image more than once: {first_names(repeated)}")
        if not listed:
            raise NacreError(f"{path} names no image")
        return listed


def misspelled_folder(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the name of a subfolder that is not quite ``images`` or ``masks``, and the right one.

    Args:
        names: The names of all subfolders of a data folder.
    """
    found = sorted(names)
    for right in (name for name in ("images", "masks") if name not in found):
        for name in found:
            if name.casefold() in (right, right.removesuffix("s")):
                return name, right
    return None


def is_for_testing(name: str) -> bool:
    """Return whether an image is for testing if there are no lists: one in five is."""
    return hashlib.sha256(name.encode()).digest()[0] < _NUM_TEST_BYTES


def _files(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Return the files in a folder and its subfolders, by their path without suffix."""
    files: dict[str, Path] = {}
    for relative in _below(folder):
        name, suffix = os.path.splitext(relative)
        if suffix.lower() not in suffixes:
            continue
        if has_control_characters(name):
            raise NacreError(
                f"the name of the file {folder / relative} is not text in UTF-8 or has control "
                "characters; rename it"
            )
        name = unicodedata.normalize("NFC", name)  # macOS separates letters and accents
        if name in files:
            both = sorted([f"{files[name]}", f"{folder / relative}"])
            raise NacreError(f"{both[0]} and {both[1]} have the same name; remove one")
        files[name] = folder / relative
    return files


def _below(folder: Path, start: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the relative paths of all files in a folder that are not hidden."""
    real = os.path.realpath(folder)
    if real in above:
        raise NacreError(f"the folder {folder} is a link to one of its parents; remove it")
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
