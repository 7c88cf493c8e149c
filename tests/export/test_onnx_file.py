"""ONNX files: equal to torch at any size, or not written."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from torch import Tensor, nn

from nacre.api.model import Model
from nacre.errors import NacreError
from nacre.export import NamedModel, export_models, onnx_file
from nacre.export.graph import to_onnx
from nacre.export.onnx_file import OnnxModel, export_onnx, noise_image, open_session
from nacre.export.page import WebRuntime
from nacre.models.adapter import Adapter


@pytest.mark.parametrize("size", [(32, 32), (160, 224), (1, 1), (33, 31), (97, 5), (101, 203)])
def test_the_classes_are_those_of_predict(model, exported: Path, size) -> None:
    image = noise_image(size, seed=5)
    classes = OnnxModel(exported).classify(image)
    assert classes.dtype == np.uint8
    assert classes.shape == size
    assert (classes == Model(*model).predict(image).mask).mean() > 0.999


def test_a_file_describes_itself(model, exported: Path) -> None:
    _, info = model
    metadata = OnnxModel(exported).metadata
    assert metadata.classes == info.classes
    assert [tuple(color) for color in metadata.colors] == [tuple(color) for color in info.colors]
    assert metadata.history == info.history
    graph = onnx.load(str(exported))
    onnx.checker.check_model(graph)
    names = {entry.key: entry.value for entry in graph.metadata_props}["names"]
    assert json.loads(names)["0"] == "background"
    assert [output.name for output in graph.graph.output] == ["classes"]
    sides = graph.graph.input[0].type.tensor_type.shape.dim
    assert [side.dim_param for side in sides] == ["", "height", "width", ""]


def test_an_export_reports_its_comparison_with_torch(
    model, exported: Path, tmp_path: Path, trace_once
) -> None:
    comparison = export_onnx(*model, tmp_path / "model.onnx")
    assert "at 6 sizes: 100.000% of the pixels are the same" in comparison
    found = re.search(r"at most (\S+) of their range", comparison)
    assert found
    assert float(found[1]) < 1e-4
    assert len(np.unique(OnnxModel(exported).classify(noise_image((160, 224))))) > 1


class _Tampered:
    """A session whose result is wrong at one pixel of one size."""

    def __init__(self, session, size, change) -> None:
        self.session, self.size, self.change = session, size, change

    def run(self, names, inputs):
        found = self.session.run(names, inputs)
        if inputs["image"].shape[1:3] == self.size:
            self.change(*found)
        return found


def _other_class(classes, scores) -> None:
    classes[0, 7, 9] = scores[0, :, 7, 9].argmin()


def _other_score(classes, scores) -> None:
    scores[0, 0, 7, 9] += 0.5 * np.ptp(scores)


def _not_a_number(classes, scores) -> None:
    scores[0, 0, 7, 9] = np.nan


@pytest.mark.parametrize("change", [_other_class, _other_score, _not_a_number])
def test_a_graph_that_differs_at_one_odd_size_is_not_kept(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace_once, change
) -> None:
    opened = onnx_file.open_session

    monkeypatch.setattr(
        onnx_file, "open_session", lambda graph: _Tampered(opened(graph), (97, 129), change)
    )
    with pytest.raises(NacreError, match=r"97 x 129 .* row 7, column 9: .* not kept"):
        export_onnx(*model, tmp_path / "wrong.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_half_the_bits_make_a_smaller_file(model, exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.onnx"
    export_onnx(*model, out, "fp16")
    assert out.stat().st_size < 0.75 * exported.stat().st_size
    image = noise_image((45, 70))
    same = OnnxModel(out).classify(image) == OnnxModel(exported).classify(image)
    assert same.mean() > 0.9


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_one_sentence(without_package, package) -> None:
    without_package(package)
    needed_by = open_session if package == "onnxruntime" else to_onnx
    with pytest.raises(NacreError, match=rf"{package}, .*pip install .*\[export\]"):
        needed_by(b"")


MANY = ["background", *map(str, range(299))]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"classes": ["background", "cat"]}, "it has 2 classes and 9 colors"),
        ({"classes": ["background"] * 9}, "two of its channels are the class 'background'"),
        ({"classes": list("abcdefghi")}, "its first channel is 'a', not 'background'"),
        ({"predict_mode": "upside down"}, "predict_mode: input should be 'crop', 'full'"),
        ({"classes": MANY[:2], "colors": [[0, 0, 0]] * 2}, "has 2 classes in its metadata, but"),
        ({"classes": MANY, "colors": [[0, 0, 0]] * 300}, "list should have at most 256 items"),
    ],
)
def test_metadata_that_contradict_the_graph_are_refused(exported, tmp_path, changes, error) -> None:
    graph = onnx.load(str(exported))
    entry = next(entry for entry in graph.metadata_props if entry.key == "nacre")
    entry.value = json.dumps({**json.loads(entry.value), **changes})
    onnx.save(graph, str(tmp_path / "changed.onnx"))
    with pytest.raises(NacreError, match=re.escape(error)):
        OnnxModel(tmp_path / "changed.onnx")


def test_a_graph_that_does_not_take_images_is_refused(exported, tmp_path) -> None:
    graph = onnx.load(str(exported))
    graph.graph.input[0].name = "other"
    for node in graph.graph.node:
        node.input[:] = ["other" if name == "image" else name for name in node.input]
    onnx.save(graph, str(tmp_path / "other.onnx"))
    with pytest.raises(NacreError, match=r"other\.onnx does not take images"):
        OnnxModel(tmp_path / "other.onnx")


def test_the_ending_of_a_file_chooses_its_format(
    model, exported: Path, tmp_path: Path, trace_once, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = WebRuntime(b"script", b"glue", b"wasm")
    monkeypatch.setattr("nacre.export.page.web_runtime", lambda: runtime)
    named = NamedModel("mine", *model)
    for name, sentence in (
        ("m.onnx", f"m.onnx ({exported.stat().st_size / 1e6:.1f} MB, fp32); compared"),
        ("m.html", "MB, fp32); mine compared with torch at 6 sizes"),
    ):
        assert sentence in export_models([named], tmp_path / name)
    assert 'id="model-0"' in (tmp_path / "m.html").read_text()
    with pytest.raises(NacreError, match="contains one model: give one, or --page"):
        export_models([named, named], tmp_path / "two.onnx")
    with pytest.raises(NacreError, match=r"unknown ending .*m\.pt.* known: html, onnx"):
        export_models([named], tmp_path / "m.pt")


class Chooses(nn.Module):
    """A network whose layers depend on the pixels, which a graph cannot express."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Conv2d(3, 9, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x if float(x.mean()) > 0.1 else x.flip(-1))


def test_a_network_that_cannot_be_traced_leaves_no_file(model, tmp_path: Path) -> None:
    with pytest.raises(NacreError, match="this network cannot be traced for all sizes"):
        export_onnx(Adapter(Chooses()), model[1], tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
