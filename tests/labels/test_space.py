"""Valid and invalid ``classes.yaml`` files."""

from pathlib import Path

import pytest

from nacre.errors import NacreError
from nacre.labels.space import LabelSpace, read_classes


def _read(tmp_path: Path, text: str) -> LabelSpace:
    path = tmp_path / "classes.yaml"
    path.write_text(text, encoding="utf-8")
    return read_classes(path)


def test_background_and_ignored_have_defaults(tmp_path: Path) -> None:
    space = _read(tmp_path, "classes: {2: dog, 1: cat}")
    assert space == LabelSpace({2: "dog", 1: "cat"}, background=0, ignored=255)
    assert space.labels == (2, 1)


def test_a_background_among_the_classes_is_the_background(tmp_path: Path) -> None:
    space = _read(tmp_path, "classes: {0: background, 1: cat}")
    assert space == LabelSpace({1: "cat"}, background=0, ignored=255)
    with pytest.raises(NacreError, match="label 1 cannot be a class named 'background'"):
        _read(tmp_path, "classes: {1: background, 2: cat}\nbackground: 0")


def test_a_list_counts_from_one(tmp_path: Path) -> None:
    assert _read(tmp_path, "classes: [cat, dog]").names == {1: "cat", 2: "dog"}


def test_data_without_a_background(tmp_path: Path) -> None:
    said = _read(tmp_path, "classes: {0: sky, 1: road}\nbackground: null\nignored: 11")
    assert (said.background, said.ignored, said.allowed) == (None, 11, {0, 1, 11})
    assert _read(tmp_path, "classes: {0: sky, 255: road}").allowed == {0, 255}


def test_colors_by_name_or_label(tmp_path: Path) -> None:
    text = (
        "classes: {1: cat, 2: dog}\ncolors: {cat: [1, 2, 3], 2: [4, 5, 6], background: [7, 8, 9]}"
    )
    assert _read(tmp_path, text).colors == {1: (1, 2, 3), 2: (4, 5, 6), 0: (7, 8, 9)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("classes: {1: cat, 2: cat}", "class 'cat' is named twice: for the labels 1 and 2"),
        ("classes: {1: cat, 1: dog}", "line 1: 1 is given twice"),
        ("classes: {1: cat}\nignore: 9", "unknown key 'ignore' (did you mean 'ignored'?)"),
        ("classes: {1: cat}\nbackground: 9\nignored: 9", "label 9 is both the background and"),
        ("classes: {1: cat}\nbackground: 1", "label 1 is both the class 'cat' and"),
        ("classes: {1: cat}\nignored: -1", "`ignored` is -1; it must be a whole number"),
        ("classes: {1: cat}\nignored: true", "`ignored` is True; it must be a whole number"),
        ("classes: {x: cat}", "the label of class 'cat' is 'x'; it must be a whole number"),
        ("classes: {70000: cat}", "the label of class 'cat' is 70000"),
        ("classes: {1: }", "the class of label 1 has the name None; it must be text"),
        ("classes: {cat: 1}", "'cat' has the name 1; write label: name, as in {1: cat}"),
        ("classes: {cat: true}", "'cat' has the name True; it must be text"),
        ("classes: {}", "`classes` must be a mapping of label: name"),
        ("names: {1: cat}", "must have a key `classes`"),
        ("- cat", "must have a key `classes`"),
        ("classes: {1: cat}\ncolors: {cat: red}", "the color of 'cat' is 'red'"),
        ("classes: {1: cat}\ncolors: {cat: [1, 2, 300]}", "the color of 'cat' is [1, 2, 300]"),
        ("classes: {1: cat}\ncolors: {cow: [1, 2, 3]}", "no class is named 'cow'"),
        ("classes: {1: cat}\ncolors: 3", "`colors` must be a mapping"),
        ('classes: {1: "a\\u001b[31m"}', "without control characters"),
        (f"classes: {{1: {'x' * 1000}}}", "text of at most 200 characters"),
        ("classes: {1: cat}\ncolors: {true: [1, 2, 3]}", "`colors` names True"),
        ("classes: {1: cat}\ncolors: {2020-01-01: [1, 2, 3]}", "no class is named '2020-01-01'"),
        ("classes: {1: 2020-13-45}\nbackground: 10000000000000000000000", "`background` is 1000"),
        ("classes: [" * 2000, "is not valid YAML"),
    ],
)
def test_an_error_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NacreError) as caught:
        _read(tmp_path, text)
    assert message in str(caught.value)
    assert "classes.yaml" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_an_error_for_a_missing_file_describes_its_content(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match=r"could not read .*classes\.yaml: .*`classes: \{1: cat"):
        read_classes(tmp_path / "classes.yaml")
