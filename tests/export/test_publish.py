"""Published models: the hub's layout, a card with figures, and the way there and back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from export.hub_site import Hub, hub_site
from nacre.api.model import load
from nacre.errors import NacreError
from nacre.export.publish import check_repository, publish, push, without_paths
from nacre.export.verify import noise_picture


@pytest.fixture(scope="module")
def published(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "my-model"
    publish(learned, out, license="CC-BY-4.0", data="own", pictures=2)
    return out


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with hub_site() as site:
        monkeypatch.setenv("HF_ENDPOINT", site.address)
        yield site


def test_the_folder_is_a_model(published: Path, learned: Path) -> None:
    names = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
    assert {path.name for path in published.iterdir()} == names | {"seen.png"}
    picture = noise_picture((64, 96))
    assert (load(published).predict(picture).mask == load(learned).predict(picture).mask).all()
    assert load(published).info.lineage == load(learned).info.lineage


def test_configs_are_what_the_hub_reads(published: Path, learned: Path) -> None:
    config = json.loads((published / "config.json").read_text())
    classes = load(learned).classes
    assert config["num_labels"] == len(classes)
    assert [config["id2label"][str(i)] for i in range(len(classes))] == list(classes)
    assert config["label2id"][classes[1]] == 1
    pixels = json.loads((published / "preprocessor_config.json").read_text())
    assert pixels["image_mean"] == [0.5, 0.5, 0.5]
    assert pixels["image_std"] == [0.25, 0.25, 0.25]
    network = load(learned).network
    value = (200 * pixels["rescale_factor"] - 0.5) / 0.25
    assert abs(200 * float(network.pixel_scale[0]) + float(network.pixel_shift[0]) - value) < 1e-5


def test_the_card_has_the_metrics_of_every_step(published: Path, learned: Path) -> None:
    _, front, text = (published / "README.md").read_text().split("---\n", 2)
    said = yaml.safe_load(front)
    assert (said["library_name"], said["pipeline_tag"]) == ("nacre", "image-segmentation")
    assert said["license"] == "cc-by-4.0"
    for step, result in enumerate(said["model-index"][0]["results"]):
        metrics = json.loads((learned / f"step-{step}" / "metrics.json").read_text())
        told = {one["name"]: one["value"] for one in result["metrics"]}
        wanted = metrics["mean_iou"]["all_without_background"]
        assert told["mean IoU of all classes, without background"] == round(wanted, 5)
        assert f"| {step} | {metrics['images']} | " in text
    assert "unseen = ignored" in text
    assert "![What the model sees](seen.png)" in text
    with Image.open(published / "seen.png") as seen:
        assert min(seen.size) > 200


def test_a_model_file_alone_has_a_card_without_figures(learned: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((learned / "step-1" / "model.safetensors").read_bytes())
    files = publish(alone, tmp_path / "out")
    assert "seen.png" not in {file.name for file in files}
    text = (tmp_path / "out" / "README.md").read_text()
    assert "model-index" not in text
    assert "How it tests" not in text


def test_paths_of_this_machine_stay_here() -> None:
    given = {"data": {"root": "/home/someone/pictures"}, "a": ["C:\\data\\x", "voc/15-5"], "n": 1}
    assert without_paths(given) == {"data": {"root": "pictures"}, "a": ["x", "voc/15-5"], "n": 1}


def test_hostile_names_stay_in_their_cells(learned: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from nacre.export.card import Card, write_card

    info = load(learned).info
    info = replace(info, classes=["background", "a|b<script>\n# c", *info.classes[2:]])
    text = write_card(Card("x", info, {}))
    assert "| 1 | a\\|b&lt;script> # c | 0 |" in text


PUSH = """
import sys
from pathlib import Path
from nacre.export.publish import push
print(push(Path(sys.argv[1]), "someone/my-model"))
"""


def _push(published: Path, hub: Hub) -> subprocess.CompletedProcess[str]:
    # The hub's client reads its address when it is imported: hence a process of its own.
    environment = os.environ | {"HF_TOKEN": "hf_loopback", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", PUSH, str(published)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_pushed_model_is_loaded_from_the_hub(published: Path, hub: Hub) -> None:
    done = _push(published, hub)
    assert done.returncode == 0, done.stderr
    assert hub.made == ["someone/my-model"]
    names = {path.rsplit("/", 1)[1] for path in hub.files}
    assert names == {path.name for path in published.iterdir()}
    picture = noise_picture((48, 64))
    wanted = load(published).predict(picture).mask
    for address in ("hf://someone/my-model", Path("hf://someone/my-model")):
        assert np.array_equal(load(address).predict(picture).mask, wanted)


def test_a_refused_push_is_one_sentence(published: Path, hub: Hub) -> None:
    hub.refuses = True
    done = _push(published, hub)
    assert "NacreError: could not push to someone/my-model: " in done.stderr


def test_what_is_not_on_the_hub_is_told(hub: Hub) -> None:
    with pytest.raises(NacreError, match="404"):
        load("hf://someone/nothing")


@pytest.mark.parametrize("address", ["hf://a", "hf://a/b/c", "hf://../etc", "hf://a/.."])
def test_bad_addresses_are_refused(address: str, hub: Hub) -> None:
    with pytest.raises(NacreError, match="is no repository of the hub"):
        load(address)


def test_bad_repositories_are_refused_before_anything_is_written(
    published: Path, without_package
) -> None:
    with pytest.raises(NacreError, match="give organisation/name"):
        check_repository("my-model")
    without_package("huggingface_hub")
    with pytest.raises(NacreError, match=r"pip install .*\[hub\]"):
        push(published, "a/b")
