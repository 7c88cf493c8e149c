"""A network as one ONNX graph, from a uint8 image of any size to its class map.

    image 1,H,W,3 -> scaled -> windows -> padded -> network -> cut back and upsampled -> argmax

The graph computes the same as `nacre.evaluation.predictor`, in operations that work for all sizes.
An antialiased resize and an upsampling are two products with matrices that are computed from the
sizes. Windows are gathered into one batch, and their probabilities are added up again. If the model
uses them, the graph contains the mirror image and the upsampling along the edges of the image.
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
from nacre.evaluation.predictor import (
    Predictor,
    input_size,
    padded_places,
    resize_weights,
    smaller,
    window_starts,
)
from nacre.evaluation.upsampling import cells_around, upsample_along_edges
from nacre.models.adapter import Adapter
from nacre.models.decoders import WindowPool
from nacre.models.lite import SameConv2d
from nacre.utils.system import import_extra

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 20


class ImageToClasses(nn.Module):
    """A predictor as a module that can be traced for all sizes of images.

    Args:
        predictor: The predictor; its network is copied.
        dtype: Type of the weights and activations.
    """

    def __init__(self, predictor: Predictor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        inner = copy.deepcopy(predictor.network).eval()
        self.alignment = inner.alignment
        for module in inner.modules():
            if isinstance(module, SameConv2d):
                module.aligned = True
            elif isinstance(module, WindowPool):
                module.any_size = True
            elif isinstance(module, Adapter):
                module.divisor = 1  # this module pads images itself
        self.network = inner.requires_grad_(False).cpu().to(dtype)
        self.mode, self.crop, self.dtype = predictor.mode, predictor.crop, dtype
        self.mirror, self.edges = predictor.mirror, predictor.edges
        self.eval()

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return classes 1,H,W and scores 1,C,H,W of a uint8 image 1,H,W,3."""
        height, width = image.shape[1], image.shape[2]
        image = guide = image[0].permute(2, 0, 1).float()
        if self.mode == "crop":
            seen = input_size((height, width), self.mode, self.crop)
            rows, columns = resize_weights(height, seen[0]), resize_weights(width, seen[1])
            image = rows @ image @ columns.T
        score = self._score_windows if self.mode == "sliding" else self._score_whole
        scores = score(image, guide)
        return scores.argmax(1).to(torch.uint8), scores

    def _score_whole(self, image: Tensor, guide: Tensor) -> Tensor:
        """Return the scores of a scaled image 3,h,w at the size of the image itself, 3,H,W."""
        rows, columns = (padded_places(side, self.alignment) for side in image.shape[1:])
        padded = image[:, rows][:, :, columns][None]
        return self._upsampled(padded, (image.shape[1], image.shape[2]), guide[None])

    def _score_windows(self, image: Tensor, guide: Tensor) -> Tensor:
        """Return the sum of the probabilities of an image over windows of the crop's size."""
        size = (image.shape[1], image.shape[2])
        sides = [smaller(side, self.crop) for side in size]
        starts = [window_starts(side, self.crop)[:, None] for side in size]
        padded = [padded_places(side, self.alignment) for side in sides]
        # `len` would be a constant of this trace, not a symbol.
        high, wide = (places.shape[0] for places in padded)
        down, across = (first.shape[0] for first in starts)
        rows, columns = (a + b for a, b in zip(starts, padded, strict=True))
        windows = image[:, rows.flatten()][:, :, columns.flatten()]
        windows = windows.reshape(3, down, high, across, wide).permute(1, 3, 0, 2, 4)
        windows = windows.reshape(down * across, 3, high, wide)
        inner = (sides[0], sides[1])
        scores = self._upsampled(windows, inner, windows[:, :, : sides[0], : sides[1]])
        scores = scores.softmax(1).reshape(down, across, -1, *sides).permute(2, 0, 3, 1, 4)
        scores = scores.reshape(-1, down * sides[0], across * sides[1])
        # Products instead of a scatter: onnxruntime's threads lose sums where windows overlap.
        down_to, across_to = (
            (torch.arange(side)[:, None] == (start + torch.arange(window)).flatten()).float()
            for side, start, window in zip(size, starts, sides, strict=True)
        )
        scores = down_to @ scores @ across_to.T
        return scores[None]

    def _upsampled(self, images: Tensor, inner: tuple[int, int], guide: Tensor) -> Tensor:
        """Return the scores of padded images with the given inner size, at the size of a guide."""
        scores = self._score(images)
        if self.mirror:
            scores = (scores + self._score(images.flip(-1)).flip(-1)) / 2
        scales = [
            _cells_per_pixel(scores.shape[i], guide.shape[i], inner[i - 2], images.shape[i])
            for i in (2, 3)
        ]
        if self.edges:
            return _upsample_along_edges(scores, images, guide, scales)
        rows, columns = (
            _upsample_weights(scores.shape[i], guide.shape[i], scales[i - 2]) for i in (2, 3)
        )
        return rows @ scores @ columns.T

    def _score(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(images.to(self.dtype)).scores
        return scores.float()


def _cells_per_pixel(cells: int, pixels: int, inner: int, padded: int) -> Tensor:
    """Return the width of an output pixel in cells, which together cover the padded pixels.

    Sizes are computed from the places, so that they are part of the graph.
    """
    # Exporters round sums of whole numbers.
    last, last_pixel = (torch.arange(side, dtype=torch.float32).max() for side in (cells, pixels))
    return (last + 1) * inner / padded / (last_pixel + 1)


def _upsample_weights(inputs: int, outputs: int, scale: Tensor) -> Tensor:
    """Return the matrix, outputs x inputs, of linear interpolation."""
    cells, places = (torch.arange(side, dtype=torch.float32) for side in (inputs, outputs))
    position = ((places + 0.5) * scale - 0.5).clamp(min=0).minimum(cells.max())
    return (1 - (position[:, None] - cells).abs()).clamp(min=0)


def _upsample_along_edges(
    scores: Tensor, images: Tensor, guide: Tensor, scales: list[Tensor]
) -> Tensor:
    """Return scores at the size of a guide, along its edges (`nacre.evaluation.upsampling`)."""
    down, across = (_cell_means(images.shape[i], scores.shape[i]) for i in (2, 3))
    colors = down @ images @ across.T / 255
    cells, nearness = zip(
        *(cells_around(scores.shape[i], guide.shape[i], scales[i - 2]) for i in (2, 3)),
        strict=True,
    )
    return upsample_along_edges(scores, colors, guide / 255, cells, nearness)


def _cell_means(pixels: int, cells: int) -> Tensor:
    """Return the matrix, cells x pixels, of means over cells of equal width."""
    places, first = (torch.arange(side, dtype=torch.float32) for side in (pixels, cells))
    width = (places.max() + 1) / (first.max() + 1)
    inside = ((places + 0.5) / width).floor() == first[:, None]
    return inside.float() / width


def to_onnx(module: ImageToClasses) -> "ModelProto":
    """Return the graph for images of any size, with the outputs ``classes`` and ``scores``.

    Raises:
        NacreError: the network cannot be traced for all sizes.
    """
    import_extra("onnx")
    import_extra("onnxscript")
    side = 2 * max(module.crop, module.alignment)
    image = torch.zeros(1, side + 1, side + module.alignment + 2, 3, dtype=torch.uint8)
    free = torch.export.Dim.DYNAMIC
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                module,
                (image,),
                input_names=["image"],
                output_names=["classes", "scores"],
                dynamic_shapes=({1: free, 2: free},),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch raises many types
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise NacreError(f"this network cannot be traced for all sizes: {reason}") from error
    assert program is not None
    graph: ModelProto = program.model_proto
    # The free sides get names; torch writes symbols and formulas.
    image, (classes, scores) = graph.graph.input[0], graph.graph.output
    for value, rows in ((image, 1), (classes, 1), (scores, 2)):
        sides = value.type.tensor_type.shape.dim
        sides[rows].dim_param, sides[rows + 1].dim_param = "height", "width"
    return graph


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about itself and about optional packages."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
