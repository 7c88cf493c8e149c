"""What networks see in test images, and masks as pictures."""

import io
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from nacre.data.dataset import EvalDataset
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import ignore_value
from nacre.models.io import load_model
from nacre.models.network import Network
from nacre.report.results.aggregate import Row
from nacre.runs.folder import read_config
from nacre.runs.run import open_scenario
from nacre.utils.device import choose_device

Pixels = npt.NDArray[np.uint8]
Color = tuple[int, int, int]

BATCH = 16
UNTESTED = 215
"""Grey of pixels that do not count."""


@dataclass(frozen=True)
class TestImage:
    """A test image.

    Attributes:
        name: Its name.
        pixels: H,W,3, as it is tested.
        truth: Channel by pixel, 255 where it is not tested.
    """

    __test__ = False

    name: str
    pixels: Pixels
    truth: Pixels

    @property
    def tested(self) -> npt.NDArray[np.bool_]:
        """Which pixels count."""
        tested: npt.NDArray[np.bool_] = self.truth != ignore_value(self.truth)
        return tested


def open_data(rows: Sequence[Row]) -> ScenarioData:
    """Open the data of a scenario by the config of one of its runs that learns step by step."""
    stepwise = [row for row in rows if not row.merged]
    return open_scenario(read_config((stepwise or list(rows))[0].runs[0].path))


def open_network(path: Path, classes: Sequence[str]) -> Network:
    """Load a network and check that its channels are these classes."""
    network, info, _ = load_model(path, choose_device("auto"))
    if tuple(info.classes) != tuple(classes):
        raise NacreError(f"{path} has the classes {', '.join(info.classes)}, not those of its data")
    return network


def read_images(data: EvalDataset, places: Sequence[int]) -> list[TestImage]:
    """Read test images by their places in the list."""
    images = []
    for i in places:
        pixels, truth = data[i]
        images.append(TestImage(data.names[i], pixels.permute(1, 2, 0).numpy(), truth.numpy()))
    return images


@torch.inference_mode()
def predict_masks(predictor: Predictor, images: Sequence[TestImage]) -> list[Pixels]:
    """Return the channel of every pixel of images."""
    device = next(predictor.network.parameters()).device
    masks: list[Pixels] = []
    for group in _batches(images):
        batch = torch.stack([torch.from_numpy(image.pixels) for image in group])
        batch = batch.permute(0, 3, 1, 2).to(device)
        masks += list(predictor.classes(batch).cpu().numpy())
    return masks


def colorize(
    mask: Pixels, colors: Sequence[Color], pixels: Pixels, strength: float = 0.8
) -> Pixels:
    """Return a mask in its colours over the faint grey picture; untested pixels are light."""
    # Untested pixels are 255, or -1 where there are more classes: the last row in both cases.
    table = np.full((max(256, len(colors) + 1), 3), UNTESTED, np.float32)
    table[: len(colors)] = np.asarray(colors, np.float32)
    gray = pixels.astype(np.float32).mean(2, keepdims=True)
    flat = table[mask]
    mixed = flat * strength + gray * (1 - strength)
    # The background's black would hide the picture, so that one is only dimmed there.
    mixed = np.where((mask == 0)[..., None], flat * 0.7 + gray * 0.3, mixed)
    return mixed.round().clip(0, 255).astype(np.uint8)


def data_uri(pixels: Pixels, side: int) -> str:
    """Return a picture as text to stand in a page, its longer side at most ``side``."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    # Small pictures are shown enlarged, where the artefacts of lossy coding would be seen.
    image.save(file, "WEBP", quality=82, method=4, lossless=max(image.size) <= 128)
    return "data:image/webp;base64," + b64encode(file.getvalue()).decode("ascii")


def _batches(images: Sequence[TestImage]) -> Iterator[list[TestImage]]:
    """Yield neighbouring images of the same size together."""
    group: list[TestImage] = []
    for image in images:
        if group and (len(group) == BATCH or image.pixels.shape != group[0].pixels.shape):
            yield group
            group = []
        group.append(image)
    if group:
        yield group
