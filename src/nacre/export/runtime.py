"""Exported files in use: a class map from a picture, by onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nacre.errors import NacreError
from nacre.export.metadata import Metadata, read_metadata
from nacre.utils.packages import need

Pixels = npt.NDArray[np.uint8]


def open_session(graph: bytes | Path, threads: int = 0) -> Any:
    """Open a graph with onnxruntime on the CPU.

    Args:
        graph: A file, or its content.
        threads: How many threads one picture may use; 0 leaves it to onnxruntime.
    """
    ort = need("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    content = str(graph) if isinstance(graph, Path) else graph
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has exceptions of its own, all of them plain
        place = graph if isinstance(graph, Path) else "the graph"
        reason = " ".join(str(error).split())[:300]
        raise NacreError(f"{place} cannot be opened by onnxruntime: {reason}") from error


class OnnxModel:
    """An exported model.

    Args:
        path: The ONNX file.
        threads: How many threads one picture may use; 0 leaves it to onnxruntime.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        if not path.is_file():
            raise NacreError(f"no ONNX file at {path}")
        self.session = open_session(path, threads)
        entries = self.session.get_modelmeta().custom_metadata_map
        self.metadata: Metadata = read_metadata(entries, str(path))

    def classify(self, picture: Pixels) -> Pixels:
        """Return the channel of each pixel of a picture, height x width x RGB, as it is."""
        (classes,) = self.session.run(["classes"], {"picture": picture[None]})
        found: Pixels = classes[0]
        return found
