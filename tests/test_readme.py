"""What the README and the docs show is what happens."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]


def blocks(path: str, language: str) -> list[str]:
    text = (ROOT / path).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_python_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(1).integers(0, 255, (48, 80, 3), np.uint8)
    Image.fromarray(noise).save("picture.png")
    _, code = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 11
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert Image.open("seen.png").size == (80, 48)
    assert names["seen"].mask.shape == (48, 80)
    assert set(np.unique(names["seen"].names)) == set(names["seen"].shares())
    assert "{" in capsys.readouterr().out


def test_ten_lines_of_the_readme_learn_the_next_class(tmp_path, monkeypatch, capsys):
    from nacre.data.sources.scenes_render import ScenesConfig
    from nacre.runs import learn_plan
    from nacre.training.automatic import Choice
    from partial_data import write_folder

    # What fits the machine is chosen for real pictures; here everything is tiny.
    tiny = {
        "model": {"backbone": "tiny", "decoder_channels": 8, "atrous_rates": [1, 2, 3]},
        "images": {"crop_size": 32, "augmentation": "flip"},
        "train": {"iterations": 2, "batch_size": 4},
    }
    monkeypatch.setattr(learn_plan, "choose", lambda *_, **__: Choice(tiny, ()))
    monkeypatch.chdir(tmp_path)
    world = ScenesConfig(train=12, val=6, size=32, seed=3)
    called = {"pearl": "cat", "starfish": "dog", "crate": "bird"}
    for name, drawn in (("pets", ["pearl", "starfish"]), ("birds", ["crate"])):
        classes = write_folder(tmp_path / name, drawn, world=world) / "classes.yaml"
        text = classes.read_text()
        for one in drawn:
            text = text.replace(one, called[one])
        classes.write_text(text)
    Image.fromarray(np.zeros((40, 64, 3), np.uint8)).save("picture.png")
    code, _ = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["both"].classes == ("background", "cat", "dog", "bird")
    assert Image.open("seen.png").size == (64, 40)
    shown = capsys.readouterr().out
    assert "('background', 'cat', 'dog', 'bird')" in shown
    assert re.search(r"\['bird'\] from \d+ pictures of \['birds'\]", shown)


def test_the_example_method_of_the_docs_is_a_method():
    import torch

    from nacre.methods.base import Batch
    from nacre.models.network import Output

    (code,) = blocks("docs/methods.md", "python")
    names: dict = {"__name__": "example"}
    exec(compile(code, "docs/methods.md", "exec"), names)
    method = names["Features"](names["FeaturesConfig"](), num_old=2)
    batch = Batch(torch.zeros(1, 3, 8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8))
    student = Output(torch.zeros(1, 3, 2, 2), torch.ones(1, 4, 2, 2), torch.ones(1, 4, 2, 2))
    teacher = Output(torch.zeros(1, 2, 2, 2), torch.zeros(1, 4, 2, 2), torch.ones(1, 4, 2, 2))
    losses = method.losses(batch, student, teacher)
    assert float(losses["features"]) == 1.0
    assert float(losses["ce"]) == pytest.approx(np.log(3), abs=1e-5)
