"""Models on the hub: what is uploaded, a card with figures, and the way there and back."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from export.hub_site import Hub, hub_site
from nacre.api.model import load
from nacre.errors import NacreError
from nacre.export.hub import model_card, without_paths, write_folder
from nacre.export.onnx_file import noise_image

NAME = "someone/my-model"


@pytest.fixture(scope="module")
def folder(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is uploaded of a run of three steps."""
    out = tmp_path_factory.mktemp("uploaded")
    model = load(learned)
    assert model.path is not None
    write_folder(out, model.path, model.info, NAME, "CC-BY-4.0")
    return out


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with hub_site() as site:
        monkeypatch.setenv("HF_ENDPOINT", site.address)
        yield site


def test_what_is_uploaded_is_a_model(folder: Path, learned: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "README.md"}
    image = noise_image((64, 96))
    assert (load(folder).predict(image).mask == load(learned).predict(image).mask).all()
    assert load(folder).info.lineage == load(learned).info.lineage


def test_the_card_has_the_iou_of_every_class(folder: Path, learned: Path) -> None:
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    said = yaml.safe_load(front)
    assert (said["library_name"], said["pipeline_tag"]) == ("nacre", "image-segmentation")
    assert said["license"] == "cc-by-4.0"
    steps = sorted(learned.glob("step-*"))
    ious = json.loads((steps[-1] / "metrics.json").read_text())["iou"]
    for name, value in ious.items():
        assert re.search(rf"\| {name} \| \d \| {100 * value:.1f} \|" if value else name, text)
    assert f'nacre.load("hf://{NAME}")' in text


def test_a_model_file_alone_has_a_card_without_figures(learned: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((learned / "step-1" / "model.safetensors").read_bytes())
    (tmp_path / "out").mkdir()
    write_folder(tmp_path / "out", alone, load(alone).info, NAME, None)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "license" not in text
    assert re.search(r"\| background \| 0 \| – \|", text)


def test_paths_of_this_machine_stay_here() -> None:
    given = {"data": {"root": "/home/someone/images"}, "a": ["C:\\data\\x", "voc/15-5"], "n": 1}
    assert without_paths(given) == {"data": {"root": "images"}, "a": ["x", "voc/15-5"], "n": 1}


HOSTILE = (
    "](javascript:alert(1))",
    "[x](javascript:alert(1))",
    "\\[x\\](javascript:alert(1))",
    "![x](http://far.example/x.png)",
    "<img src=x onerror=alert(1)>",
    "&lt;script&gt;",
    "a|b\n# c",
    "\x1b[2Jred\x07",
    "`code`",
    "\u202egnp.x",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_in_their_cells(learned: Path, name: str) -> None:
    info = load(learned).info
    first = info.lineage[0] | {"classes": [name], "data": [name], "method": name}
    info = replace(
        info,
        classes=["background", name, *info.classes[2:]],
        lineage=[first, *info.lineage[1:]],
    )
    _, _, text = model_card(info, NAME, None, {name: 0.5}).split("---\n", 2)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert not any(sign in text for sign in ("](", "<", "\\", f"| {name} |", "&lt;"))
    # Not a row more, nor a cell: pipes and line breaks of names are text.
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {5, 6}
    assert len(rows) == len(info.lineage) + len(info.classes) + 2 * 2


PUSH = """
import sys
import nacre
print(nacre.load(sys.argv[1]).push_to_hub("someone/my-model", private=True))
"""


def _push(model: Path) -> subprocess.CompletedProcess[str]:
    # The hub's client reads its address when it is imported: hence a process of its own.
    environment = os.environ | {"HF_TOKEN": "hf_loopback", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", PUSH, str(model)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_pushed_model_is_loaded_from_the_hub(learned: Path, hub: Hub) -> None:
    done = _push(learned)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.address}/{NAME}/commit/{'0' * 40}"
    assert hub.made == [NAME]
    names = {path.rsplit("/", 1)[1] for path in hub.files}
    assert names == {"model.safetensors", "README.md"}
    image = noise_image((48, 64))
    wanted = load(learned).predict(image).mask
    for address in (f"hf://{NAME}", Path(f"hf://{NAME}")):
        assert np.array_equal(load(address).predict(image).mask, wanted)


@pytest.mark.slow
def test_a_push_that_fails_is_one_sentence(learned: Path, hub: Hub) -> None:
    hub.refuses = True
    done = _push(learned)
    assert f"NacreError: could not push to {NAME}: " in done.stderr
    assert hub.files == {}


def test_what_is_not_on_the_hub_is_told(hub: Hub) -> None:
    with pytest.raises(NacreError, match="404"):
        load("hf://someone/nothing")


@pytest.mark.parametrize("address", ["hf://a", "hf://a/b/c", "hf://../etc", "hf://a/.."])
def test_bad_addresses_are_refused(address: str, hub: Hub) -> None:
    with pytest.raises(NacreError, match="is no repository of the hub"):
        load(address)


def test_a_model_without_a_file_or_a_client_is_told(learned: Path, without_package) -> None:
    model = load(learned)
    with pytest.raises(NacreError, match=r"push nacre\.load\(path\)"):
        replace(model, path=None).push_to_hub(NAME)
    without_package("huggingface_hub")
    with pytest.raises(NacreError, match=r"pip install .*\[hub\]"):
        model.push_to_hub(NAME)
