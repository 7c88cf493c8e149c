"""`nacre export`: from a model to an ONNX file that has been compared with it.

trace -> compare with torch -> metadata -> keep
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor
from nacre.export.graph import ImageToClasses, to_onnx
from nacre.export.metadata import MOST_CLASSES, describe, write_metadata
from nacre.export.runtime import open_session
from nacre.export.verify import Comparison, compare, sizes_to_compare
from nacre.models.io import ModelInfo
from nacre.models.network import Network
from nacre.utils.io import remove_temporaries, save

if TYPE_CHECKING:
    from onnx import ModelProto

Form = Literal["fp32", "fp16"]


@dataclass(frozen=True)
class Exported:
    """An ONNX file and what is known of it.

    Attributes:
        path: The file.
        form: Its numbers.
        size: Bytes.
        comparison: With torch.
    """

    path: Path
    form: Form
    size: int
    comparison: Comparison


def export_onnx(
    network: Network,
    info: ModelInfo,
    out: Path,
    *,
    form: Form = "fp32",
    license: str | None = None,
) -> Exported:
    """Write a model as an ONNX file if it does what the model does.

    Args:
        network: The network, in eval mode.
        info: What its file says about it.
        out: The ONNX file.
        form: Its numbers.
        license: Of the weights, for the metadata.

    Raises:
        NacreError: the graph differs from torch; nothing is written then.
    """
    if len(info.classes) > MOST_CLASSES:
        raise NacreError(f"{len(info.classes)} classes do not fit into a class map of 8 bits")
    remove_temporaries(out.parent, [out.name])
    graph, comparison = _trace(network, info, form)
    del graph.graph.output[1]
    write_metadata(graph, describe(info, form, license))
    content = graph.SerializeToString()
    save(out, lambda file: file.write_bytes(content))
    return Exported(out, form, len(content), comparison)


def _trace(network: Network, info: ModelInfo, form: Form) -> tuple["ModelProto", Comparison]:
    dtype = torch.float16 if form == "fp16" else torch.float32
    graph = to_onnx(ImageToClasses(network, info.predict_mode, info.crop, dtype))
    session = open_session(graph.SerializeToString())
    sizes = sizes_to_compare(info.crop)
    predictor = Predictor(network, info.predict_mode, info.crop)
    return graph, compare(predictor, session, sizes, list(info.classes), form)
