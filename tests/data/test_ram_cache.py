"""The cache: same pictures, read once, never more than the limit."""

from pathlib import Path

import numpy as np
import pytest
from small_data import blocks, make_pairs

from nacre.data.ram_cache import Cached
from nacre.data.sources.folder import Folder, FolderConfig

PICTURE, MASK = 8 * 12 * 3, 8 * 12


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Three pictures to learn from, one to test on."""
    make_pairs(tmp_path, {name: blocks(8, 12, [0, 1]) for name in "abcd"})
    (tmp_path / "classes.yaml").write_text("classes: {1: cat}")
    (tmp_path / "train.txt").write_text("a\nb\nc\n")
    (tmp_path / "val.txt").write_text("d\n")
    return Folder(FolderConfig(root=tmp_path))


def _read(source: Cached | Folder) -> list[np.ndarray]:
    names = source.index("train").names
    images = [np.asarray(source.image("train", name)) for name in names]
    return images + [source.mask("train", name) for name in names]


@pytest.mark.parametrize("limit", [0, PICTURE - 1, PICTURE, 2 * PICTURE + MASK, 10**6])
def test_it_gives_what_the_files_hold_within_the_limit(folder: Folder, limit: int) -> None:
    cached = Cached(folder, limit)
    plain = _read(folder)
    for _ in range(2):
        for one, other in zip(_read(cached), plain, strict=True):
            np.testing.assert_array_equal(one, other)
        assert cached.used <= limit
    assert cached.used == {0: 0, PICTURE - 1: 2 * MASK, 10**6: 3 * (PICTURE + MASK)}.get(
        limit, cached.used
    )
    assert cached.space == folder.space


def test_files_are_read_once(folder: Folder) -> None:
    cached = Cached(folder, 10**6)
    first = _read(cached)
    for path in [*(folder.root / "images").iterdir(), *(folder.root / "masks").iterdir()]:
        path.write_bytes(b"gone")
    kept = [np.asarray(cached.image("train", name)) for name in "abc"]
    kept += [cached.mask("train", name) for name in "abc"]
    for one, other in zip(first, kept, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_picture_that_is_not_kept_is_decoded_at_full_scale_too(folder: Folder) -> None:
    picture = Cached(folder, 0).image("train", "a")
    size = picture.size
    picture.draft("RGB", (1, 1))
    assert picture.size == size


def test_what_is_kept_cannot_be_changed(folder: Folder) -> None:
    cached = Cached(folder, 10**6)
    with pytest.raises(ValueError, match="read-only"):
        cached.mask("train", "a")[0, 0] = 9
    picture = cached.image("train", "a")
    cached.image("train", "a").putpixel((0, 0), (1, 2, 3))
    np.testing.assert_array_equal(picture, cached.image("train", "a"))
