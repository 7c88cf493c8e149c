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
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 11
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert Image.open("seen.png").size == (80, 48)
    assert names["seen"].mask.shape == (48, 80)
    assert set(np.unique(names["seen"].names)) == set(names["seen"].shares())
    assert "{" in capsys.readouterr().out


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
