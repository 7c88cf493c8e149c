"""The command: what it prints, how it ends, and all cores."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from exports import SIZES, TOOLS, coco_content, cvat_masks, save_image, save_json, zip_folder

from importing import Imported
from nacre.cli import main

Nacre = Callable[..., tuple[str, str]]


@pytest.fixture
def nacre(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Nacre:
    """Runs a command in this process and returns what it printed."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["nacre", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        done = capsys.readouterr()
        assert (ended.value.code or 0) == code, done
        return done.out, done.err

    return call


def test_it_says_what_was_found_and_what_to_do_next(nacre: Nacre, tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    out, _ = nacre("import", tmp_path / "x", "--to", tmp_path / "my-data")
    assert "folders of masks: 3 images in my-data" in out
    assert "split lists: train.txt 2, val.txt 1" in out
    assert "1 image without shapes: all background (empty)" in out
    assert "then: nacre data " in out
    out, _ = nacre("data", "folder", "--root", tmp_path / "my-data")
    assert "every file can be used" in out


def test_paths_are_shown_as_they_were_given(
    nacre: Nacre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cvat_masks(tmp_path / "x")
    monkeypatch.chdir(tmp_path)
    out, _ = nacre("import", "x", "--to", "my-data")
    assert "look at my-data/contact-sheet.jpg; then: nacre data my-data" in out
    _, err = nacre("import", "x", "--to", "my-data", code=2)
    assert err == "error: my-data is not empty; import into a new folder\n"


def test_the_report_and_options_of_the_classes(nacre: Nacre, tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    names = ("--rename", "cat=Felis catus", "--ignore", "dog", "--classes", "Felis catus")
    nacre("import", tmp_path / "x", "--to", tmp_path / "y", *names)
    report = json.loads((tmp_path / "y" / "import.json").read_text("utf-8"))
    assert (report["images"], report["splits"]) == (3, {"train": 2, "val": 1})
    assert [one["name"] for one in report["classes"]] == ["Felis catus"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--unlabeled", "x"], "unknown value of --unlabeled 'x'"),
        (["--rename", "cat"], "--rename 'cat' is not of the form OLD=NEW"),
        (["--format", "labelmee"], "unknown format 'labelmee' (did you mean 'labelme'?)"),
        (["--format", "coco"], "does not look like COCO instances"),
        (["--images", "nowhere"], "there is no export nowhere"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, nacre: Nacre, tmp_path: Path
) -> None:
    cvat_masks(tmp_path / "x")
    out, err = nacre("import", tmp_path / "x", "--to", tmp_path / "y", *arguments, code=2)
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_several_processes_come_to_the_same(packed: bool, tmp_path: Path) -> None:
    content = coco_content(["a", "b", "empty"])
    images, annotations = [], []
    for i in range(40):
        name = ("a", "b", "empty")[i % 3]
        images.append({"id": i, "file_name": f"{i}.jpg"})
        annotations += [
            one | {"image_id": i} for one in content["annotations"] if one["image_id"] == i % 3 + 1
        ]
        save_image(tmp_path / "x" / f"{i}.jpg", SIZES[name], seed=i)
    (tmp_path / "x" / "7.jpg").write_bytes(b"damaged")
    save_json(tmp_path / "x" / "c.json", content | {"images": images, "annotations": annotations})
    export = zip_folder(tmp_path / "x", tmp_path / "x.zip") if packed else tmp_path / "x"
    alone = Imported(export, tmp_path / "alone", workers=1)
    many = Imported(export, tmp_path / "many", workers=3)
    assert alone.report.as_dict() == many.report.as_dict()
    assert alone.images() == many.images() == {str(i) for i in range(40) if i != 7}
    for name in alone.images():
        np.testing.assert_array_equal(alone.mask(name), many.mask(name))


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.usefixtures("heard_signals")
def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    TOOLS["coco_rle"][1](tmp_path / "x")
    code = f"""
import os, signal, sys
from nacre.cli import main
from nacre.importers import paint

def interrupted(path, look_at=paint.look_at):
    os.kill(os.getpid(), signal.SIGINT)
    return look_at(path)

paint.look_at = interrupted
sys.argv = ["nacre", "import", {str(tmp_path / "x")!r}, "--to", {str(tmp_path / "y")!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing was written\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]
