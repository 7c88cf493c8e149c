"""The images and videos that a user names: files, folders, globs."""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from nacre.data.image_io import IMAGE_SUFFIXES
from nacre.errors import NacreError

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")


@dataclass(frozen=True)
class Input:
    """An image or a video.

    Attributes:
        path: The file.
        name: Its path below the folder that all have in common, with its suffix.
        stem: The same for its results: without the suffix unless another has the same stem.
    """

    path: Path
    name: str
    stem: str

    @property
    def is_video(self) -> bool:
        """True if it is a video."""
        return self.path.suffix.lower() in VIDEO_SUFFIXES


def find_inputs(given: Sequence[str], out: Path) -> list[Input]:
    """Return all images and videos that files, folders and globs name.

    Args:
        given: Files, folders (with all below them) and globs such as ``day-*/*.jpg``.
        out: Where results go; what lies there is no input, unless a file is named.
    """
    found = [path for one in given for path in _paths(one, out.resolve())]
    # Without `..`: a result must lie below the folder of the results.
    paths = {Path(os.path.abspath(path)): path for path in found}
    names = names_below([*paths])
    # Those that share a stem are called by their whole name, which may be another one's stem.
    stems = Counter(str(_short(name)) for name in names)
    stems.update(str(name) for name in names)
    return [
        Input(path, str(name), str(_short(name) if stems[str(_short(name))] == 1 else name))
        for path, name in zip(paths.values(), names, strict=True)
    ]


def names_below(paths: Sequence[PurePath]) -> list[PurePosixPath]:
    """Return absolute paths from the folder that all have in common, if there is one."""
    if len({path.drive.lower() for path in paths}) > 1:  # drives of Windows
        return [PurePosixPath(path.drive.strip(":\\"), *path.parts[1:]) for path in paths]
    common = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return [PurePosixPath(path.relative_to(common)) for path in paths]


def _short(name: PurePosixPath) -> PurePosixPath:
    return name.with_suffix("")


def _paths(given: str, out: Path) -> Iterable[Path]:
    path = Path(given).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        os.scandir(path).close()  # what may not be read is no folder without images
        candidates = sorted(path.rglob("*"))
    else:
        candidates = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
    found = [one for one in candidates if _is_input(one) and out not in one.resolve().parents]
    if not found:
        raise NacreError(
            f"no images at {given}: give files, folders or globs of "
            f"{', '.join(suffix[1:] for suffix in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))}"
        )
    return found


def _is_input(path: Path) -> bool:
    return path.suffix.lower() in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES) and path.is_file()
