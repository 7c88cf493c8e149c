"""Your own folders: their files, splits and errors."""

import os
from pathlib import Path

import numpy as np
import pytest
from small_data import blocks, make_pairs, save_image, save_mask

from nacre.data.folder import Folder, FolderConfig, is_for_testing
from nacre.errors import NacreError

NAMES = [f"p{i:02}" for i in range(40)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Forty images of two classes."""
    make_pairs(tmp_path, {name: blocks(6, 12, [0, 1, 2]) for name in NAMES})
    (tmp_path / "classes.yaml").write_text("classes: {1: cat, 2: dog}")
    return tmp_path


def _open(root: Path, classes: Path | None = None) -> Folder:
    return Folder(FolderConfig(root=root, classes=classes))


def test_without_lists_one_image_in_five_is_for_testing(root: Path) -> None:
    folder = _open(root)
    train, val = folder.index("train").names, folder.index("val").names
    assert sorted(train + val) == NAMES
    assert all(is_for_testing(name) == (name in val) for name in NAMES)
    share = np.mean([is_for_testing(f"image-{i}") for i in range(5000)])
    assert abs(share - 0.2) < 0.02
    for kind, suffix in (("images", "jpg"), ("masks", "png")):
        (root / kind / f"{train[0]}.{suffix}").unlink()
    fewer = _open(root)
    assert fewer.index("val").names == val
    assert fewer.index("train").names == train[1:]


def test_without_lists_the_subfolders_train_and_val_are_the_splits(tmp_path: Path) -> None:
    names = [f"{split}/p{i}" for split in ("train", "val") for i in range(8)]
    make_pairs(tmp_path, {name: blocks(6, 12, [0, 1]) for name in names})
    (tmp_path / "classes.yaml").write_text("classes: {1: cat}")
    folder = _open(tmp_path)
    assert folder.index("train").names + folder.index("val").names == tuple(names)
    save_image(tmp_path / "images" / "test" / "q.jpg")
    with pytest.raises(NacreError, match=r"contains train, val and test; list the images"):
        _open(tmp_path).index("train")


@pytest.mark.parametrize("place", [".", "splits"])
def test_lists_with_or_without_extension(root: Path, place: str) -> None:
    (root / place).mkdir(exist_ok=True)
    (root / place / "train.txt").write_text("p03\np01.jpg\n\n")
    (root / place / "val.txt").write_text("p07\n")
    folder = _open(root)
    assert folder.index("train").names == ("p01", "p03")
    assert folder.index("val").names == ("p07",)


def test_subfolders_and_names_with_dots_are_read(root: Path) -> None:
    save_image(root / "images" / "day.1" / "x.v2.png")
    save_mask(root / "masks" / "day.1" / "x.v2.png", blocks(12, 16, [1]))
    (root / "train.txt").write_text("day.1/x.v2\n")
    (root / "val.txt").write_text("p00\n")
    folder = _open(root)
    assert folder.index("train").names == ("day.1/x.v2",)
    assert folder.image("train", "day.1/x.v2").size == (16, 12)


def test_classes_may_be_in_another_file(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "my.yaml"
    other.write_text("classes: {0: sky, 1: sea, 2: sand}")
    space = _open(root, other).space
    assert (space.background, len(space.names)) == (None, 3)


@pytest.mark.parametrize("missing", ["images", "masks"])
def test_an_error_for_a_missing_folder_describes_the_layout(root: Path, missing: str) -> None:
    (root / missing).rename(root / "other")
    with pytest.raises(NacreError, match=rf"no folder .*{missing}; a data folder contains"):
        _open(root)


@pytest.mark.parametrize(("wrong", "right"), [("Images", "images"), ("mask", "masks")])
def test_a_misspelled_folder_is_named(root: Path, wrong: str, right: str) -> None:
    (root / right).rename(root / wrong)
    with pytest.raises(NacreError, match=f"{root} has {wrong}; rename it to {right}$"):
        _open(root)


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        (
            "p01\nnope\n",
            "p02\n",
            r"1 of the 2 names in .*train\.txt has neither .*: nope; a line is the path of",
        ),
        ("p01\np01\n", "p02\n", r"train\.txt names an image more than once: p01"),
        ("p01\n", "p01\n", r"1 image is both for training and for testing: p01; remove them"),
        ("", "p01\n", r"train\.txt names no image"),
        (None, "p01\n", r"has val\.txt but not train\.txt; give both lists or none"),
    ],
)
def test_invalid_lists_are_refused(root: Path, train: str | None, val: str, message: str) -> None:
    if train is not None:
        (root / "train.txt").write_text(train)
    (root / "val.txt").write_text(val)
    with pytest.raises(NacreError, match=message):
        _open(root).index("train")


def test_two_images_with_the_same_name_are_refused(root: Path) -> None:
    save_image(root / "images" / "p00.png")
    with pytest.raises(NacreError, match=r"p00\.jpg and .*p00\.png have the same name"):
        _open(root)


def test_camvid_has_no_background(camvid: Path, tmp_path: Path) -> None:
    classes = tmp_path / "camvid.yaml"
    table = "".join(f"  {label}: class {label}\n" for label in range(11))
    classes.write_text(f"classes:\n{table}background: null\nignored: 11\n")
    folder = _open(camvid, classes)
    train, val = folder.index("train"), folder.index("val")
    assert (len(train), len(val)) == (367, 101)
    assert sum(10 in labels for labels in train.labels) == 201
    assert frozenset().union(*train.labels) == frozenset(range(12))


def test_composed_and_decomposed_accents_are_the_same_name(root: Path) -> None:
    composed, apart = "caf\u00e9", "cafe\u0301"
    save_image(root / "images" / f"{apart}.jpg")
    save_mask(root / "masks" / f"{composed}.png", blocks(12, 16, [1]))
    (root / "train.txt").write_text(f"{apart}.jpg\np01\n", encoding="utf-8")
    (root / "val.txt").write_text("p02\n")
    folder = _open(root)
    assert folder.index("train").names == (composed, "p01")
    assert folder.image("train", composed).size == (16, 12)


def test_linked_folders_are_read_and_cycles_are_refused(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    make_pairs(other, {"q": blocks(6, 12, [1])})
    for kind in ("images", "masks"):
        (root / kind / "more").symlink_to(other / kind)
    folder = _open(root)
    assert "more/q" in folder.index("train").names + folder.index("val").names
    (other / "images" / "round").symlink_to(other / "images")
    with pytest.raises(NacreError, match=r"more/round is a link to one of its parents; remove it"):
        _open(root)


def test_file_names_that_are_not_utf_8_are_refused(root: Path) -> None:
    os.rename(root / "images" / "p00.jpg", os.fsencode(root / "images") + b"/caf\xe9.jpg")
    with pytest.raises(NacreError, match="is not text in UTF-8"):
        _open(root)


def test_hidden_files_and_folders_are_ignored(root: Path) -> None:
    save_image(root / "images" / ".ipynb_checkpoints" / "p00-checkpoint.jpg")
    (root / "images" / "._p00.jpg").write_bytes(b"\0\5\x16\7")
    folder = _open(root)
    assert sorted(folder.index("train").names + folder.index("val").names) == NAMES


@pytest.mark.parametrize(("kind", "endings"), [("images", r"\.jpg, \.jpeg"), ("masks", r"\.png")])
def test_other_files_are_neither_images_nor_masks(root: Path, kind: str, endings: str) -> None:
    for path in (root / kind).iterdir():
        path.rename(path.with_suffix(".gif"))
    with pytest.raises(NacreError, match=rf"{kind} contains no {kind} .{endings}"):
        _open(root)
