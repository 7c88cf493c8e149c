"""Others' networks as ONNX files: compared with torch as ours are, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.small_networks import CLASSES
from models.test_odd_networks import Unet
from nacre.errors import NacreError
from nacre.export.onnx_file import export_onnx
from nacre.models.adapter import Adapter
from nacre.models.io import ModelInfo


def about() -> ModelInfo:
    names = ["background", *"abcd"]
    labels: list[int | None] = list(range(CLASSES))
    return ModelInfo(
        names, [(i, i, i) for i in range(CLASSES)], labels, [5], [], {}, 64, "full", {}
    )


def clear(network: nn.Module) -> nn.Module:
    """Return a network whose scores differ from place to place."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
    return network.eval()


@pytest.mark.slow
def test_a_network_of_ones_own_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    done = export_onnx(Adapter(clear(Unet())), about(), tmp_path / "unet.onnx")
    assert done.comparison.agreement > 0.999
    assert any(height % 32 for height, _ in done.comparison.sizes)


class Chooses(nn.Module):
    """Looks at its pixels to decide what to compute, which no graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Conv2d(3, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x if float(x.mean()) > 0.1 else x.flip(-1))


def test_a_network_that_cannot_be_traced_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match="this network cannot be traced for all sizes"):
        export_onnx(Adapter(Chooses()), about(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
