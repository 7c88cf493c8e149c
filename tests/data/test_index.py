"""The index: built from masks, stored, updated, and its errors."""

import json
import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_data import blocks, make_pairs, save_image, save_mask

from nacre.data import index as scanning
from nacre.data.image_io import read_mask
from nacre.data.index import (
    Pair,
    build_index,
    images_by_label,
    index_paths,
    pixels_by_label,
    scan,
)
from nacre.errors import NacreError
from nacre.labels.space import LabelIndex, LabelSpace

SPACE = LabelSpace({1: "cat", 2: "dog", 300: "eel"})
MASKS = {
    "b": blocks(6, 12, [0, 1]),
    "a": blocks(6, 12, [2, 255, 1]),
    "c": blocks(8, 8, [0]),
}


def _build(pairs: list[Pair], root: Path, space: LabelSpace = SPACE) -> LabelIndex:
    return build_index(sorted(pairs), space, root=root, split="train")


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the masks that are read."""
    found: list[str] = []

    def note(path: Path) -> object:
        found.append(path.stem)
        return read_mask(path)

    monkeypatch.setattr(scanning, "read_mask", note)
    return found


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes scan, however little there is."""
    monkeypatch.setattr(scanning, "usable_cores", lambda: 2)
    monkeypatch.setattr(scanning, "_MIN_FOR_POOL", 0)


def test_it_counts_the_labels_and_pixels_of_each_image(tmp_path: Path) -> None:
    index = _build(make_pairs(tmp_path, MASKS), tmp_path)
    assert index.names == ("a", "b", "c")
    assert index.labels == ({1, 2, 255}, {0, 1}, {0})
    assert images_by_label(index) == {0: 2, 1: 2, 2: 1, 255: 1}
    assert pixels_by_label(index) == {0: 100, 1: 60, 2: 24, 255: 24}


@pytest.mark.parametrize("mode", ["P", "L", "I;16"])
def test_it_equals_a_slow_loop_over_the_pixels(tmp_path: Path, mode: str) -> None:
    rng = np.random.default_rng(0)
    labels = [0, 1, 2, 255, 300] if mode == "I;16" else [0, 1, 2, 255]
    shapes = [(1, 1), (1, 300), (300, 1), (37, 41), (8, 8)]
    masks = {f"{i}": rng.choice(labels[: i + 1], shape) for i, shape in enumerate(shapes)}
    index = _build(make_pairs(tmp_path, masks, mode), tmp_path)
    assert index.names == tuple(masks)
    slow = [sorted(Counter(mask.ravel().tolist()).items()) for mask in masks.values()]
    assert index.labels == tuple(frozenset(dict(one)) for one in slow)
    assert [list(one.items()) for one in index.pixel_counts] == slow


def test_it_is_stored_in_one_file_in_the_data_folder(tmp_path: Path) -> None:
    _build(make_pairs(tmp_path, MASKS), tmp_path)
    (kept,) = (tmp_path / "nacre-index").iterdir()
    masks = json.loads(kept.read_text())["masks"]
    assert sorted(masks) == ["masks/a.png", "masks/b.png", "masks/c.png"]
    state = (tmp_path / "masks" / "b.png").stat()
    assert masks["masks/b.png"][0][2:] == [state.st_size, state.st_mtime_ns]
    assert masks["masks/b.png"][1] == {"0": 36, "1": 36}


def test_only_what_changed_is_read_again(tmp_path: Path, scanned: list[str]) -> None:
    pairs = make_pairs(tmp_path, MASKS)
    first = _build(pairs, tmp_path)
    scanned.clear()
    assert _build(pairs, tmp_path) == first
    assert scanned == []
    save_mask(tmp_path / "masks" / "b.png", blocks(6, 12, [2]))
    os.utime(tmp_path / "masks" / "b.png", ns=(1, 1))
    for _ in range(2):
        assert _build(pairs, tmp_path).labels == ({1, 2, 255}, {2}, {0})
        assert scanned == ["b"]
    save_image(tmp_path / "images" / "b.jpg", 7, 12)
    with pytest.raises(NacreError, match="12 x 7, its mask is 12 x 6"):
        _build(pairs, tmp_path)


