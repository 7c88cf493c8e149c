"""An export and where its pictures are: how a file name in an annotation becomes a file.

Tools write all kinds of names for a picture: paths of another machine, Windows paths, addresses, a
name without its extension. The file is found by its last part; among several of that name the one
counts whose path agrees furthest, then the one of the split, then the one nearest to the
annotation. Where that leaves two, nothing is guessed.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from nacre.importers.files.tree import File, Tree, open_tree, read_whole
from nacre.importers.problems import Unusable, brief

Parts = tuple[str, ...]

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""What folders and subsets are called, in small letters, and the split that is meant."""

_ADDRESS = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+://")
_MASKS = re.compile("mask|label|annot|segment|semantic|instance|panoptic|gt")
_YEAR = re.compile(r"[-_]?(19|20)\d\d$")


class Match(NamedTuple):
    """A file that was found, and whether the whole name in the annotation agrees with its path."""

    file: File
    is_full: bool


class Finder:
    """Finds files by the names that annotations give them."""

    def __init__(self, files: Iterable[File]) -> None:
        self.by_name: dict[str, list[File]] = defaultdict(list)
        self.by_stem: dict[str, list[File]] = defaultdict(list)
        for file in files:
            name = file.name.casefold()
            self.by_name[name].append(file)
            self.by_stem[name.rpartition(".")[0] or name].append(file)

    def find(self, reference: str, near: str = "", split: str | None = None) -> Match | None:
        """Return the file that is meant, or None if there is none.

        Args:
            reference: What the annotation says.
            near: The folder of the annotation.
            split: The split that the annotation belongs to.

        Raises:
            Unusable: Several files may be meant.
        """
        for parts in _spellings(reference):
            found = self._candidates(parts)
            if found:
                return self._best(found, parts, near, split)
        return None

    def _candidates(self, parts: Parts) -> list[File]:
        name = parts[-1].casefold()
        exact = self.by_name.get(name) or self.by_stem.get(name)
        if exact:
            return exact
        # The picture may have another extension, but a mask of that name is not the picture.
        found = self.by_stem.get(PurePosixPath(name).stem, [])
        return [file for file in found if not _MASKS.search(file.folder.casefold())]

    def _best(self, found: list[File], parts: Parts, near: str, split: str | None) -> Match:
        ranked = sorted(
            ((_rank(file, parts, near, split), file.path, file) for file in found), reverse=True
        )
        best = ranked[0]
        if len(ranked) > 1 and ranked[1][0] == best[0]:
            raise Unusable(
                "several files may be the picture",
                f"{brief('/'.join(parts))} may be {brief(ranked[1][1])} or {brief(best[1])}",
            )
        return Match(best[2], best[0][0] >= len(parts))


class Export:
    """An export: its files, and those of a folder with its pictures if one is given."""

    def __init__(self, main: Tree, images: Tree | None = None) -> None:
        self.main = main
        self.images = images

    @cached_property
    def files(self) -> list[File]:
        """The files of the export itself."""
        return self.main.files

    @cached_property
    def pictures(self) -> list[File]:
        """All picture files, masks among them, those of the extra folder included."""
        extra = self.images.files if self.images is not None else []
        own = [file for file in self.files if file.is_image]
        return own + [replace(file, tree=1) for file in extra if file.is_image]

    @cached_property
    def finder(self) -> Finder:
        """Finds any picture file."""
        return Finder(self.pictures)

    @property
    def links(self) -> int:
        """How many links were not followed because they lead out."""
        return self.main.links + (self.images.links if self.images is not None else 0)

    def open(self, file: File) -> BinaryIO:
        """Open a file for reading."""
        return self._tree(file).open(file)

    def read(self, file: File) -> bytes:
        """Read a file that must fit into memory."""
        return read_whole(self._tree(file), file)

    def reopened(self) -> "Export":
        """Return the same export for another process."""
        return Export(self.main.reopened(), self.images.reopened() if self.images else None)

    def close(self) -> None:
        """Close its archives."""
        for tree in (self.main, self.images):
            if tree is not None:
                tree.close()

    def with_suffix(self, *suffixes: str) -> list[File]:
        """Return the files with one of these extensions."""
        return [file for file in self.files if file.suffix in suffixes]

    def named(self, *names: str) -> list[File]:
        """Return the files with one of these names, whatever the case, the outermost first."""
        wanted = {name.casefold() for name in names}
        found = [file for file in self.files if file.name.casefold() in wanted]
        return sorted(found, key=lambda file: (file.path.count("/"), file.path))

    def _tree(self, file: File) -> Tree:
        if file.tree == 0:
            return self.main
        assert self.images is not None
        return self.images


def open_export(path: Path, images: Path | None = None) -> Export:
    """Open an export, and the folder or archive with its pictures if they lie elsewhere."""
    return Export(open_tree(path), open_tree(images) if images is not None else None)


def split_of(text: str) -> str | None:
    """Return the split that a path or the name of a subset tells, or None."""
    for part in reversed(clean_parts(text)):
        plain = part.casefold()
        for word in (plain, _YEAR.sub("", plain)):
            if word in SPLITS:
                return SPLITS[word]
    return None


def split_in_name(stem: str) -> str | None:
    """Return the split in a file name such as ``instances_val2017``, or None."""
    for word in reversed(re.split(r"[^a-zA-Z0-9]+", stem)):
        found = split_of(word)
        if found:
            return found
    return None


def clean_parts(text: str) -> Parts:
    """Return the parts of a path of any system, without those that lead elsewhere."""
    parts = unicodedata.normalize("NFC", text).replace("\\", "/").split("/")
    return tuple(part for part in parts if part not in ("", ".", "..") and not part.endswith(":"))


def outermost(files: Iterable[File]) -> list[File]:
    """Return the files that describe whole folders: one per folder, none inside another's."""
    kept: dict[str, File] = {}
    for file in sorted(files, key=lambda one: (one.path.count("/"), one.path)):
        if not any(is_inside(file, folder) for folder in kept):
            kept[file.folder] = file
    return list(kept.values())


def is_inside(file: File, folder: str) -> bool:
    """Whether a file lies in a folder or below it; all lie in the root, which has no name."""
    return not folder or file.path.startswith(f"{folder}/")


def _spellings(reference: str) -> Sequence[Parts]:
    """Return the paths that a reference may stand for, the likeliest first."""
    texts = [reference, unquote(reference)]
    if _ADDRESS.match(reference) or reference.startswith("/data/local-files/"):
        try:
            address = urlsplit(reference)
            # Label Studio names files of its own disk by `?d=path`.
            local = parse_qs(address.query).get("d", [])
        except ValueError:
            return ()
        texts = [*local, address.path, unquote(address.path)]
    found = [clean_parts(text) for text in texts if not text.startswith("data:")]
    return [parts for parts in dict.fromkeys(found) if parts]


def _rank(
    file: File, parts: Parts, near: str, split: str | None
) -> tuple[int, bool, bool, int, int]:
    """Say how well a file fits: agreeing parts, the very path, the split, nearness, the tree."""
    own, home = clean_parts(file.path.casefold()), clean_parts(near.casefold())
    wanted = tuple(part.casefold() for part in parts)
    return (
        1 + _common(own[-2::-1], wanted[-2::-1]),
        own in (wanted, home + wanted),
        split is not None and split_of(file.folder) == split,
        _common(own, home),
        -file.tree,
    )


def _common(one: Parts, other: Parts) -> int:
    """Return how many parts two paths have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
