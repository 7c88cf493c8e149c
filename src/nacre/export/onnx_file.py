"""`nacre export`: from a model to an ONNX file that has been compared with it.

trace -> compare with torch -> metadata -> measure -> keep
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn

from nacre.errors import NacreError
from nacre.export.graph import PictureToClasses, to_onnx
from nacre.export.labeled import LabeledPictures, Pixels, mean_iou, measure_iou, open_labeled
from nacre.export.metadata import MOST_CLASSES, describe, write_metadata
from nacre.export.runtime import open_session
from nacre.export.verify import Comparison, compare, sizes_to_compare, torch_scores
from nacre.models.io import ModelInfo
from nacre.utils.io import remove_temporaries, save

if TYPE_CHECKING:
    from onnx import ModelProto

Form = Literal["fp32", "fp16"]

TESTED = 200
"""How many test images the IoU is measured on at most."""


@dataclass(frozen=True)
class Exported:
    """An ONNX file and what is known of it.

    Attributes:
        path: The file.
        form: Its numbers.
        size: Bytes.
        comparison: With torch.
        pictures: How many test pictures there were.
        iou: Mean IoU of torch and of the file on them; None where there were none.
    """

    path: Path
    form: Form
    size: int
    comparison: Comparison
    pictures: int
    iou: tuple[float | None, float | None] | None


def export_onnx(
    network: nn.Module,
    info: ModelInfo,
    out: Path,
    *,
    form: Form = "fp32",
    data: str | None = None,
    license: str | None = None,
) -> Exported:
    """Write a model as an ONNX file if it does what the model does.

    Args:
        network: The network, in eval mode.
        info: What its file says about it.
        out: The ONNX file.
        form: Its numbers.
        data: Test pictures to measure the IoU on; see `open_labeled`.
        license: Of the weights, for the metadata.

    Raises:
        NacreError: the graph differs from torch; nothing is written then.
    """
    if len(info.classes) > MOST_CLASSES:
        raise NacreError(f"{len(info.classes)} classes do not fit into a class map of 8 bits")
    remove_temporaries(out.parent, [out.name])
    labeled = open_labeled(data, info, TESTED) if data is not None else None
    graph, comparison = _trace(network, info, form)
    del graph.graph.output[1]
    write_metadata(graph, describe(info, form, license))
    content = graph.SerializeToString()
    iou = _measure_ious(network, content, len(info.classes), labeled) if labeled else None
    save(out, lambda file: file.write_bytes(content))
    return Exported(out, form, len(content), comparison, labeled.count if labeled else 0, iou)


def _trace(network: nn.Module, info: ModelInfo, form: Form) -> tuple["ModelProto", Comparison]:
    dtype = torch.float16 if form == "fp16" else torch.float32
    graph = to_onnx(PictureToClasses(network, dtype))
    session = open_session(graph.SerializeToString())
    sizes = sizes_to_compare(info.crop)
    return graph, compare(network, session, sizes, list(info.classes), form)


def _measure_ious(
    network: nn.Module, content: bytes, channels: int, labeled: LabeledPictures
) -> tuple[float | None, float | None]:
    """Return the mean IoU of torch and of the finished file."""
    session = open_session(content)

    def exported(picture: Pixels) -> Pixels:
        found: Pixels = session.run(["classes"], {"picture": picture[None]})[0][0]
        return found

    def original(picture: Pixels) -> Pixels:
        return torch_scores(network, picture).argmax(0).astype(np.uint8)

    before = mean_iou(measure_iou(labeled, original, channels, "testing in torch"))
    after = mean_iou(measure_iou(labeled, exported, channels, "testing the file"))
    return before, after
