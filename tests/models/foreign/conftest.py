"""Libraries that need torchvision, which does not fit every build of torch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

PACKAGES = Path(sys.prefix) / "foreign"
"""Where `make test` puts packages without what they depend on."""

_OPERATORS = (
    "nms qnms roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool "
    "_roi_pool_backward ps_roi_pool _ps_roi_pool_backward qroi_align deform_conv2d "
    "_deform_conv2d_backward"
)


@pytest.fixture(scope="session")
def foreign_libraries() -> None:
    """Let torchvision, timm and smp be imported; skip where they are not installed.

    Where torchvision's compiled part does not fit torch, its operators are declared without being
    there: networks for segmentation use none of them.
    """
    if PACKAGES.is_dir() and str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        pytest.skip("torchvision, timm and smp are not installed: make test does it")
    except RuntimeError:
        _declare_operators()
        importlib.import_module("torchvision")


_libraries: list[torch.library.Library] = []  # operators last as long as their library


def _declare_operators() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS.split():
        library.define(f"{name}(Tensor x) -> Tensor")
    _libraries.append(library)