def test_a_moved_folder_is_not_read_again(tmp_path: Path, scanned: list[str]) -> None:
    _build(make_pairs(tmp_path / "old", MASKS), tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    pairs = [
        Pair(n, tmp_path / f"new/images/{n}.jpg", tmp_path / f"new/masks/{n}.png") for n in MASKS
    ]
    scanned.clear()
    _build(pairs, tmp_path / "new")
    assert scanned == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version":2,"masks":{"masks/a.png":[1]}}'])
def test_a_broken_cache_is_built_again(tmp_path: Path, text: str) -> None:
    pairs = make_pairs(tmp_path, MASKS)
    first = _build(pairs, tmp_path)
    kept = tmp_path / "nacre-index" / "train.json"
    whole = kept.read_text()
    kept.write_text(text)
    assert _build(pairs, tmp_path) == first
    assert kept.read_text() == whole


def test_read_only_data_are_left_alone(tmp_path: Path, scanned: list[str]) -> None:
    root = tmp_path / "data"
    pairs = make_pairs(root, MASKS)
    root.chmod(0o555)
    try:
        first = _build(pairs, root)
        assert not (root / "nacre-index").exists()
        cache = index_paths(root, "train")[-1]
        assert cache.is_relative_to(tmp_path / "user-cache" / "nacre")
        assert "masks/a.png" in cache.read_text()
        scanned.clear()
        assert _build(pairs, root) == first
        assert scanned == []
    finally:
        root.chmod(0o755)


def test_a_stale_index_in_read_only_data_is_replaced_in_the_cache(
    tmp_path: Path, scanned: list[str]
) -> None:
    root = tmp_path / "data"
    pairs = make_pairs(root, MASKS)
    first = _build(pairs, root)
    for pair in pairs:
        os.utime(pair.mask, (1, 1))
    root.chmod(0o555)
    try:
        assert _build(pairs, root) == first
        scanned.clear()
        assert _build(pairs, root) == first
        assert scanned == []
    finally:
        root.chmod(0o755)


@pytest.mark.parametrize("has_home", [True, False])
def test_an_index_that_cannot_be_stored_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_home: bool,
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    if not has_home:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr("pathlib.Path.home", no_home)
    root = tmp_path / "data"
    pairs = make_pairs(root, MASKS)
    root.chmod(0o555)
    try:
        assert len(_build(pairs, root)) == 3
    finally:
        root.chmod(0o755)
    assert "could not be stored" in caplog.text


def test_it_is_not_written_through_a_link(tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path / "data", MASKS)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "nacre-index").symlink_to(tmp_path / "elsewhere")
    _build(pairs, tmp_path / "data")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_error_names_all_problems_at_once(tmp_path: Path) -> None:
    many = {name: blocks(6, 12, [0, 1]) for name in "abcdef"}
    pairs = make_pairs(tmp_path, many)
    (tmp_path / "images" / "a.jpg").unlink()
    (tmp_path / "masks" / "b.png").unlink()
    save_image(tmp_path / "images" / "c.jpg", 5, 12)
    save_mask(tmp_path / "masks" / "d.png", blocks(6, 12, [0, 7, 9]))
    (tmp_path / "masks" / "e.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(NacreError) as caught:
        _build(pairs, tmp_path)
    message = str(caught.value)
    assert message.startswith("5 of 6 images cannot be used: the image")
    for said in ("a.jpg is missing", "b.png is missing", "12 x 5, its mask", "e.png is damaged"):
        assert said in message
    assert "d.png contains the unknown label 7 in 24 pixels, the unknown label 9 in 24 " in message
    assert message.endswith("known labels: 0..2, 255, 300")


def test_the_first_problems_of_different_masks_are_listed(tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path, {f"{i}": blocks(2, 2, [9 + i]) for i in range(8)})
    with pytest.raises(NacreError, match=r"^8 of 8 .*4\.png contains .*; and 3 more; known"):
        _build(pairs, tmp_path)


def test_new_classes_need_no_second_pass(tmp_path: Path, scanned: list[str]) -> None:
    pairs = make_pairs(tmp_path, {f"{i}": blocks(2, 2, [9]) for i in range(8)})
    with pytest.raises(
        NacreError, match=r"^8 of 8 .*0\.png contains .* pixels \(and 7 more\); known"
    ):
        _build(pairs, tmp_path)
    scanned.clear()
    index = _build(pairs, tmp_path, LabelSpace({9: "newt"}))
    assert (index.labels, scanned) == (({9},) * 8, [])


def test_processes_return_the_same_as_one_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    pairs = make_pairs(tmp_path, {f"{n:03}": rng.integers(0, 3, (9, 9)) for n in range(150)})
    (tmp_path / "masks" / "140.png").unlink()
    monkeypatch.setattr(scanning, "usable_cores", lambda: 1)
    alone = list(scan(pairs, lambda done, total: None))
    monkeypatch.setattr(scanning, "usable_cores", lambda: 2)
    monkeypatch.setattr(scanning, "_MIN_FOR_POOL", 10)
    seen: list[tuple[int, int]] = []
    together = list(scan(pairs, lambda *counts: seen.append(counts)))
    assert together == alone
    assert seen == [(done, 150) for done in range(1, 151)]


@pytest.mark.usefixtures("two_processes")
def test_an_interrupted_pass_leaves_no_process(tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path, {f"{n:03}": blocks(3, 3, [1]) for n in range(30)})
    before = set(multiprocessing.active_children())

    def stop(done: int, total: int) -> None:
        assert sys.platform != "linux" or set(multiprocessing.active_children()) - before
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(scan(pairs, stop))
    assert set(multiprocessing.active_children()) == before


@pytest.mark.usefixtures("two_processes")
@pytest.mark.skipif(sys.platform != "linux", reason="threads, not processes, read masks here")
def test_a_killed_process_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = make_pairs(tmp_path, {f"{n:03}": blocks(3, 3, [1]) for n in range(30)})

    def die(path: Path, decode: bool) -> None:
        os.kill(os.getpid(), 9)

    monkeypatch.setattr(scanning, "examine_image", die)
    with pytest.raises(NacreError, match=r"^a process that reads masks was killed"):
        list(scan(pairs, lambda done, total: None))
