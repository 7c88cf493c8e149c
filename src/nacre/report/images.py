"""The images of a page: predictions of several networks on the same images.

A rule chooses the images among candidates: half are those in which the networks disagree most, half
are drawn at random. The disagreement of an image is the fraction of its tested pixels for which
they predict different classes.

The candidates of a scenario are a random sample of its test images, and joint training does not
count for the disagreement. Those of a step of `nacre learn` are at even distances among its test
images, or its training images if it has none.
"""

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from nacre.data.dataset import EvalDataset
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor, cut_predictor, model_predictor
from nacre.labels.channels import IGNORE_INDEX, WIDE_IGNORE_INDEX, Channels, Color, ignore_value
from nacre.models.io import load_model
from nacre.report.results import Row, ScenarioResults, percent
from nacre.runs.folder import RunFolder, read_config
from nacre.runs.learn import open_learn_data
from nacre.runs.run import open_scenario
from nacre.training.config import LearnConfig, RunConfig
from nacre.utils.device import choose_device

Pixels = npt.NDArray[np.uint8]

UNTESTED = 215
"""Gray of pixels that are not tested."""
MIN_CANDIDATES, MAX_CANDIDATES = 24, 200
"""Candidates of a scenario: fewer of large images, which take long."""
MAX_STEP_CANDIDATES = 96
"""Candidates of a step of `nacre learn`."""
MAX_SIDE = 256
"""Longer side of the images on a page."""
MAX_SMALL_SIDE = 128
"""Images up to this side are enlarged pixel by pixel."""


@dataclass(frozen=True)
class TestImage:
    """An image with the channel of each pixel; 255 is not tested."""

    __test__ = False

    name: str
    pixels: Pixels
    truth: Pixels

    @property
    def tested(self) -> npt.NDArray[np.bool_]:
        """The mask of the tested pixels."""
        tested: npt.NDArray[np.bool_] = self.truth != ignore_value(self.truth)
        return tested

    def fraction(self, mask: npt.NDArray[np.bool_]) -> float:
        """Return the fraction of the tested pixels that a mask contains."""
        return float((mask & self.tested).sum() / max(int(self.tested.sum()), 1))


@dataclass(frozen=True)
class SheetRow:
    """An image of a sheet, a predicted mask for each column, and why the image was chosen."""

    image: TestImage
    masks: tuple[Pixels, ...]
    why: str

    def accuracy(self, column: int) -> float:
        """Return the fraction of the tested pixels that a mask predicts correctly."""
        return self.image.fraction(self.masks[column] == self.image.truth)


