"""Weights and activations in 8 bits, by onnxruntime's own tools.

Dynamic: weights in 8 bits, activations scaled by what each picture brings. Calibrated: both in 8
bits, the range of each activation taken from pictures that were shown before. The layers from the
scores on (upsampling, argmax) stay as they are.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nacre.utils.packages import need

if TYPE_CHECKING:
    from onnx import ModelProto

Pixels = npt.NDArray[np.uint8]


def quantize(graph: "ModelProto", calibration: Iterable[Pixels] | None) -> "ModelProto":
    """Return a graph in 8 bits.

    Args:
        graph: In float32.
        calibration: Pictures to take the ranges of activations from; None measures them anew in
            each picture.
    """
    tools = need("onnxruntime.quantization")
    onnx = need("onnx")
    with tempfile.TemporaryDirectory() as folder, _quiet():
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save_model(graph, str(before))
        if calibration is None:
            tools.quantize_dynamic(before, after, weight_type=tools.QuantType.QUInt8)
        else:
            tools.quantize_static(
                before,
                after,
                _Reader(calibration),
                op_types_to_quantize=["Conv"],
                per_channel=True,
                activation_type=tools.QuantType.QUInt8,
                weight_type=tools.QuantType.QInt8,
            )
        quantized: ModelProto = onnx.load(str(after))
    return quantized


class _Reader:
    """Hands pictures to onnxruntime's calibration one at a time."""

    def __init__(self, pictures: Iterable[Pixels]) -> None:
        self.pictures = iter(pictures)

    def get_next(self) -> dict[str, Any] | None:
        picture = next(self.pictures, None)
        return None if picture is None else {"picture": picture[None]}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
