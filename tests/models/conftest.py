"""Fixtures of the tests of networks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from models.file_server import CONTENT, Site, serving


def ask_hub_at(address: str) -> None:
    """Let the hub's client ask at an address; it has read its variables when it was imported."""
    constants.ENDPOINT = address
    constants.HUGGINGFACE_CO_URL_TEMPLATE = (
        f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """A server with a file, and caches of torch and the hub that are empty."""
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE"):
        monkeypatch.setattr(constants, name, getattr(constants, name))  # set back afterwards
    # The client waits longer after each failed attempt.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    huggingface_hub.close_session()
    with serving() as site:
        site.files["/weights.pth"] = CONTENT
        ask_hub_at(site.address)
        yield site


PACKAGES = Path(sys.prefix) / "foreign"
"""Where `make test` puts packages without what they depend on."""

_OPERATORS = (
    "nms qnms roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool "
    "_roi_pool_backward ps_roi_pool _ps_roi_pool_backward qroi_align deform_conv2d "
    "_deform_conv2d_backward"
)


@pytest.fixture(scope="session")
def foreign_libraries() -> None:
    """Let torchvision, timm and smp be imported; skip where they are not installed."""
    if not import_foreign():
        pytest.skip("torchvision, timm and smp are not installed: make test does it")


def import_foreign() -> bool:
    """Let torchvision, timm and smp be imported; return whether they are installed.

    Where torchvision's compiled part does not fit torch, its operators are declared without being
    there: networks for segmentation use none of them.
    """
    if PACKAGES.is_dir() and str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return False
    except RuntimeError:
        _declare_operators()
        importlib.import_module("torchvision")
    return True


_libraries: list[torch.library.Library] = []  # operators last as long as their library


def _declare_operators() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS.split():
        library.define(f"{name}(Tensor x) -> Tensor")
    _libraries.append(library)
