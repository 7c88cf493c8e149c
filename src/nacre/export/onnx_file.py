"""ONNX files: exported from a model, compared with it, and used to predict.

    trace -> compare with torch -> metadata -> save

An exported file is compared at sizes that a graph traced once may get wrong, with the `Predictor`
of `nacre predict` around the unchanged network. Scores are equal if they differ by a small fraction
of their range. Where two classes are that close at a pixel, either may be its class.

The metadata (classes, colors, history, how images are scaled) are JSON under the key ``nacre``.
The class names are also under ``names``, where other programs look for them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, TypeAdapter, ValidationError

from nacre.data.image_io import Pixels
from nacre.errors import NacreError, describe_errors
from nacre.evaluation.predictor import Predictor, check_size, input_size, model_predictor
from nacre.export.graph import ImageToClasses, to_onnx
from nacre.models.io import History, Level, ModelInfo, Name, check_channels
from nacre.models.network import Network
from nacre.utils.io import parse_json, remove_temporaries, save
from nacre.utils.system import import_extra
from nacre.version import __version__

if TYPE_CHECKING:
    from onnx import ModelProto

Scores = npt.NDArray[np.float32]
Size = tuple[int, int]
Form = Literal["fp32", "fp16"]
Color = tuple[Level, Level, Level]

KEY = "nacre"
MAX_CLASSES = 256
"""Classes of a class map of 8 bits."""
TOLERANCE = {"fp32": 1e-3, "fp16": 3e-2}
"""Largest difference from torch, as a fraction of the range of the scores."""


class NamedModel(NamedTuple):
    """A network in eval mode, the header of its file, and its name for display."""

    name: str
    network: Network
    info: ModelInfo


@dataclass(frozen=True)
class Metadata:
    """The metadata of an exported file.

    Attributes:
        classes: Class name by channel; channel 0 is the background.
        colors: RGB by channel.
        history: For each step: its classes and the number of its images.
        crop: Side of the images that the network was trained on.
        predict_mode: How the graph shows an image to the network: ``crop`` (its shorter side scaled
            to the crop), ``full`` (in its own size) or ``sliding`` (in windows of the crop's size).
        version: Version of nacre.
    """

    classes: Annotated[list[Name], Field(min_length=1, max_length=MAX_CLASSES)]
    colors: list[Color]
    history: History
    crop: Annotated[int, Field(strict=True, ge=1, le=8192)]
    predict_mode: Literal["crop", "full", "sliding"]
    version: Annotated[str, Field(max_length=1000)] = __version__


def describe(info: ModelInfo) -> Metadata:
    """Return the metadata of a model; refuse more classes than a class map of 8 bits has."""
    if len(info.classes) > MAX_CLASSES:
        raise NacreError(
            f"the model has {len(info.classes)} classes; an exported one has at most {MAX_CLASSES}"
        )
    return Metadata(
        classes=list(info.classes),
        colors=[(red, green, blue) for red, green, blue in info.colors],
        history=list(info.history),
        crop=info.crop,
        predict_mode=info.predict_mode,
    )


def write_onnx(models: Sequence[NamedModel], out: Path, form: Form) -> str:
    """Write a model as an ONNX file; return a sentence about it."""
    if len(models) > 1:
        raise NacreError("an ONNX file contains one model: give one, or --page to compare several")
    comparison = export_onnx(models[0].network, models[0].info, out, form)
    return f"{out} ({out.stat().st_size / 1e6:.1f} MB, {form}); {comparison}"


def export_onnx(network: Network, info: ModelInfo, out: Path, form: Form = "fp32") -> str:
    """Write a model as an ONNX file; return a sentence about the comparison with torch.

    Raises:
        NacreError: the graph differs from torch; nothing is written then.
    """
    remove_temporaries(out.parent, out.name)
    content, comparison = make_onnx(network, info, form)
    save(out, lambda file: file.write_bytes(content))
    return comparison


def make_onnx(network: Network, info: ModelInfo, form: Form = "fp32") -> tuple[bytes, str]:
    """Return the content of an ONNX file and a sentence about the comparison with torch."""
    metadata = describe(info)
    predictor = model_predictor(network, info)
    dtype = torch.float16 if form == "fp16" else torch.float32
    graph = to_onnx(ImageToClasses(predictor, dtype))
    session = open_session(graph.SerializeToString())
    # Aligned, odd and uneven sides, smaller and larger than a training crop.
    crop, larger = info.crop, info.crop + 33
    sizes = ((crop, crop), (64, 160), (97, 129), (1, 5), (larger, 75), (77, larger + 2))
    comparison = compare(predictor, session, sizes, info.classes, TOLERANCE[form])
    del graph.graph.output[1]
    _write_metadata(graph, metadata)
    return graph.SerializeToString(), comparison


def noise_image(size: Size, seed: int = 0) -> Pixels:
    """Return an image of coarse and fine noise, so that all its parts differ."""
    random = np.random.default_rng(seed)
    height, width = size
    coarse = random.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3))
    coarse = coarse.repeat(16, 0).repeat(16, 1)[:height, :width]
    fine = random.integers(-32, 33, (height, width, 3))
    return np.clip(coarse + fine, 0, 255).astype(np.uint8)


@torch.inference_mode()
def compare(
    predictor: Predictor,
    session: Any,
    sizes: Sequence[Size],
    names: Sequence[str],
    tolerance: float,
) -> str:
    """Compare classes and scores of a graph with torch; return a sentence about it.

    Raises:
        NacreError: they differ by more than rounding; the error says where.
    """
    device = next(predictor.network.parameters()).device
    num_same = num_pixels = 0
    largest = 0.0
    for i, size in enumerate(sizes):
        image = noise_image(size, seed=i)
        classes, scores = session.run(["classes", "scores"], {"image": image[None]})
        batch = torch.from_numpy(image).permute(2, 0, 1)[None].to(device)
        expected = predictor.scores(batch)[0].float().cpu().numpy()
        if scores[0].shape != expected.shape:
            raise NacreError(
                f"the exported graph returns {scores[0].shape} at {size[0]} x {size[1]} pixels, "
                f"torch {expected.shape}; the file is not kept"
            )
        difference = np.abs(scores[0] - expected).max(0) / _range(expected)
        largest = max(largest, float(difference.max()))
        _check(difference, classes[0], expected, names, tolerance)
        num_same += int((classes[0] == expected.argmax(0)).sum())
        num_pixels += classes[0].size
    return (
        f"compared with torch at {len(sizes)} sizes: {num_same / num_pixels:.3%} of the pixels "
        f"are the same, scores differ by at most {largest:.1e} of their range"
    )


def _range(scores: Scores) -> float:
    return float(np.ptp(scores)) or 1.0


def _check(
    difference: Scores, classes: Pixels, expected: Scores, names: Sequence[str], tolerance: float
) -> None:
    """Refuse a graph whose scores or classes are not those of torch at any pixel."""
    # Written so that NaN counts as a difference.
    differs = ~(difference <= tolerance)
    chosen = np.take_along_axis(expected, classes[None].astype(np.int64), 0)[0]
    differs |= expected.max(0) - chosen > 2 * tolerance * _range(expected)
    if differs.any():
        height, width = differs.shape
        row, column = (int(place[0]) for place in np.nonzero(differs))
        raise NacreError(
            f"the exported graph differs from torch at {height} x {width} pixels, in "
            f"{differs.mean():.1%} of them, first at row {row}, column {column}: "
            f"{names[classes[row, column]]!r} instead of "
            f"{names[int(expected[:, row, column].argmax())]!r}, scores off by "
            f"{difference.max():.2%} of their range; the file is not kept"
        )


def _write_metadata(graph: "ModelProto", metadata: Metadata) -> None:
    """Replace the metadata of a graph."""
    del graph.metadata_props[:]
    names = dict(enumerate(metadata.classes))
    for key, value in ((KEY, asdict(metadata)), ("names", names)):
        entry = graph.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value, default=str)
    graph.producer_name, graph.producer_version = "nacre", metadata.version
    graph.doc_string = f"nacre: {', '.join(metadata.classes)}"


def _read_metadata(entries: dict[str, str], path: Path) -> Metadata:
    """Read and check the metadata of a file."""
    try:
        metadata = TypeAdapter(Metadata).validate_python(parse_json(entries[KEY]))
        check_channels(metadata.classes, {"colors": len(metadata.colors)})
        return metadata
    except ValidationError as error:
        reason = describe_errors(error, Metadata)
    except NacreError as error:
        reason = str(error)
    except KeyError:
        reason = "its metadata are missing"
    except ValueError:
        reason = "its metadata are not JSON"
    raise NacreError(f"{path} was not written by this version of `nacre export`: {reason}")


def open_session(graph: bytes | Path, threads: int = 0) -> Any:
    """Open a graph with onnxruntime on the CPU.

    Args:
        graph: A file, or its content.
        threads: Threads per image; 0 lets onnxruntime decide.
    """
    ort = import_extra("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    content = str(graph) if isinstance(graph, Path) else graph
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes have no common base
        place = graph if isinstance(graph, Path) else "the graph"
        raise NacreError(f"{place} cannot be opened by onnxruntime: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


class OnnxModel:
    """An exported model.

    Args:
        path: The ONNX file.
        threads: Threads per image; 0 lets onnxruntime decide.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        if not path.is_file():
            raise NacreError(f"no ONNX file at {path}")
        self.session = open_session(path, threads)
        entries = self.session.get_modelmeta().custom_metadata_map
        self.path, self.metadata = path, _read_metadata(entries, path)
        image = noise_image((64, 64))
        try:
            classes = self.classify(image)
        except NacreError:
            raise
        except Exception as error:  # onnxruntime's own
            raise NacreError(f"{path} does not take images: {_reason(error)}") from error
        if classes.dtype != np.uint8 or classes.shape != image.shape[:2]:
            raise NacreError(
                f"{path} does not return class maps, but {classes.dtype} of {classes.shape}"
            )

    def classify(self, image: Pixels) -> Pixels:
        """Return the channel of each pixel of an image, height x width x RGB.

        Raises:
            NacreError: the network would receive too many pixels.
        """
        size, metadata = (image.shape[0], image.shape[1]), self.metadata
        check_size(size, input_size(size, metadata.predict_mode, metadata.crop))
        (batch,) = self.session.run(["classes"], {"image": image[None]})
        classes: Pixels = batch[0]
        if classes.max() >= len(metadata.classes):
            raise NacreError(
                f"{self.path} has {len(metadata.classes)} classes in its metadata, but its network "
                f"predicts channel {classes.max()}"
            )
        return classes
