"""The file that an annotation names, the split in a path, and the names of written files."""

import io

import pytest

from nacre.importers.files import File, Finder, agrees, split_of
from nacre.importers.folder import plan_lists, plan_names, safe_name
from nacre.importers.problems import Unusable
from nacre.importers.reading import Image


def files(*paths: str) -> list[File]:
    return [File(path, 1, io.BytesIO) for path in paths]


@pytest.mark.parametrize(
    ("reference", "near", "split", "found"),
    [
        ("a.jpg", "", None, "images/a.jpg"),
        ("A.JPG", "", None, "images/a.jpg"),
        ("a", "", None, "images/a.jpg"),
        ("a.jpeg", "", None, "images/a.jpg"),
        ("C:\\photos\\a.jpg", "", None, "images/a.jpg"),
        ("../../images/a.jpg", "", None, "images/a.jpg"),
        ("b.png", "train", None, "train/b.png"),
        ("b.png", "", "val", "valid/b.png"),
        ("valid/b.png", "train", "train", "valid/b.png"),
        ("http://x.org/y/valid/b.png?z=1", "", None, "valid/b.png"),
        ("c%20d.png", "", None, "c d.png"),
        ("/data/local-files/?d=photos%2Fday%201%2Fa.jpg", "", None, "images/a.jpg"),
        ("s3://bucket/some/a.jpg", "", None, "images/a.jpg"),
        ("https://x.org/x/a.jpg?width=9&token=a/b.png", "", None, "images/a.jpg"),
        ("images/e.png", "", None, "images/e.png"),
        ("images/e.png", "train", None, "train/images/e.png"),
        ("nothing.jpg", "", None, None),
        ("data:image/png;base64,xyz", "", None, None),
        ("", "", None, None),
        ("http://[", "", None, None),
    ],
)
def test_the_file_that_a_name_means(
    reference: str, near: str, split: str | None, found: str | None
) -> None:
    finder = Finder(
        files(
            *("images/a.jpg", "train/b.png", "valid/b.png", "c d.png"),
            *("images/e.png", "train/images/e.png", "masks/nothing.png"),
        )
    )
    match = finder.find(reference, near, split)
    assert (match.path if match else None) == found


def test_a_whole_path_is_told_from_a_last_part_and_two_files_are_not_guessed() -> None:
    with pytest.raises(Unusable, match="several files may be the image"):
        Finder(files("x/a.jpg", "y/a.jpg")).find("a.jpg")
    finder = Finder(files("day1/a.jpg"))
    (file,) = files("day1/a.jpg")
    assert finder.find("day1/a.jpg") == finder.find("day2/a.jpg") == file
    assert [agrees(name, file) for name in ("a.jpg", "Day1/a.png", "day2/a.jpg")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("images/Train", "train"),
        ("train/images", "train"),
        ("x/VALID/y", "val"),
        ("val2017", "val"),
        ("training", "train"),
        ("leftImg8bit/test/berlin", "test"),
        ("trains/x", None),
        ("", None),
    ],
)
def test_splits_in_paths(path: str, split: str | None) -> None:
    assert split_of(path) == split


def images(*paths: str) -> list[Image]:
    return [Image(path, file) for path, file in zip(paths, files(*paths), strict=True)]


def test_names_are_short_where_that_is_clear() -> None:
    assert plan_names(images("x/train/a.jpg", "x/valid/b.png")) == ["a", "b"]
    assert plan_names(images("x/train/a.jpg", "x/valid/A.jpg")) == ["train/a", "valid/A"]
    assert plan_names(images("x/a.jpg", "x/a.png", "x/a_2.jpg")) == ["a", "a_2", "a_2_2"]
    assert plan_names(images("v1.2/a.jpg", "v1.3/a.jpg")) == ["v1_2/a", "v1_3/a"]


def test_long_names_stay_apart() -> None:
    one, other = (safe_name("x" * 300 + end) for end in "ab")
    assert one != other
    assert max(len(one), len(other)) <= 120


@pytest.mark.parametrize(
    ("splits", "lists"),
    [
        ({"a": "train", "b": "val", "c": "test"}, {"train": ["a"], "val": ["b"], "test": ["c"]}),
        ({"a": "train", "b": "test"}, {"train": ["a"], "val": ["b"]}),
        ({"a": "train", "b": "val", "c": None}, {"train": ["a"], "val": ["b"]}),
        ({"a": "train", "b": "train"}, {}),
        ({"a": "val", "b": "test"}, {}),
        ({"a": None, "b": None}, {}),
    ],
)
def test_lists_are_both_of_two_or_none(
    splits: dict[str, str | None], lists: dict[str, list[str]]
) -> None:
    assert plan_lists(splits.items())[0] == lists
