"""Sheets of pictures: the image, what each method sees in it, and the truth.

The images are chosen by rule and never by hand: half are those in which the methods disagree
most, half are drawn at random; both from a random sample of the test images where there are
many. The disagreement of an image is the share of its tested pixels that the methods do not all
put into the same class.
"""

import io
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from nacre.classes import IGNORED
from nacre.data.loading import TestingSet
from nacre.errors import NacreError
from nacre.models.network import Network
from nacre.report.results import Row, RunResult, ScenarioResults
from nacre.training.checkpoint import load_model
from nacre.training.folder import RunFolder, read_config
from nacre.training.prepare import Prepared, prepare

Pixels = npt.NDArray[np.uint8]
Colors = Sequence[Sequence[int]]

SAMPLE = 200
"""Test images among which to look for disagreement."""

DIFFERENT, RANDOM = "methods differ most", "drawn at random"


@dataclass(frozen=True)
class Seen:
    """One image and what is seen in it.

    Attributes:
        name: The image's name.
        image: H,W,3, as it was tested.
        truth: Channel by pixel, 255 where it was not tested.
        masks: Channel by pixel, one mask a column of the sheet.
        disagreement: Share of the tested pixels that not all masks agree on.
        why: Why this image is here.
    """

    name: str
    image: Pixels
    truth: Pixels
    masks: tuple[Pixels, ...]
    disagreement: float
    why: str = ""

    def right(self, column: int) -> float:
        """Return the share of the tested pixels that a mask has right."""
        tested = self.truth != IGNORED
        hits = (self.masks[column] == self.truth) & tested
        return float(hits.sum() / max(int(tested.sum()), 1))


@dataclass(frozen=True)
class Sheet:
    """Pictures to be shown in rows, with what their columns and colours mean.

    Attributes:
        columns: What each mask is: a method or a step.
        classes: Class name by channel.
        colors: RGB by channel.
        pictures: The rows.
        candidates: Test images that were looked at to choose from.
    """

    columns: tuple[str, ...]
    classes: tuple[str, ...]
    colors: tuple[tuple[int, int, int], ...]
    pictures: tuple[Seen, ...]
    candidates: int

    def shown_classes(self) -> list[int]:
        """Return the channels that stand anywhere on the sheet."""
        masks = [mask for seen in self.pictures for mask in (*seen.masks, seen.truth)]
        found = set().union(*(np.unique(mask).tolist() for mask in masks))
        return sorted(found - {IGNORED})


def comparison_sheet(results: ScenarioResults, count: int = 8, seed: int = 0) -> Sheet:
    """Return what every method of a scenario sees after the last step."""
    prepared = open_data(results.rows)
    step = prepared.steps - 1
    data = prepared.testing_set(step)
    classes = prepared.scenario.classes
    networks = [last_network(row.runs[0], classes.names(step)) for row in results.rows]
    rivals = [at for at, row in enumerate(results.rows) if not row.merged]
    rng = np.random.default_rng(seed)
    candidates = np.sort(rng.permutation(len(data))[:SAMPLE])
    # Masks of the sample are kept, pictures only of those chosen: a sample may be large.
    scores = [_disagreement(data, int(at), [networks[one] for one in rivals]) for at in candidates]
    chosen = _choose(scores, count, rng)
    pictures = []
    for place, why in chosen:
        seen = look(data, int(candidates[place]), networks)
        pictures.append(Seen(**{**seen.__dict__, "disagreement": scores[place], "why": why}))
    return Sheet(
        columns=tuple(row.name for row in results.rows),
        classes=classes.names(step),
        colors=classes.colors(step),
        pictures=tuple(pictures),
        candidates=len(candidates),
    )


def open_data(rows: Sequence[Row]) -> Prepared:
    """Open the data of a scenario by the config of one of its runs."""
    stepwise = [row for row in rows if not row.merged]
    return prepare(read_config((stepwise or list(rows))[0].runs[0].path))


def last_network(run: RunResult, classes: Sequence[str]) -> Network:
    """Load a run's network after the last step and check that its channels are these classes."""
    return network_of(RunFolder(run.path).model(len(run.steps) - 1), classes)


def network_of(path: Path, classes: Sequence[str]) -> Network:
    """Load a network and check that its channels are these classes."""
    network, info, _ = load_model(path)
    if tuple(info.classes) != tuple(classes):
        raise NacreError(f"{path} has the classes {', '.join(info.classes)}, not those of its data")
    return network


def look(data: TestingSet, at: int, networks: Sequence[Network]) -> Seen:
    """Return a test image and what networks see in it."""
    image, truth = data[at]
    masks = [_predict(network, image) for network in networks]
    pixels = image.permute(1, 2, 0).numpy()
    return Seen(data.names[at], pixels, truth.numpy(), tuple(masks), 0.0)


def paint(mask: Pixels, colors: Colors, image: Pixels, strength: float = 0.8) -> Image.Image:
    """Return a mask in its colours over the faint grey picture; untested pixels are light."""
    table = np.full((256, 3), 215, np.float32)
    table[: len(colors)] = np.asarray(colors, np.float32)
    grey = image.astype(np.float32).mean(2, keepdims=True)
    flat = table[mask]
    mixed = flat * strength + grey * (1 - strength)
    # The background's black would hide the picture, so that one is only dimmed there.
    mixed = np.where((mask == 0)[..., None], flat * 0.7 + grey * 0.3, mixed)
    return Image.fromarray(mixed.round().clip(0, 255).astype(np.uint8))


def data_uri(image: Image.Image, side: int) -> str:
    """Return a picture as text to stand in a page, its longer side at most ``side``."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    # Small pictures are shown enlarged, where the artefacts of lossy coding would be seen.
    small.save(file, "WEBP", quality=82, method=4, lossless=max(small.size) <= 128)
    return "data:image/webp;base64," + b64encode(file.getvalue()).decode("ascii")


@torch.inference_mode()
def _predict(network: Network, image: torch.Tensor) -> Pixels:
    mask: Pixels = network.predict(image[None]).argmax(1)[0].to(torch.uint8).numpy()
    return mask


def _disagreement(data: TestingSet, at: int, networks: Sequence[Network]) -> float:
    seen = look(data, at, networks)
    tested = seen.truth != IGNORED
    differ = np.zeros_like(tested)
    for mask in seen.masks[1:]:
        differ |= mask != seen.masks[0]
    return float((differ & tested).sum() / max(int(tested.sum()), 1))


def _choose(scores: Sequence[float], count: int, rng: np.random.Generator) -> list[tuple[int, str]]:
    """Return places of images and why: the largest scores, then others at random."""
    order = np.argsort(-np.asarray(scores), kind="stable")
    count = min(count, len(order))
    first = (count + 1) // 2
    others = rng.permutation(np.sort(order[first:]))[: count - first]
    chosen = [(int(at), DIFFERENT) for at in order[:first]]
    return chosen + [(int(at), RANDOM) for at in others]
