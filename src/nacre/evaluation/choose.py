"""The choice of how a model sees images, by images that no update was made from.

To see the mirror image, too, mostly helps, and takes twice the time. To upsample along edges helps
large things and can lose thin ones. Where a config leaves one of them to `auto`, it is kept if the
mean IoU on held-out images grows by half a point and no class of them loses five.

The images of a step do not show the classes of earlier ones, so what those refused stays refused.
Where no image is held out, nothing is chosen: the model sees images as before the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from nacre.data.transforms import ImagesConfig
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.metrics import ConfusionMatrix, mean_of
from nacre.evaluation.predictor import cut_predictor
from nacre.methods import Step

GAIN = 0.005
"""Of the mean IoU: an option that gains less is not worth its time."""

LOSS = 0.05
"""Of the IoU of a class: an option that loses more is refused."""

Ious = Sequence[float | None]


@dataclass(frozen=True)
class Chosen:
    """The choice of held-out images, and the mean IoU on them with neither option and with it."""

    options: dict[str, bool]
    plain: float
    best: float


def open_options(images: ImagesConfig) -> list[str]:
    """Return which options a config leaves to held-out images."""
    return [name for name in ("mirror", "edges") if getattr(images, name) == "auto"]


def known_options(history: Sequence[Mapping[str, Any]]) -> dict[str, bool] | None:
    """Return which options no earlier step refused; None if no step has chosen."""
    chosen = [entry["chosen"] for entry in history if entry.get("chosen")]
    names = {name for one in chosen for name in one}
    return {name: all(one.get(name, True) for one in chosen) for name in names} or None


def decide(step: Step, options: Mapping[str, bool]) -> None:
    """Put what was chosen in place of what the config of a step leaves open."""
    images = step.config.images
    decided = {name: options.get(name, False) for name in open_options(images)}
    step.config = step.config.model_copy(update={"images": images.model_copy(update=decided)})


def choose_options(step: Step) -> Chosen | None:
    """Try the options of a step on its held-out images; None if there are none."""
    images, known = step.config.images, known_options(step.history)
    names = open_options(images)
    if not step.held_data:
        return None
    tried = [(False, True) if known is None or known.get(name) else (False,) for name in names]
    ways = [dict(zip(names, way, strict=True)) for way in product(*tried)]
    plain, *others = (_ious(step, images.model_copy(update=way)) for way in ways)
    before = mean_of(plain)
    if before is None:
        return None
    best, found = ways[0], before
    for way, ious in zip(ways[1:], others, strict=True):
        mean = mean_of(ious) or 0.0
        pairs = zip(plain, ious, strict=True)
        loses = any(a is not None and b is not None and a - b > LOSS for a, b in pairs)
        if mean >= found + GAIN and not loses:
            best, found = way, mean
    return Chosen(best, before, found)


def _ious(step: Step, images: ImagesConfig) -> Ious:
    """Return the IoU of each class on the held-out images, seen in a way."""
    confusion = ConfusionMatrix(step.network.num_classes, step.dist.device)
    first_new = step.growth.first_new
    batches = ((batch.images, batch.sure_targets(first_new)) for batch in step.held_out())
    evaluate(cut_predictor(step.network, images), batches, [confusion], step.dist.device)
    confusion.merge(step.dist)
    return confusion.compute()
