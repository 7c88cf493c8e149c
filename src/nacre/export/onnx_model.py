"""An exported file in use: what it says about itself, and a class map from an image by onnxruntime.

What it says (classes, colors, history, how it sees images, license) is plain JSON under the key
``nacre`` of its metadata; the class names stand beside it under ``names``, where other programs
look for them.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from nacre.data.image_io import Pixels
from nacre.errors import NacreError, describe_errors
from nacre.evaluation.predictor import check_size, seen_size
from nacre.models.io import History, Level, ModelInfo, Name, NumChannels, check_channels
from nacre.utils.io import parse_json
from nacre.utils.system import import_extra
from nacre.version import __version__

if TYPE_CHECKING:
    from onnx import ModelProto

KEY = "nacre"
MOST_CLASSES = 256
"""That a class map of 8 bits can tell apart."""

NOT_STATED = "not stated"


_NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
"""What a file is tried on when it is opened."""

Color = tuple[Level, Level, Level]
Side = Annotated[int, Field(strict=True, ge=1, le=8192)]
Word = Annotated[str, Field(max_length=1000)]


@dataclass(frozen=True)
class Metadata:
    """The description of a file's network.

    Attributes:
        classes: Class name by channel; channel 0 is the background.
        colors: RGB by channel.
        steps: Channels that each step added, with the background in step 0.
        history: For each step: its classes and the number of its images.
        crop: Side of the images that the network was trained on.
        predict_mode: How the graph shows an image to it: ``crop`` (its shorter side scaled to the
            crop), ``full`` (at its own size) or ``sliding`` (through windows of the crop's size).
        form: `fp32` or `fp16`.
        license: Of the weights, as whoever exported them said.
        version: Of nacre.
    """

    classes: Annotated[list[Name], Field(min_length=1, max_length=MOST_CLASSES)]
    colors: list[Color]
    steps: Annotated[list[NumChannels], Field(min_length=1, max_length=MOST_CLASSES)]
    history: History
    crop: Side
    predict_mode: Literal["crop", "full", "sliding"]
    form: Word
    license: Word = NOT_STATED
    version: Word = __version__


def describe(info: ModelInfo, form: str, license: str | None) -> Metadata:
    """Return what there is to say about a model.

    Raises:
        NacreError: it has more classes than a class map of 8 bits.
    """
    if len(info.classes) > MOST_CLASSES:
        raise NacreError(f"{len(info.classes)} classes do not fit into a class map of 8 bits")
    return Metadata(
        classes=list(info.classes),
        colors=[(red, green, blue) for red, green, blue in info.colors],
        steps=list(info.steps),
        history=list(info.history),
        crop=info.crop,
        predict_mode=info.predict_mode,
        form=form,
        license=license or NOT_STATED,
    )


def write_metadata(graph: "ModelProto", metadata: Metadata) -> None:
    """Put the metadata into a graph, in the place of any before."""
    del graph.metadata_props[:]
    names = dict(enumerate(metadata.classes))
    for key, value in ((KEY, asdict(metadata)), ("names", names)):
        entry = graph.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value, default=str)
    graph.producer_name, graph.producer_version = "nacre", metadata.version
    graph.doc_string = f"nacre: {', '.join(metadata.classes)}"


def read_metadata(entries: dict[str, str], place: str) -> Metadata:
    """Read the metadata of a file.

    Args:
        entries: All metadata of the file.
        place: The file, for an error.
    """
    try:
        metadata = TypeAdapter(Metadata).validate_python(parse_json(entries[KEY]))
        counts = {"colors": len(metadata.colors), "channels": sum(metadata.steps)}
        check_channels(metadata.classes, counts)
        return metadata
    except ValidationError as error:
        reason = describe_errors(error, Metadata)
    except NacreError as error:
        reason = str(error)
    except (KeyError, ValueError) as error:
        reason = f"its metadata {'are missing' if isinstance(error, KeyError) else 'are no JSON'}"
    raise NacreError(f"{place} was not written by this version of `nacre export`: {reason}")


def open_session(graph: bytes | Path, threads: int = 0) -> Any:
    """Open a graph with onnxruntime on the CPU.

    Args:
        graph: A file, or its content.
        threads: How many threads one image may use; 0 leaves it to onnxruntime.
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
        threads: How many threads one image may use; 0 leaves it to onnxruntime.
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

    def classify(self, image: Pixels) -> Pixels:
        """Return the channel of each pixel of an image, height x width x RGB.

        Raises:
            NacreError: an image of which the network would see too many pixels.
        """
        size, said = (image.shape[0], image.shape[1]), self.metadata
        check_size(size, seen_size(size, said.predict_mode, said.crop))
        (classes,) = self.session.run(["classes"], {"image": image[None]})
        found: Pixels = classes[0]
        if found.max() >= len(self.metadata.classes):
            raise NacreError(
                f"{self.path} says that it has {len(self.metadata.classes)} classes, and its "
                f"network has channel {found.max()}"
            )
        return found