@dataclass(frozen=True)
class Sheet:
    """Images in rows, predictions in columns.

    Attributes:
        columns: Names of the models or methods.
        channels: Their channels.
        rows: The chosen images.
        num_candidates: Number of images that the rows were chosen from.
        is_scored: True if the truth labels every class, so that predictions can be scored.
    """

    columns: tuple[str, ...]
    channels: Channels
    rows: tuple[SheetRow, ...]
    num_candidates: int
    is_scored: bool = True

    @property
    def headings(self) -> tuple[str, ...]:
        """The names of all columns, including those of the image and of its labels."""
        return "image", *self.columns, "truth" if self.is_scored else "labels"

    @property
    def is_small(self) -> bool:
        """True if its images are enlarged pixel by pixel."""
        return max(max(row.image.pixels.shape[:2]) for row in self.rows) <= MAX_SMALL_SIDE

    def shown_channels(self) -> list[int]:
        """Return the channels that occur on the sheet."""
        masks = [mask for row in self.rows for mask in (*row.masks, row.image.truth)]
        values: set[int] = set().union(*(np.unique(mask).tolist() for mask in masks))
        return sorted(values - {IGNORE_INDEX, WIDE_IGNORE_INDEX})

    def legend(self) -> list[tuple[str, str]]:
        """Return name and color of the classes that occur on the sheet."""
        names, colors = self.channels.names, self.channels.colors
        return [(names[i], "rgb({}, {}, {})".format(*colors[i])) for i in self.shown_channels()]

    def tiles(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """Return the label and the tiles of each row: data URI, text alternative, line below."""
        return [(f"{row.image.name}\n{row.why}", self._tiles(row)) for row in self.rows]

    def _tiles(self, row: SheetRow) -> list[tuple[str, str, str]]:
        name, pixels = row.image.name, row.image.pixels
        tiles = [(data_uri(pixels), f"test image {name}", "")]
        for i, column in enumerate(self.columns):
            correct = f"{percent(row.accuracy(i), 0)} %" if self.is_scored else ""
            about = f"{column} on {name}" + (
                f": {correct} of the pixels correct" if correct else ""
            )
            tiles.append((self._painted(row.masks[i], pixels), about, correct))
        about = f"{self.headings[-1]} of {name}"
        return [*tiles, (self._painted(row.image.truth, pixels), about, "")]

    def _painted(self, mask: Pixels, pixels: Pixels) -> str:
        return data_uri(colorize(mask, self.channels.colors, pixels))


def open_data(results: ScenarioResults) -> ScenarioData:
    """Open the data of a scenario with the config of a run, an incremental one if possible."""
    row = (results.incremental or results.rows)[0]
    return open_scenario(read_config(row.runs[0].path, RunConfig))


def comparison_sheet(results: ScenarioResults, data: ScenarioData, count: int) -> Sheet:
    """Return predictions of the first run of every row of a scenario, after the last step."""
    step = data.num_steps - 1
    dataset, channels = data.eval_dataset(step), data.scenario.classes.channels(step)
    rng = np.random.default_rng(0)
    size = MAX_CANDIDATES * 128**2 // data.config.crop_size**2
    size = int(np.clip(size, MIN_CANDIDATES, MAX_CANDIDATES))
    images = read_images(dataset, np.sort(rng.permutation(len(dataset))[:size]).tolist())
    columns = {
        row.name: predict_masks(_last_predictor(row, channels, data), images)
        for row in results.rows
    }
    compared = [columns[row.name] for row in results.incremental]
    rows = choose_rows(images, columns, compared, count, rng)
    return Sheet(tuple(columns), channels, rows, len(images))


def _last_predictor(row: Row, channels: Channels, data: ScenarioData) -> Predictor:
    """Load the network after the last step of a row's first run."""
    run = row.runs[0]
    path = RunFolder(run.path).model(len(run.steps) - 1)
    network, info, _ = load_model(path, choose_device("auto"))
    if tuple(info.classes) != channels.names:
        raise NacreError(f"{path} has the classes {', '.join(info.classes)}, not those of its data")
    predictor = cut_predictor(network, data.config)
    return replace(predictor, mirror=info.mirror, edges=info.edges)


def step_sheet(folder: Path, count: int) -> Sheet:
    """Return predictions of the start model and of the model of a step of `nacre learn`."""
    config = read_config(folder, LearnConfig)
    device = choose_device("auto")
    network, info, _ = load_model(folder / "model.safetensors", device)
    start = load_model(config.start, device) if config.start else None
    images = _step_images(config, start[1].channels if start else None)
    columns = {"before": predict_masks(model_predictor(*start[:2]), images)} if start else {}
    columns["after"] = predict_masks(model_predictor(network, info), images)
    # Without a start model, everything was background before.
    before = columns.get("before") or [np.zeros_like(mask) for mask in columns["after"]]
    compared = (before, columns["after"])
    rows = choose_rows(images, columns, compared, count, np.random.default_rng(0))
    # A folder labels its own classes only: its background may be another class.
    return Sheet(tuple(columns), info.channels, rows, len(images), is_scored=False)


def _step_images(config: LearnConfig, known: Channels | None) -> list[TestImage]:
    """Read images of every new data set of a step at even distances."""
    data = open_learn_data(config, known)
    images: list[TestImage] = []
    each = max(1, MAX_STEP_CANDIDATES // len(data.sets))
    for split in (split for split in data.compared_splits() if split.is_new):
        dataset = data.eval_dataset(split, data.channels)
        places = np.unique(np.linspace(0, len(dataset) - 1, min(each, len(dataset))).round())
        images += read_images(dataset, [int(place) for place in places])
    return images


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

    def predict(image: TestImage) -> Tensor:
        pixels = torch.from_numpy(image.pixels).permute(2, 0, 1)
        return predictor.classes(pixels[None].to(device))[0]

    return [predict(image).cpu().numpy() for image in images]


def choose_rows(
    images: Sequence[TestImage],
    columns: Mapping[str, Sequence[Pixels]],
    compared: Sequence[Sequence[Pixels]],
    count: int,
    rng: np.random.Generator,
) -> tuple[SheetRow, ...]:
    """Choose images: half with the largest disagreement of the compared masks, half at random."""
    scores = [
        _disagreement(image, [masks[i] for masks in compared]) for i, image in enumerate(images)
    ]
    order = np.argsort(-np.asarray(scores), kind="stable")
    count = min(count, len(order))
    num_first = (count + 1) // 2
    others = rng.permutation(np.sort(order[num_first:]))[: count - num_first]
    reasons = ["predictions differ most"] * num_first + ["drawn at random"] * len(others)
    return tuple(
        SheetRow(images[i], tuple(masks[i] for masks in columns.values()), why)
        for i, why in zip([*order[:num_first], *others], reasons, strict=True)
    )


def _disagreement(image: TestImage, masks: Sequence[Pixels]) -> float:
    """Return the fraction of the tested pixels for which masks differ."""
    differ = np.zeros_like(image.tested)
    for mask in masks[1:]:
        differ |= mask != masks[0]
    return image.fraction(differ)


def colorize(mask: Pixels, colors: Sequence[Color], pixels: Pixels) -> Pixels:
    """Return a mask in color over the faint gray image; untested pixels are light gray."""
    # Untested pixels are 255, or -1 where there are more classes: the last row in both cases.
    palette = np.full((max(256, len(colors) + 1), 3), UNTESTED, np.float32)
    palette[: len(colors)] = np.asarray(colors, np.float32)
    gray = pixels.astype(np.float32).mean(2, keepdims=True)
    flat = palette[mask]
    mixed = flat * 0.8 + gray * 0.2
    # The background's black would hide the image, which is only dimmed there.
    mixed = np.where((mask == 0)[..., None], flat * 0.7 + gray * 0.3, mixed)
    return mixed.round().clip(0, 255).astype(np.uint8)


def data_uri(pixels: Pixels, side: int = MAX_SIDE) -> str:
    """Return an image as a data URI, its longer side at most ``side``."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    # Small images are shown enlarged, where the artifacts of lossy coding would be visible.
    is_small = max(image.size) <= MAX_SMALL_SIDE
    image.save(file, "WEBP", quality=82, method=4, lossless=is_small)
    return "data:image/webp;base64," + b64encode(file.getvalue()).decode("ascii")
