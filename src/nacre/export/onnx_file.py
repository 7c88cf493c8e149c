"""`nacre export`: from a model to an ONNX file that has been compared with it.

    trace -> compare with torch -> metadata -> keep

It is compared at sizes that a graph traced once may get wrong, with how `nacre predict` sees an
image: the network itself, neither folded nor changed for tracing, behind a `Predictor`. Two numbers
are as good as equal if they differ by a small share of the range that the scores span; where two
classes are that close at a pixel, either may be its class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from nacre.data.image_io import Pixels
from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor, model_predictor
from nacre.export.graph import ImageToClasses, to_onnx
from nacre.export.onnx_model import Metadata, describe, open_session, write_metadata
from nacre.models.io import ModelInfo
from nacre.models.network import Network
from nacre.utils.io import remove_temporaries, save

Scores = npt.NDArray[np.float32]
Size = tuple[int, int]
Form = Literal["fp32", "fp16"]

TOLERANCE = {"fp32": 1e-3, "fp16": 3e-2}
"""Largest difference, as a share of the range of the scores."""


@dataclass(frozen=True)
class Comparison:
    """The distance of a graph from torch.

    Attributes:
        sizes: Heights and widths that were compared.
        agreement: Share of all pixels with the same class.
        difference: Largest difference of a score, as a share of the range of the scores.
    """

    sizes: tuple[Size, ...]
    agreement: float
    difference: float

    def __str__(self) -> str:
        """Return a sentence for people."""
        return (
            f"compared with torch at {len(self.sizes)} sizes: {self.agreement:.3%} of the pixels "
            f"are the same, scores differ by at most {self.difference:.1e} of their range"
        )


def noise_image(size: Size, seed: int = 0) -> Pixels:
    """Return an image of coarse and fine noise, in which every part differs from the others."""
    random = np.random.default_rng(seed)
    height, width = size
    coarse = random.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3))
    coarse = coarse.repeat(16, 0).repeat(16, 1)[:height, :width]
    fine = random.integers(-32, 33, (height, width, 3))
    return np.clip(coarse + fine, 0, 255).astype(np.uint8)


@torch.inference_mode()
def compare(
    predictor: Predictor, session: Any, sizes: tuple[Size, ...], names: list[str], tolerance: float
) -> Comparison:
    """Compare classes and scores of a graph with torch.

    Raises:
        NacreError: they differ by more than rounding; the sentence says where.
    """
    device = next(predictor.network.parameters()).device
    same = total = 0
    worst = 0.0
    for i, size in enumerate(sizes):
        image = noise_image(size, seed=i)
        classes, scores = session.run(["classes", "scores"], {"image": image[None]})
        batch = torch.from_numpy(image).permute(2, 0, 1)[None].to(device)
        wanted = predictor.scores(batch)[0].float().cpu().numpy()
        if scores[0].shape != wanted.shape:
            raise NacreError(
                f"the exported graph gives {scores[0].shape} at {_text(size)}, torch {wanted.shape}"
            )
        span = float(np.ptp(wanted)) or 1.0
        distance = np.abs(scores[0] - wanted).max(0) / span
        worst = max(worst, float(distance.max()))
        _check(distance, classes[0], wanted, size, names, tolerance)
        same += int((classes[0] == wanted.argmax(0)).sum())
        total += classes[0].size
    return Comparison(sizes, same / total, worst)


def _check(
    distance: Scores,
    classes: Pixels,
    wanted: Scores,
    size: Size,
    names: list[str],
    tolerance: float,
) -> None:
    # Written so that NaN counts as a difference.
    far = ~(distance <= tolerance)
    chosen = np.take_along_axis(wanted, classes[None].astype(np.int64), 0)[0]
    far |= wanted.max(0) - chosen > 2 * tolerance * (float(np.ptp(wanted)) or 1.0)
    if far.any():
        row, column = (int(place[0]) for place in np.nonzero(far))
        raise NacreError(
            f"the exported graph differs from torch at {_text(size)} pixels, in {far.mean():.1%} "
            f"of them, first at row {row}, column {column}: {names[classes[row, column]]!r} "
            f"instead of {names[int(wanted[:, row, column].argmax())]!r}, scores off by "
            f"{distance.max():.2%} of their range; the file is not kept"
        )


def _text(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


class NamedModel(NamedTuple):
    """A network in eval mode, what its file says about it, and its name for people."""

    name: str
    network: Network
    info: ModelInfo


def write_onnx(models: Sequence[NamedModel], out: Path, form: Form, license: str | None) -> str:
    """Write a model as an ONNX file; return a sentence about it."""
    if len(models) > 1:
        raise NacreError("an ONNX file contains one model: give one, or --page to compare several")
    comparison = export_onnx(models[0].network, models[0].info, out, form=form, license=license)
    return f"{out} ({out.stat().st_size / 1e6:.1f} MB, {form}); {comparison}"


def export_onnx(
    network: Network,
    info: ModelInfo,
    out: Path,
    *,
    form: Form = "fp32",
    license: str | None = None,
) -> Comparison:
    """Write a model as an ONNX file if it does what the model does; return how far it is off.

    Raises:
        NacreError: the graph differs from torch; nothing is written then.
    """
    remove_temporaries(out.parent, out.name)
    content, comparison = make_onnx(network, info, describe(info, form, license))
    save(out, lambda file: file.write_bytes(content))
    return comparison


def make_onnx(network: Network, info: ModelInfo, metadata: Metadata) -> tuple[bytes, Comparison]:
    """Return the content of an ONNX file, compared with torch.

    Args:
        network: The network, in eval mode.
        info: What its file says about it.
        metadata: What the ONNX file says about itself.
    """
    form = metadata.form
    dtype = torch.float16 if form == "fp16" else torch.float32
    graph = to_onnx(ImageToClasses(model_predictor(network, info), dtype))
    session = open_session(graph.SerializeToString())
    # Aligned, odd and uneven sides, smaller and larger than a training crop.
    crop, larger = info.crop, info.crop + 33
    sizes = ((crop, crop), (64, 160), (97, 129), (1, 5), (larger, 75), (77, larger + 2))
    predictor = model_predictor(network, info)
    found = compare(predictor, session, sizes, list(info.classes), TOLERANCE[form])
    del graph.graph.output[1]
    write_metadata(graph, metadata)
    return graph.SerializeToString(), found
