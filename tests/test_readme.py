"""The examples and numbers of the README and the docs are right."""

import json
import re
import shlex
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image, ImageDraw

from nacre.cli import main
from nacre.errors import NacreError
from nacre.export.page import web_runtime
from nacre.models.io import find_model, load_model

ROOT = Path(__file__).parents[1]


def blocks(path: str, language: str) -> list[str]:
    text = (ROOT / path).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_python_example_for_researchers_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(1).integers(0, 255, (48, 80, 3), np.uint8)
    Image.fromarray(noise).save("photo.png")
    (code,) = blocks("docs/research.md", "python")
    names: dict = {}
    exec(compile(code, "docs/research.md", "exec"), names)
    with Image.open("overlay.png") as overlay:
        assert overlay.size == (80, 48)
    assert names["result"].mask.shape == (48, 80)
    assert set(np.unique(names["result"].names)) == set(names["result"].class_fractions())
    assert "{" in capsys.readouterr().out


def test_four_lines_of_the_readme_learn_the_next_class(tmp_path, monkeypatch):
    from nacre.data.scenes import ScenesConfig
    from nacre.training import config as configs
    from partial_data import write_folder

    # Replaces the values that nacre chooses for the machine.
    tiny = {
        "model": {"backbone": "tiny", "weights": "none", "decoder_channels": 8},
        "images": {"crop_size": 32, "crop": "plain"},
        "train": {"iterations": 2, "batch_size": 4},
    }
    monkeypatch.setattr(configs, "fitted_values", lambda *_: tiny)
    monkeypatch.chdir(tmp_path)
    world = ScenesConfig(train=12, val=6, size=32, seed=3)
    called = {"pearl": "cat", "starfish": "dog", "crate": "bird"}
    for name, drawn in (("pets", ["pearl", "starfish"]), ("birds", ["crate"])):
        classes = write_folder(tmp_path / name, drawn, world=world) / "classes.yaml"
        text = classes.read_text()
        for one in drawn:
            text = text.replace(one, called[one])
        classes.write_text(text)
    Image.fromarray(np.zeros((40, 64, 3), np.uint8)).save("photo.jpg")
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 4
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["both"].classes == ("background", "cat", "dog", "bird")
    with Image.open("overlay.png") as overlay:
        assert overlay.size == (64, 40)


def test_the_example_method_of_the_docs_is_a_method():
    import torch

    from nacre.labels.channels import from_background
    from nacre.methods.base import Batch
    from nacre.models.network import Output

    (code,) = blocks("docs/methods.md", "python")
    names: dict = {"__name__": "example"}
    exec(compile(code, "docs/methods.md", "exec"), names)
    method = names["Features"](names["FeaturesConfig"](), from_background(2, 3))
    batch = Batch(torch.zeros(1, 3, 8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8))
    student = Output(torch.zeros(1, 3, 2, 2), torch.ones(1, 4, 2, 2), torch.ones(1, 4, 2, 2))
    teacher = Output(torch.zeros(1, 2, 2, 2), torch.zeros(1, 4, 2, 2), torch.ones(1, 4, 2, 2))
    losses = method.losses(batch, student, teacher)
    assert float(losses["features"]) == 1.0
    assert float(losses["ce"]) == pytest.approx(np.log(3), abs=1e-5)


SMALL = (
    "--set model.backbone=tiny --set model.decoder_channels=8 "
    "--set model.weights=none --set images.crop_size=32 --set train.iterations=3 "
    "--set train.batch_size=4"
)


def draw(root: Path, names: list[str], labels: list[str]) -> None:
    """Annotate images as LabelMe does: one box of each class."""
    root.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        pixels = np.random.default_rng(i).integers(0, 90, (40, 48, 3), np.uint8)
        image = Image.fromarray(pixels)
        shapes = []
        for place, label in enumerate(labels):
            box = (4 + 20 * place, 6, 20 + 20 * place, 30)
            ImageDraw.Draw(image).rectangle(box, fill=(60 * place + 90, 200 - 90 * place, 70))
            points = [[box[0], box[1]], [box[2], box[3]]]
            shapes.append({"label": label, "points": points, "shape_type": "rectangle"})
        image.save(root / f"{name}.png")
        content = {
            "imagePath": f"{name}.png",
            "imageHeight": 40,
            "imageWidth": 48,
            "shapes": shapes,
        }
        (root / f"{name}.json").write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.timeout(900)  # ten commands, one of which traces a network
