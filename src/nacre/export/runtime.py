"""Exported files in use: a class map from a picture, by onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nacre.errors import NacreError
from nacre.evaluation.predictor import check_size, seen_size
from nacre.export.metadata import read_metadata
from nacre.utils.system import import_extra

Pixels = npt.NDArray[np.uint8]

_NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
"""What a file is tried on when it is opened."""


def open_session(graph: bytes | Path, threads: int = 0) -> Any:
    """Open a graph with onnxruntime on the CPU.

    Args:
        graph: A file, or its content.
        threads: How many threads one picture may use; 0 leaves it to onnxruntime.
    """
    ort = import_extra("onnxruntime")
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
        self.path, self.metadata = path, read_metadata(entries, str(path))
        try:
            found = self.classify(_NOISE)
        except NacreError:
            raise
        except Exception as error:  # onnxruntime's own; the first line says what it lacks
            reason = " ".join(str(error).split())[:300]
            raise NacreError(f"{path} does not take images: {reason}") from error
        if found.dtype != np.uint8 or found.shape != _NOISE.shape[:2]:
            raise NacreError(f"{path} gives no class maps: {found.dtype} of {found.shape}")

    def classify(self, picture: Pixels) -> Pixels:
        """Return the channel of each pixel of an image, height x width x RGB.

        Raises:
            NacreError: an image of which the network would see too many pixels.
        """
        size, said = (picture.shape[0], picture.shape[1]), self.metadata
        check_size(size, seen_size(size, said.predict_mode, said.crop))
        (classes,) = self.session.run(["classes"], {"picture": picture[None]})
        found: Pixels = classes[0]
        if found.max() >= len(self.metadata.classes):
            raise NacreError(
                f"{self.path} says that it has {len(self.metadata.classes)} classes, and its "
                f"network has channel {found.max()}"
            )
        return found
