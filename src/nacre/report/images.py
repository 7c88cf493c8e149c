"""The images of a page: predictions of every method on the same test images.

A rule chooses the test images: half are those in which the methods disagree most, half are drawn at
random. If there are many test images, both come from a random sample of them. The disagreement of
an image is the fraction of its tested pixels for which the incremental methods predict different
classes.
"""

import io
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from nacre.data.dataset import EvalDataset
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor, cut_predictor
from nacre.labels.channels import IGNORE_INDEX, WIDE_IGNORE_INDEX, ignore_value
from nacre.models.io import load_model
from nacre.report.results import Row, ScenarioResults, percent
from nacre.runs.folder import RunFolder, read_config
from nacre.runs.run import open_scenario
from nacre.training.config import RunConfig
from nacre.utils.device import choose_device

Pixels = npt.NDArray[np.uint8]
Color = tuple[int, int, int]

BATCH = 16
UNTESTED = 215
"""Gray of pixels that are not tested."""
DIFFERENT, RANDOM = "methods differ most", "drawn at random"
MIN_CANDIDATES, MAX_CANDIDATES = 24, 200
"""Test images among which to look for disagreement: fewer of large ones, which take long."""
MAX_SMALL = 128
"""Images up to this side are enlarged pixel by pixel."""


@dataclass(frozen=True)
class TestImage:
    """A test image.

    Attributes:
        name: Its name.
        pixels: H,W,3, as in tests.
        truth: Channel of each pixel; 255 is not tested.
    """

    __test__ = False

    name: str
    pixels: Pixels
    truth: Pixels

    @property
    def tested(self) -> npt.NDArray[np.bool_]:
        """The mask of the tested pixels."""
        tested: npt.NDArray[np.bool_] = self.truth != ignore_value(self.truth)
        return tested


@dataclass(frozen=True)
class PredictedImage:
    """An image of a sheet and its predictions.

    Attributes:
        image: The image and its truth.
        masks: Channel of each pixel, one mask per column.
        disagreement: Fraction of the pixels with different predictions.
        why: Why it was chosen.
    """

    image: TestImage
    masks: tuple[Pixels, ...]
    disagreement: float
    why: str

    def accuracy(self, column: int) -> float:
        """Return the fraction of the tested pixels that a mask predicts correctly."""
        hits = (self.masks[column] == self.image.truth) & self.image.tested
        return float(hits.sum() / max(int(self.image.tested.sum()), 1))


@dataclass(frozen=True)
class Sheet:
    """Images in rows, predictions in columns.

    Attributes:
        columns: Names of the models or methods.
        classes: Class name by channel.
        colors: RGB by channel.
        images: The rows.
        candidates: Number of images that the rows were chosen from.
        is_scored: True if the truth labels every class, so that predictions can be scored.
    """

    columns: tuple[str, ...]
    classes: tuple[str, ...]
    colors: tuple[Color, ...]
    images: tuple[PredictedImage, ...]
    candidates: int
    is_scored: bool = True

    @property
    def headings(self) -> tuple[str, ...]:
        """The names of all columns, including those of the image and of its labels."""
        return "image", *self.columns, "truth" if self.is_scored else "labels"

    @property
    def has_untested(self) -> bool:
        """True if any truth has ignored pixels."""
        return any(bool((~one.image.tested).any()) for one in self.images)

    @property
    def is_small(self) -> bool:
        """True if its images are enlarged pixel by pixel."""
        return max(max(one.image.pixels.shape[:2]) for one in self.images) <= MAX_SMALL

    def shown_classes(self) -> list[int]:
        """Return the channels that occur on the sheet."""
        masks = [mask for one in self.images for mask in (*one.masks, one.image.truth)]
        found: set[int] = set().union(*(np.unique(mask).tolist() for mask in masks))
        return sorted(found - {IGNORE_INDEX, WIDE_IGNORE_INDEX})

    def legend(self) -> list[tuple[str, str]]:
        """Return name and color of the classes that occur on the sheet."""
        shown = self.shown_classes()
        return [(self.classes[i], "rgb({}, {}, {})".format(*self.colors[i])) for i in shown]


def open_data(results: ScenarioResults) -> ScenarioData:
    """Open the data of a scenario with the config of a run, an incremental one if possible."""
    row = (results.incremental or results.rows)[0]
    return open_scenario(read_config(row.runs[0].path, RunConfig))


