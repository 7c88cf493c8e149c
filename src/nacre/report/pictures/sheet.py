"""Sheets of pictures: the image, what each method sees in it, and the truth.

The images are chosen by rule and never by hand: half are those in which the methods disagree
most, half are drawn at random; both from a random sample of the test images where there are
many. The disagreement of an image is the share of its tested pixels that the incremental methods
do not all put into the same class.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nacre.data.step_data import ScenarioData
from nacre.evaluation.predictor import cut_predictor
from nacre.labels.channels import IGNORE_INDEX, WIDE_IGNORE_INDEX
from nacre.models.network import Network
from nacre.report.pictures.predict import (
    Color,
    Pixels,
    TestImage,
    open_network,
    predict_masks,
    read_images,
)
from nacre.report.results.aggregate import ScenarioResults
from nacre.report.results.runs import RunResult
from nacre.runs.folder import RunFolder

DIFFERENT, RANDOM = "methods differ most", "drawn at random"

FEWEST, MOST = 24, 200
"""Test images among which to look for disagreement: fewer of large ones, which take long."""


@dataclass(frozen=True)
class PredictedImage:
    """An image of a sheet and what is seen in it.

    Attributes:
        image: The image and its truth.
        masks: Channel by pixel, one mask per method.
        disagreement: Share of the tested pixels that not all incremental methods agree on.
        why: Why this image is here.
    """

    image: TestImage
    masks: tuple[Pixels, ...]
    disagreement: float
    why: str

    def right(self, column: int) -> float:
        """Return the share of the tested pixels that a mask has right."""
        hits = (self.masks[column] == self.image.truth) & self.image.tested
        return float(hits.sum() / max(int(self.image.tested.sum()), 1))


@dataclass(frozen=True)
class Sheet:
    """Pictures in rows, with what their columns and colours mean.

    Attributes:
        columns: The methods.
        classes: Class name by channel.
        colors: RGB by channel.
        pictures: The rows.
        candidates: How many test images were looked at to choose from.
    """

    columns: tuple[str, ...]
    classes: tuple[str, ...]
    colors: tuple[Color, ...]
    pictures: tuple[PredictedImage, ...]
    candidates: int

    def shown_classes(self) -> list[int]:
        """Return the channels that stand anywhere on the sheet."""
        masks = [mask for seen in self.pictures for mask in (*seen.masks, seen.image.truth)]
        found: set[int] = set().union(*(np.unique(mask).tolist() for mask in masks))
        return sorted(found - {IGNORE_INDEX, WIDE_IGNORE_INDEX})


def comparison_sheet(
    results: ScenarioResults, data: ScenarioData, count: int = 8, seed: int = 0
) -> Sheet:
    """Return what every method of a scenario sees after the last step.

    Args:
        results: The rows; of each, the first run is looked at.
        data: The data of the scenario.
        count: How many pictures to show.
        seed: Of the random sample.
    """
    step = data.num_steps - 1
    dataset, classes = data.eval_dataset(step), data.scenario.classes
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.permutation(len(dataset))[: _sample_size(data.config.crop_size)])
    images = read_images(dataset, [int(i) for i in sample])
    names = classes.names(step)
    networks = (last_network(row.runs[0], names) for row in results.rows)
    masks = [predict_masks(cut_predictor(one, data.config), images) for one in networks]
    compared = [masks[i] for i, row in enumerate(results.rows) if not row.merged]
    scores = [disagreement(image, i, compared) for i, image in enumerate(images)]
    pictures = tuple(
        PredictedImage(images[i], tuple(seen[i] for seen in masks), scores[i], why)
        for i, why in _choose(scores, count, rng)
    )
    columns = tuple(row.name for row in results.rows)
    return Sheet(columns, names, classes.channels(step).colors, pictures, len(images))


def last_network(run: RunResult, classes: Sequence[str]) -> Network:
    """Load the network after the last step of a run."""
    return open_network(RunFolder(run.path).model(len(run.steps) - 1), classes)


def disagreement(image: TestImage, i: int, compared: Sequence[Sequence[Pixels]]) -> float:
    """Return the share of an image's tested pixels that not all rivals agree on."""
    differ = np.zeros_like(image.tested)
    for masks in compared[1:]:
        differ |= masks[i] != compared[0][i]
    return float((differ & image.tested).sum() / max(int(image.tested.sum()), 1))


def _sample_size(crop: int) -> int:
    return int(np.clip(MOST * 128**2 // crop**2, FEWEST, MOST))


def _choose(scores: Sequence[float], count: int, rng: np.random.Generator) -> list[tuple[int, str]]:
    """Return places of images and why: the largest scores, then others at random."""
    order = np.argsort(-np.asarray(scores), kind="stable")
    count = min(count, len(order))
    first = (count + 1) // 2
    others = rng.permutation(np.sort(order[first:]))[: count - first]
    chosen = [(int(i), DIFFERENT) for i in order[:first]]
    return chosen + [(int(i), RANDOM) for i in others]
