"""A tiny trained model and its ONNX file, shared by the tests of exports."""

import copy
import sys
from pathlib import Path

import pytest
from onnx import ModelProto

from nacre.evaluation.predictor import model_predictor
from nacre.export import onnx_file
from nacre.export.graph import ImageToClasses, to_onnx
from nacre.models.io import ModelInfo, find_model, load_model
from nacre.models.network import Network


@pytest.fixture(scope="session")
def model(learned: Path) -> tuple[Network, ModelInfo]:
    network, info, _ = load_model(find_model(learned))
    return network, info


@pytest.fixture(scope="session")
def traced(model: tuple[Network, ModelInfo]) -> ModelProto:
    """The graph of the model with its scores. Tracing takes most of the time of an export."""
    return to_onnx(ImageToClasses(model_predictor(*model)))


@pytest.fixture
def trace_once(traced: ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let exports in float32 reuse one graph."""
    monkeypatch.setattr(onnx_file, "to_onnx", lambda module: copy.deepcopy(traced))


@pytest.fixture(scope="session")
def exported(
    model: tuple[Network, ModelInfo],
    traced: ModelProto,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("onnx") / "model.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_file, "to_onnx", lambda module: copy.deepcopy(traced))
        onnx_file.export_onnx(*model, out)
    return out


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch):
    """Make a package seem not to be installed."""

    def hide(name: str) -> None:
        monkeypatch.setitem(sys.modules, name, None)

    return hide
