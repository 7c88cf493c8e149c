"""ADE20K: its folders, and the published class lists."""

from pathlib import Path

import pytest
from small_data import blocks, save_image, save_mask

from nacre.data.ade20k import SPACE, Ade20k, AdeConfig, named_tasks
from nacre.errors import NacreError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three training images and one to test."""
    root = tmp_path / "ADEChallengeData2016"
    for split, short, count in (("training", "train", 3), ("validation", "val", 1)):
        for i in range(1, count + 1):
            name = f"ADE_{short}_{i:08}"
            save_image(root / "images" / split / f"{name}.jpg", 10, 14)
            save_mask(root / "annotations" / split / f"{name}.png", blocks(10, 14, [0, i]), "L")
    return root


def test_the_parent_folder_can_be_given(root: Path) -> None:
    for given in (root, root.parent):
        ade = Ade20k(AdeConfig(root=given))
        train = ade.index("train")
        assert train.names == tuple(f"ADE_train_0000000{i}" for i in (1, 2, 3))
        assert train.labels == ({0, 1}, {0, 2}, {0, 3})
        name = ade.index("val").names[0]
        assert ade.image("val", name).size == ade.mask("val", name).shape[::-1]


def test_hidden_files_of_macos_are_ignored(root: Path) -> None:
    for path in ("images/training/._a.jpg", "annotations/training/._a.png"):
        (root / path).write_bytes(b"\0\5\x16\7")
    assert len(Ade20k(AdeConfig(root=root)).index("train")) == 3


def test_label_0_is_ignored_in_tests() -> None:
    assert (SPACE.background, SPACE.ignored) == (0, None)
    assert SPACE.ignore_background_in_tests
    assert (SPACE.names[1], SPACE.names[150], len(SPACE.names)) == ("wall", "flag", 150)


def test_named_tasks_cover_every_class_once() -> None:
    tasks = named_tasks()
    assert {*tasks} == {f"{t}{o}" for t in ("100-50", "100-10", "50-50") for o in ("", "b", "c")}
    for name, task in tasks.items():
        sizes = [len(step) for step in task.steps]
        first, then = map(int, name.rstrip("bc").split("-"))
        assert sizes == [first] + [then] * ((150 - first) // then)
        assert sorted(label for step in task.steps for label in step) == list(range(1, 151))


def test_an_error_names_the_archive_of_missing_files(tmp_path: Path, root: Path) -> None:
    with pytest.raises(NacreError, match=r"no ADE20K in .*(.|\n)*ADEChallengeData2016\.zip"):
        Ade20k(AdeConfig(root=tmp_path / "nowhere"))
    (root / "annotations" / "validation").rename(root / "elsewhere")
    with pytest.raises(NacreError, match="annotations/validation is missing"):
        Ade20k(AdeConfig(root=root)).index("val")
