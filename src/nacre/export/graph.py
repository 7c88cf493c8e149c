"""A network as one ONNX graph with everything inside: uint8 picture in, uint8 class map out.

    picture 1,H,W,3 -> pad to multiples of 32 -> normalise -> network -> upsample -> cut -> argmax

H and W are free. Only sides that 32 divides are seen as the network sees them in torch; others are
continued at the right and the lower edge by their last pixels, and the answer is cut again.
"""

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.losses.reference import upsample
from nacre.models.deeplab import DeepLab
from nacre.models.foreign.adapter import Adapter
from nacre.models.fuse_bn import fuse_conv_bn
from nacre.models.head import WindowPool
from nacre.models.lite import SameConv2d
from nacre.utils.packages import need

if TYPE_CHECKING:
    from onnx import ModelProto

ALIGNMENT = 32
"""What sides are padded to multiples of: the largest stride of a backbone."""

OPSET = 20
_TRACED = (3 * ALIGNMENT + 1, 4 * ALIGNMENT + 2)


class PictureToClasses(nn.Module):
    """From a picture to its class map and scores, in operations that hold for all sizes.

    Args:
        network: what is exported; it is copied.
        dtype: of its weights and activations.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        inner = fuse_conv_bn(network) if isinstance(network, DeepLab) else copy.deepcopy(network)
        for module in inner.modules():
            if isinstance(module, SameConv2d):
                module.aligned = True
            elif isinstance(module, WindowPool):
                module.any_size = True
            elif isinstance(module, Adapter):
                _leave_padding(module)
        self.network = inner.eval().requires_grad_(False).cpu().to(dtype)

    def forward(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        """Return classes 1,H,W and scores 1,C,H,W of a uint8 picture 1,H,W,3."""
        height, width = picture.shape[1], picture.shape[2]
        rows, columns = _padded_places(height), _padded_places(width)
        image = picture[:, rows][:, :, columns].permute(0, 3, 1, 2)
        low = self.network(image).scores
        scores = upsample(low, (image.shape[2], image.shape[3]))[:, :, :height, :width]
        return scores.argmax(1).to(torch.uint8), scores


def _leave_padding(network: Adapter) -> None:
    """Let a foreign network take pictures as they come: they are padded in the graph already.

    Raises:
        NacreError: padded to sides that it does not take.
    """
    if ALIGNMENT % network.divisor:
        raise NacreError(
            f"{type(network.model).__name__} takes sides in multiples of {network.divisor}, and "
            f"an exported graph has multiples of {ALIGNMENT}: it cannot be exported"
        )
    network.divisor = 1


def _padded_places(side: int) -> Tensor:
    """Return the places of the pixels along a padded side: the last one is repeated."""
    padded = (side + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return torch.arange(padded).clamp(max=side - 1)


def to_onnx(module: PictureToClasses) -> "ModelProto":
    """Return the graph for pictures of any size, with the outputs ``classes`` and ``scores``.

    Raises:
        NacreError: the network does something that cannot be traced for all sizes.
    """
    need("onnx")
    need("onnxscript")
    picture = torch.zeros(1, *_TRACED, 3, dtype=torch.uint8)
    free = torch.export.Dim.DYNAMIC
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                module,
                (picture,),
                input_names=["picture"],
                output_names=["classes", "scores"],
                dynamic_shapes=({1: free, 2: free},),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch raises many kinds
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise NacreError(f"this network cannot be traced for all sizes: {reason}") from error
    assert program is not None
    graph: ModelProto = program.model_proto
    _name_sides(graph)
    return graph


def _name_sides(graph: "ModelProto") -> None:
    """Call the free sides by their names, where torch writes symbols and formulas."""
    picture, (classes, scores) = graph.graph.input[0], graph.graph.output
    for value, rows in ((picture, 1), (classes, 1), (scores, 2)):
        sides = value.type.tensor_type.shape.dim
        sides[rows].dim_param, sides[rows + 1].dim_param = "height", "width"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the exporter says of packages that it does not need and of its own ways."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