def comparison_sheet(
    results: ScenarioResults, data: ScenarioData, count: int = 8, seed: int = 0
) -> Sheet:
    """Return the predictions of every method of a scenario after the last step.

    Args:
        results: The rows; of each, the first run is shown.
        data: The data of the scenario.
        count: Number of images.
        seed: Seed of the random sample.
    """
    step = data.num_steps - 1
    dataset, classes = data.eval_dataset(step), data.scenario.classes
    names, rng = classes.names(step), np.random.default_rng(seed)
    size = MAX_CANDIDATES * 128**2 // data.config.crop_size**2
    size = int(np.clip(size, MIN_CANDIDATES, MAX_CANDIDATES))
    images = read_images(dataset, np.sort(rng.permutation(len(dataset))[:size]).tolist())
    masks = [predict_masks(_last_predictor(row, names, data), images) for row in results.rows]
    compared = [masks[i] for i, row in enumerate(results.rows) if not row.is_joint]
    scores = [_disagreement(image, i, compared) for i, image in enumerate(images)]
    rows = tuple(
        PredictedImage(images[i], tuple(one[i] for one in masks), scores[i], why)
        for i, why in _choose(scores, count, rng)
    )
    columns = tuple(row.name for row in results.rows)
    return Sheet(columns, names, classes.channels(step).colors, rows, len(images))


def _last_predictor(row: Row, classes: Sequence[str], data: ScenarioData) -> Predictor:
    """Load the network after the last step of a row's first run."""
    run = row.runs[0]
    path = RunFolder(run.path).model(len(run.steps) - 1)
    network, info, _ = load_model(path, choose_device("auto"))
    if tuple(info.classes) != tuple(classes):
        raise NacreError(f"{path} has the classes {', '.join(info.classes)}, not those of its data")
    predictor = cut_predictor(network, data.config)
    return replace(predictor, mirror=info.mirror, edges=info.edges)


def _disagreement(image: TestImage, i: int, compared: Sequence[Sequence[Pixels]]) -> float:
    """Return the fraction of an image's tested pixels on which methods disagree."""
    differ = np.zeros_like(image.tested)
    for masks in compared[1:]:
        differ |= masks[i] != compared[0][i]
    return float((differ & image.tested).sum() / max(int(image.tested.sum()), 1))


def _choose(scores: Sequence[float], count: int, rng: np.random.Generator) -> list[tuple[int, str]]:
    """Return places and reasons of images: the largest scores, then others at random."""
    order = np.argsort(-np.asarray(scores), kind="stable")
    count = min(count, len(order))
    first = (count + 1) // 2
    others = rng.permutation(np.sort(order[first:]))[: count - first]
    chosen = [(int(i), DIFFERENT) for i in order[:first]]
    return chosen + [(int(i), RANDOM) for i in others]


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


def _batches(images: Sequence[TestImage]) -> Iterator[list[TestImage]]:
    """Yield neighboring images of the same size together."""
    group: list[TestImage] = []
    for image in images:
        if group and (len(group) == BATCH or image.pixels.shape != group[0].pixels.shape):
            yield group
            group = []
        group.append(image)
    if group:
        yield group


def colorize(
    mask: Pixels, colors: Sequence[Color], pixels: Pixels, strength: float = 0.8
) -> Pixels:
    """Return a mask in color over the faint gray image; untested pixels are light gray."""
    # Untested pixels are 255, or -1 where there are more classes: the last row in both cases.
    palette = np.full((max(256, len(colors) + 1), 3), UNTESTED, np.float32)
    palette[: len(colors)] = np.asarray(colors, np.float32)
    gray = pixels.astype(np.float32).mean(2, keepdims=True)
    flat = palette[mask]
    mixed = flat * strength + gray * (1 - strength)
    # The background's black would hide the image, which is only dimmed there.
    mixed = np.where((mask == 0)[..., None], flat * 0.7 + gray * 0.3, mixed)
    return mixed.round().clip(0, 255).astype(np.uint8)


def data_uri(pixels: Pixels, side: int) -> str:
    """Return an image as a data URI, its longer side at most ``side``."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    # Small images are shown enlarged, where the artifacts of lossy coding would be visible.
    image.save(file, "WEBP", quality=82, method=4, lossless=max(image.size) <= 128)
    return "data:image/webp;base64," + b64encode(file.getvalue()).decode("ascii")


def sheet_rows(sheet: Sheet, side: int) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the name and the tiles of each row: data URI, text alternative, line below."""
    rows = []
    for one in sheet.images:
        name, pixels = one.image.name, one.image.pixels
        uris = [
            data_uri(colorize(mask, sheet.colors, pixels), side)
            for mask in (*one.masks, one.image.truth)
        ]
        tiles = [(data_uri(pixels, side), f"test image {name}", "")]
        for i, column in enumerate(sheet.columns):
            right = f"{percent(one.accuracy(i), 0)} %" if sheet.is_scored else ""
            scored = f": {right} of the pixels right" if right else ""
            tiles.append((uris[i], f"{column} on {name}{scored}", right))
        tiles.append((uris[-1], f"{sheet.headings[-1]} of {name}", ""))
        rows.append((f"{name}\n{one.why}", tiles))
    return rows
