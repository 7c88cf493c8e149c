"""`nacre export`: from a model to an ONNX file that has been compared with it.

trace -> compare with torch -> (8 bits) -> metadata -> measure -> keep
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn

from nacre.errors import NacreError
from nacre.export.graph import PictureToClasses, to_onnx
from nacre.export.labeled import (
    Classify,
    LabeledPictures,
    Pixels,
    mean_iou,
    measure_iou,
    open_labeled,
)
from nacre.export.metadata import describe, write_metadata
from nacre.export.quantize import quantize
from nacre.export.runtime import open_session
from nacre.export.verify import Comparison, compare, noise_picture, sizes_to_compare, torch_scores
from nacre.models.io import ModelInfo
from nacre.utils.io import save

if TYPE_CHECKING:
    from onnx import ModelProto

Form = Literal["fp32", "fp16", "int8-dynamic", "int8-calibrated"]

LEAST_AGREEMENT = 0.8
"""Share of pixels below which 8 bits have ruined a network; then the file is not kept."""

CALIBRATED_WITH = 64
"""How many pictures the ranges of activations are taken from at most."""


@dataclass(frozen=True)
class Exported:
    """An ONNX file and what is known of it.

    Attributes:
        path: The file.
        form: Its numbers.
        size: Bytes.
        comparison: With torch, of the graph before it went to 8 bits.
        agreement: Share of pixels whose class is torch's, in the file's own form.
        pictures: How many test pictures there were.
        iou: Mean IoU of torch and of the file on them; None where there were none.
    """

    path: Path
    form: Form
    size: int
    comparison: Comparison
    agreement: float
    pictures: int
    iou: tuple[float | None, float | None] | None


def export_onnx(
    network: nn.Module,
    info: ModelInfo,
    out: Path,
    *,
    form: Form = "fp32",
    data: str | None = None,
    limit: int = 200,
    license: str | None = None,
) -> Exported:
    """Write a model as an ONNX file if it does what the model does.

    Args:
        network: The network, in eval mode.
        info: What its file says about it.
        out: The ONNX file.
        form: Its numbers.
        data: Test pictures to calibrate with and to measure the IoU on; see `open_labeled`.
        limit: How many test pictures at most.
        license: Of the weights, for the metadata.

    Raises:
        NacreError: the graph differs from torch; nothing is written then.
    """
    if len(info.classes) > 256:
        raise NacreError(f"{len(info.classes)} classes do not fit into a class map of 8 bits")
    labeled = open_labeled(data, info, limit) if data is not None else None
    graph, comparison = _trace(network, info, "fp16" if form == "fp16" else "fp32")
    if form.startswith("int8"):
        graph = quantize(graph, _shown(labeled) if form == "int8-calibrated" else None)
    del graph.graph.output[1]
    write_metadata(graph, describe(info, form, license))
    content = graph.SerializeToString()
    agreement, iou = _measure(network, info, content, labeled)
    _check_agreement(agreement, form)
    save(out, lambda file: file.write_bytes(content))
    count = labeled.count if labeled else 0
    return Exported(out, form, len(content), comparison, agreement, count, iou)


def _check_agreement(agreement: float, form: Form) -> None:
    if agreement < LEAST_AGREEMENT:
        raise NacreError(
            f"{form} changes the class of {1 - agreement:.1%} of the pixels; the file is not kept"
            + ("" if form == "int8-calibrated" else "; int8-calibrated may lose less")
        )


def _shown(labeled: LabeledPictures | None) -> Iterator[Pixels]:
    if labeled is None:
        raise NacreError("8 bits are calibrated on pictures: give data, or take int8-dynamic")
    return labeled.pictures(CALIBRATED_WITH)


def _trace(network: nn.Module, info: ModelInfo, form: str) -> tuple["ModelProto", Comparison]:
    dtype = torch.float16 if form == "fp16" else torch.float32
    graph = to_onnx(PictureToClasses(network, dtype))
    session = open_session(graph.SerializeToString())
    sizes = sizes_to_compare(info.crop)
    return graph, compare(network, session, sizes, list(info.classes), form)


def _measure(
    network: nn.Module, info: ModelInfo, content: bytes, labeled: LabeledPictures | None
) -> tuple[float, tuple[float | None, float | None] | None]:
    """Return how far the finished file agrees with torch, and the mean IoU of both."""
    session = open_session(content)

    def exported(picture: Pixels) -> Pixels:
        found: Pixels = session.run(["classes"], {"picture": picture[None]})[0][0]
        return found

    def original(picture: Pixels) -> Pixels:
        return torch_scores(network, picture).argmax(0).astype(np.uint8)

    if labeled is None:
        shown = [noise_picture(size, i) for i, size in enumerate(sizes_to_compare(info.crop))]
        return _agreement(shown, exported, original), None
    shown = list(labeled.pictures(8))
    channels = len(info.classes)
    before = mean_iou(measure_iou(labeled, original, channels, "testing in torch"))
    after = mean_iou(measure_iou(labeled, exported, channels, "testing the file"))
    return _agreement(shown, exported, original), (before, after)


def _agreement(
    pictures: list[Pixels],
    exported: Classify,
    original: Classify,
) -> float:
    same = sum(int((exported(picture) == original(picture)).sum()) for picture in pictures)
    return same / sum(picture.shape[0] * picture.shape[1] for picture in pictures)
