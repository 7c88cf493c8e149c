"""The check of a data folder reports all problems and writes nothing."""

import io
import json
import os
import re
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from small_data import blocks, make_pairs, save_image, save_mask, turned

from nacre.cli.look import report_tables
from nacre.data.folder import Folder, FolderConfig
from nacre.data.source import DataReport, check_source
from nacre.data.voc import Voc, VocConfig
from nacre.errors import NacreError

NAMES = [f"p{i}" for i in range(6)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six images in two splits."""
    root = tmp_path / "mine"
    make_pairs(root, {name: blocks(8, 12, [0, 1]) for name in NAMES})
    (root / "classes.yaml").write_text("classes: {1: cat, 2: dog}")
    (root / "train.txt").write_text("\n".join(NAMES[:5]))
    (root / "val.txt").write_text(NAMES[5])
    return root


def _check(root: Path) -> DataReport:
    return check_source(Folder(FolderConfig(root=root)))


def _problems(root: Path) -> list[str]:
    """Return the problems in the training images, which `nacre data` and `nacre plan` report."""
    found = [one.text for one in _check(root).splits[0].problems]
    if found:
        with pytest.raises(NacreError, match=re.escape(found[0])):
            Folder(FolderConfig(root=root)).index("train")
    return found


def _text(report: DataReport) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report_tables(report))
    return console.export_text()


def test_a_valid_folder_has_no_problems(root: Path) -> None:
    before = sorted(root.rglob("*"))
    report = _check(root)
    assert (report.is_valid, report.empty_classes) == (True, ("dog",))
    assert [split.images for split in report.splits] == [5, 1]
    assert sorted(root.rglob("*")) == before
    text = _text(report)
    assert "every file can be used" in text
    assert "no pixel in training: dog" in text
    assert "50.00%" in text


def test_all_problems_are_counted_and_named(root: Path) -> None:
    (root / "images" / "p0.jpg").unlink()
    (root / "masks" / "p1.png").unlink()
    save_image(root / "images" / "p2.jpg", 9, 12)
    save_mask(root / "masks" / "p3.png", blocks(8, 12, [0, 44]))
    broken = root / "images" / "p5.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])
    report = _check(root)
    train, val = report.splits
    kinds = ["missing image", "missing mask", "sizes differ", "unknown label"]
    assert [problem.kind for problem in train.problems] == kinds
    assert [problem.kind for problem in val.problems] == ["unusable file"]
    assert not report.is_valid
    text = _text(report)
    assert "train: 5 images, val: 1 image\n" in re.sub(" *\n", "\n", text)
    assert "p3.png contains the unknown label 44 in 48 pixels" in text
    assert "5 images cannot be used" in text
    assert json.loads(json.dumps(report.as_dict()))["splits"][1]["problems"][0]["image"] == "p5"


def test_a_part_of_voc_is_reported_as_a_part(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_image(tmp_path / "JPEGImages" / f"{name}.jpg", 8, 8)
        save_mask(tmp_path / "SegmentationClassAug" / f"{name}.png", blocks(8, 8, [0, 1]))
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "train_aug.txt").write_text("a")
    (tmp_path / "splits" / "val.txt").write_text("b")
    report = check_source(Voc(VocConfig(root=tmp_path)))
    assert report.is_valid
    assert "train has 1 of the data set's 10,582 images" in _text(report)


def test_black_and_white_masks_are_a_problem_with_a_remedy(
    root: Path,
) -> None:
    for path in (root / "masks").iterdir():
        save_mask(path, blocks(8, 12, [0, 255]))
    (root / "classes.yaml").write_text("classes: {1: plant}")
    report = _check(root)
    assert (report.is_valid, report.white_label) == (False, 255)
    text = _text(report)
    assert "write `classes: {255: plant}` in classes.yaml" in text
    assert "every file can be used" not in text
    (root / "classes.yaml").write_text("classes: {255: plant}")
    assert _check(root).is_valid


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_masks_that_are_jpeg_files_are_listed(root: Path, suffix: str, mode: str) -> None:
    paths = sorted((root / "masks").iterdir())
    for path in paths:
        Image.open(path).convert(mode).save(path.with_suffix(suffix))
        path.unlink()
        told = f"{path.stem}{suffix} is a JPEG, whose compression changes labels; export the masks"
        problems = (problem for split in _check(root).splits for problem in split.problems)
        assert any(told in problem.text for problem in problems)
    assert len(_problems(root)) == len(paths) - 1


def test_a_mask_of_another_type_must_be_a_png(root: Path) -> None:
    Image.open(root / "masks" / "p0.png").save(root / "masks" / "p0.bmp")
    (root / "masks" / "p0.png").unlink()
    (text,) = _problems(root)
    assert text.endswith("p0.bmp must be a PNG file named .png")


@pytest.mark.parametrize("kind", ["images/p0.jpg", "masks/p0.png"])
def test_data_and_plan_report_damaged_files_and_pipes(root: Path, kind: str) -> None:
    path = root / kind
    path.write_bytes(path.read_bytes()[:60])
    assert "is damaged" in _problems(root)[0]
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in _problems(root)[0]


def test_a_mask_of_the_unrotated_image_is_a_problem(root: Path) -> None:
    save_image(root / "images" / "p0.jpg", 8, 12, exif=turned(6))
    (text,) = _problems(root)
    assert "EXIF data rotate the image, and the mask must match the rotated image" in text
    save_image(root / "images" / "p0.jpg", 8, 12, exif=turned(3))
    assert _problems(root) == []
    report = _check(root)
    assert report.splits[0].turned == 1
    assert "EXIF data rotate 1 image; its mask must match what image viewers show" in _text(report)
    save_image(root / "images" / "p0.jpg", 9, 9)
    assert "1 image cannot be used" in _text(_check(root))