def test_the_commands_of_the_docs_run(tmp_path, monkeypatch, capsys) -> None:
    """Annotate, import, learn, report, export and learn the next class with a tiny network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    loop = next(block for block in blocks("docs/images.md", "sh") if "nacre import" in block)
    lines = [shlex.split(line, comments=True)[1:] for line in loop.splitlines()]
    assert len(lines) <= 10
    names = [f"image {i}" for i in range(8)]
    draw(Path("export"), names, ["cat", "dog"])
    with zipfile.ZipFile("export.zip", "w") as archive:
        for file in sorted(Path("export").iterdir()):
            archive.write(file)
    draw(Path("drawn"), names, ["bird"])
    for folder in ("photos", "more"):
        draw(Path(folder), names[:2], [])
    has_runtime = True
    try:
        web_runtime()
    except NacreError:
        has_runtime = False  # the page has tests of its own, which say why they skip

    def run(arguments: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", ["nacre", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, (arguments, capsys.readouterr())

    run(["import", "drawn", "--to", "birds"])
    for line in lines:
        if line[0] == "import" and line[1] == "next/labelme":
            for file in Path("next/labelme").iterdir():
                content = json.loads(file.read_text())
                fish = {"label": "fish", "points": [[5, 5], [20, 20]], "shape_type": "rectangle"}
                file.write_text(json.dumps(content | {"shapes": [*content["shapes"], fish]}))
        if line[0] == "export" and not has_runtime:
            continue
        run([*line, *(shlex.split(SMALL) if line[0] == "learn" else [])])
    _, info, _ = load_model(find_model(Path("models/pets-birds")))
    assert info.classes == ["background", "cat", "dog", "bird"]
    assert len(list(Path("predictions/masks").rglob("*.png"))) == 2
    assert not has_runtime or Path("model.html").stat().st_size > 1_000_000
    classes = yaml.safe_load(Path("fish/classes.yaml").read_text())["classes"]
    assert "fish" in classes.values()


def test_the_four_commands_of_the_readme_are_those_of_the_loop():
    def commands(block: str) -> list[list[str]]:
        return [shlex.split(line, comments=True) for line in block.splitlines()]

    (four,) = [block for block in blocks("README.md", "sh") if "nacre learn" in block]
    loop = next(block for block in blocks("docs/images.md", "sh") if "nacre import" in block)
    assert len(commands(four)) == 4
    assert all(command in commands(loop) for command in commands(four))


def cells(path: str, table: str, row: str) -> list[str]:
    """Return the numbers in a row of a page's table; both are found by their first words."""
    lines = (ROOT / path).read_text("utf-8").partition(f" {table}")[2].splitlines()
    line = next(line for line in lines if line.startswith(f"| {row}"))
    return re.findall(r"(?<=\| )\d+\.\d(?= \|)", line)


@pytest.mark.parametrize(
    ("row", "page", "table", "there"),
    [
        ("fine-tuning", "docs/results.md", "voc-animals-4-1 |", "FT |"),
        ("LwF", "docs/results.md", "voc-animals-4-1 |", "LwF |"),
        ("MiB", "docs/results.md", "voc-animals-4-1 |", "MiB |"),
        ("all classes", "docs/results.md", "voc-animals-4-1 |", "Joint |"),
        ("`ledger`", "docs/ledger.md", "step 0 |", "voc-animals-4-1, stride 8"),
        ("`duo`", "docs/ledger.md", "step 0 |", "voc-animals-4-1, duo"),
    ],
)
def test_the_numbers_of_the_readme_are_those_of_the_docs(row, page, table, there):
    shown, measured = cells("README.md", "four animals |", row), cells(page, table, there)
    assert len(shown) == 4
    assert shown in (measured[:4], measured[1:5]), "docs/ledger.md has step 0 first"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
