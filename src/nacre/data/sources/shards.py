"""Pictures in tar archives, as WebDataset names them: what belongs together has one key.

The key of a file is its path up to the first dot of its name. ``KEY.jpg`` is a picture (or jpeg,
webp, bmp, tif, tiff, image.png), ``KEY.png`` its mask (or seg.png, mask.png); everything else in
an archive is passed over. Archives must not be compressed: pictures are read where they lie, in any
order. What an archive holds is kept beside the index, so that its headers are read only once.
"""

import tarfile
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from nacre.data.index.cache import keep_beside, read_beside
from nacre.data.member import Member, state_of
from nacre.data.source import Split
from nacre.errors import NacreError, has_control_characters
from nacre.utils.progress import show_progress

IMAGES = ("jpg", "jpeg", "webp", "bmp", "tif", "tiff", "image.png")
MASKS = ("png", "seg.png", "mask.png")
_FILE = "shards.json"

Members = dict[str, Member]
_Size = Annotated[int, Field(ge=0, le=2**62)]


class Shards(NamedTuple):
    """What archives hold: pictures and masks by key, and the keys of each split if they say."""

    images: Members
    masks: Members
    splits: dict[Split, list[str]] | None


class _Archive(BaseModel):
    """What is known of an archive: its size, time of change, and the files in it."""

    size: _Size
    changed: _Size
    members: list[tuple[str, _Size, _Size]]


class _Listing(BaseModel):
    version: Literal[1] = 1
    archives: dict[str, _Archive]


def find_archives(root: Path) -> list[Path]:
    """Return the archives in a folder, or in ``shards/`` below it."""
    return sorted(root.glob("*.tar")) or sorted((root / "shards").glob("*.tar"))


def read_shards(root: Path, archives: list[Path]) -> Shards:
    """Find the pictures and masks in archives.

    Archives whose names begin with ``train`` and with ``val`` say which images are for testing.
    """
    images: Members = {}
    masks: Members = {}
    by_split: dict[Split, set[str]] = {"train": set(), "val": set()}
    for archive, listed in zip(archives, _list(root, archives), strict=True):
        keys = [_sort_in(Member(archive, *one), images, masks) for one in listed.members]
        by_split["val" if archive.name.startswith("val") else "train"].update(filter(None, keys))
    if not any(archive.name.startswith("val") for archive in archives):
        return Shards(images, masks, None)
    both = sorted(by_split["train"] & by_split["val"])
    if both:
        raise NacreError(f"{root}: {len(both)} images are in archives of both splits: {both[0]}")
    return Shards(images, masks, {split: sorted(keys) for split, keys in by_split.items()})


def _sort_in(member: Member, images: Members, masks: Members) -> str | None:
    """Put a file where it belongs; return its key, or None if it is neither picture nor mask."""
    folder, slash, name = member.name.rpartition("/")
    stem, _, extension = name.partition(".")
    kinds = {**dict.fromkeys(IMAGES, images), **dict.fromkeys(MASKS, masks)}
    found = kinds.get(extension.lower())
    if found is None or not stem:
        return None
    key = f"{folder}{slash}{stem}".removeprefix("./")
    if has_control_characters(key):
        raise NacreError(f"the name of {str(member)!r} is not text in UTF-8 or cannot be shown")
    if key in found:
        raise NacreError(f"{found[key]} and {member} have the same key; one must go")
    found[key] = member
    return key


def _list(root: Path, archives: list[Path]) -> list[_Archive]:
    """Return what each archive holds, reading only those that changed since the last time."""
    known = _known(root)
    result, changed = [], False
    with show_progress(f"archives of {root.name}", None) as report:
        for done, path in enumerate(archives, start=1):
            state = state_of(path)
            archive = known.get(path.name)
            if archive is None or (archive.size, archive.changed) != state:
                archive = _Archive(size=state[0], changed=state[1], members=_read(path))
                changed = True
            result.append(archive)
            report(done, len(archives))
    if changed:
        names = [path.name for path in archives]
        listing = _Listing(archives=dict(zip(names, result, strict=True)))
        keep_beside(root, _FILE, listing.model_dump_json())
    return result


def _known(root: Path) -> dict[str, _Archive]:
    text = read_beside(root, _FILE)
    try:
        return _Listing.model_validate_json(text).archives if text else {}
    except ValidationError:
        return {}


def _read(path: Path) -> list[tuple[str, int, int]]:
    """Read the headers of an archive."""
    try:
        with tarfile.open(path, "r:") as archive:
            return [
                (one.name, one.offset_data, one.size)
                for one in archive
                if one.isreg() and not one.issparse()
            ]
    except (tarfile.TarError, OSError, ValueError) as error:
        raise NacreError(
            f"the archive {path} cannot be read ({error}); it must be a whole tar file that is not "
            "compressed"
        ) from error
