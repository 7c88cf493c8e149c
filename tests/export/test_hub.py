"""Models on the hub: the uploaded files and the model card."""

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nacre.api.model import Model, load
from nacre.errors import NacreError
from nacre.export.hub import model_card, without_paths, write_folder
from nacre.export.onnx_file import noise_image

NAME = "someone/my-model"


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """The files that the hub's client uploads, by repository."""
    api = pytest.importorskip("huggingface_hub").HfApi
    found: dict[str, dict[str, bytes]] = {}

    def create_repo(repo_id: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(repo_id: str, folder_path: Path, **_: Any) -> SimpleNamespace:
        if repo_id == "refused/model":
            raise OSError("403 Forbidden")
        found[repo_id] = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/0")

    for call in (create_repo, upload_folder):
        real = inspect.signature(getattr(api, call.__name__))

        def checked(self: Any, *args: Any, real: Any = real, call: Any = call, **more: Any) -> Any:
            real.bind(self, *args, **more)  # the signature of the installed client
            return call(*args, **more)

        monkeypatch.setattr(api, call.__name__, checked)
    return found


def write(model: Model, folder: Path, license: str | None = None) -> tuple[dict[str, Any], str]:
    """Write the uploaded files; return the front matter and the text of the card."""
    folder.mkdir()
    assert model.path is not None
    write_folder(folder, model.path, model.info, NAME, license)
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), text


def test_the_card_has_the_iou_of_every_class(learned: Path, tmp_path: Path) -> None:
    front, text = write(load(learned), tmp_path / "out", "CC-BY-4.0")
    assert (front["library_name"], front["pipeline_tag"]) == ("nacre", "image-segmentation")
    assert front["license"] == "cc-by-4.0"
    steps = sorted(learned.glob("step-*"))
    ious = json.loads((steps[-1] / "metrics.json").read_text())["iou"]
    for name, value in ious.items():
        assert re.search(rf"\| {name} \| \d \| {100 * value:.1f} \|" if value else name, text)
    assert f'nacre.load("hf://{NAME}")' in text


def test_the_card_of_a_model_file_without_metrics_has_no_ious(
    learned: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((learned / "step-1" / "model.safetensors").read_bytes())
    front, text = write(load(alone), tmp_path / "out")
    assert "license" not in front
    assert re.search(r"\| background \| 0 \| – \|", text)


def test_paths_of_this_machine_are_not_uploaded() -> None:
    given = {"data": {"root": "/home/someone/images"}, "a": ["C:\\data\\x", "voc/15-5"], "n": 1}
    assert without_paths(given) == {"data": {"root": "images"}, "a": ["x", "voc/15-5"], "n": 1}


HOSTILE = (
    "[x](javascript:alert(1))",
    "\\[x\\](javascript:alert(1))",
    "<img src=x onerror=alert(1)>",
    "a|b\n# c",
    "\x1b[2Jred\x07",
    "\u202egnp.x",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_in_their_cells(learned: Path, name: str) -> None:
    info = load(learned).info
    first = info.history[0] | {"classes": [name], "data": [name], "method": name}
    info = replace(
        info,
        classes=["background", name, *info.classes[2:]],
        history=[first, *info.history[1:]],
    )
    _, _, text = model_card(info, NAME, None, {name: 0.5}).split("---\n", 2)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert not any(sign in text for sign in ("](", "<", "\\", f"| {name} |", "&lt;"))
    # Pipes and line breaks of names do not add rows or cells.
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {5, 6}
    assert len(rows) == len(info.history) + len(info.classes) + 2 * 2


def test_a_pushed_model_is_a_model(learned: Path, uploads: Any, tmp_path: Path) -> None:
    assert load(learned).push_to_hub(NAME, private=True) == f"https://hub/{NAME}/commit/0"
    assert set(uploads[NAME]) == {"model.safetensors", "README.md"}
    (tmp_path / "model.safetensors").write_bytes(uploads[NAME]["model.safetensors"])
    image = noise_image((48, 64))
    assert (load(tmp_path).predict(image).mask == load(learned).predict(image).mask).all()
    assert load(tmp_path).info.history == load(learned).info.history


def test_a_failed_push_is_one_sentence(learned: Path, uploads: Any) -> None:
    with pytest.raises(NacreError, match=r"^could not push to refused/model: 403 Forbidden$"):
        load(learned).push_to_hub("refused/model")
    assert uploads == {}


def test_a_push_needs_a_file_and_a_client(learned: Path, without_package) -> None:
    model = load(learned)
    with pytest.raises(NacreError, match="was not loaded from a file"):
        replace(model, path=None).push_to_hub(NAME)
    without_package("huggingface_hub")
    with pytest.raises(NacreError, match=r"pip install .*\[hub\]"):
        model.push_to_hub(NAME)
