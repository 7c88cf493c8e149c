"""The choice of prediction options by held-out images.

To average with the prediction of the mirror image mostly helps and takes twice the time. To
upsample along edges helps large objects and can lose thin ones. If a config sets one of them to
`auto`, it is used if the mean IoU on held-out images grows by half a point and no class loses five.

The images of a step do not show the classes of earlier steps, so an option that an earlier step
rejected remains off. Without held-out images the options remain as they were before the step.
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

MIN_GAIN = 0.005
"""Minimum gain of the mean IoU for which an option is used."""

MAX_CLASS_LOSS = 0.05
"""Maximum loss of the IoU of a class for which an option is used."""

Ious = Sequence[float | None]


@dataclass(frozen=True)
class Choice:
    """The chosen options, and the mean IoU on held-out images without options and with these."""

    options: dict[str, bool]
    plain: float
    best: float


def open_options(images: ImagesConfig) -> list[str]:
    """Return the options that a config sets to `auto`."""
    return [name for name in ("mirror", "edges") if getattr(images, name) == "auto"]


def known_options(history: Sequence[Mapping[str, Any]]) -> dict[str, bool] | None:
    """Return for each option whether no earlier step rejected it; None if none has chosen."""
    choices = [entry["chosen"] for entry in history if entry.get("chosen")]
    names = {name for options in choices for name in options}
    return {name: all(options.get(name, True) for options in choices) for name in names} or None


def decide(step: Step, options: Mapping[str, bool]) -> None:
    """Replace `auto` in the config of a step by the chosen options."""
    images = step.config.images
    decided = {name: options.get(name, False) for name in open_options(images)}
    step.config = step.config.model_copy(update={"images": images.model_copy(update=decided)})


def choose_options(step: Step) -> Choice | None:
    """Choose the options by the held-out images of a step; return None if there are none."""
    images, known = step.config.images, known_options(step.history)
    names = open_options(images)
    if not step.held_data:
        return None
    tried = [(False, True) if known is None or known.get(name) else (False,) for name in names]
    candidates = [dict(zip(names, values, strict=True)) for values in product(*tried)]
    plain, *others = (_ious(step, images.model_copy(update=one)) for one in candidates)
    plain_mean = mean_of(plain)
    if plain_mean is None:
        return None
    best, best_mean = candidates[0], plain_mean
    for options, ious in zip(candidates[1:], others, strict=True):
        mean = mean_of(ious) or 0.0
        pairs = zip(plain, ious, strict=True)
        loses = any(a is not None and b is not None and a - b > MAX_CLASS_LOSS for a, b in pairs)
        if mean >= best_mean + MIN_GAIN and not loses:
            best, best_mean = options, mean
    return Choice(best, plain_mean, best_mean)


def _ious(step: Step, images: ImagesConfig) -> Ious:
    """Return the IoU of each class on the held-out images, predicted under a config."""
    confusion = ConfusionMatrix(step.network.num_classes, step.dist.device)
    first_new = step.growth.first_new
    batches = ((batch.images, batch.sure_targets(first_new)) for batch in step.held_out())
    evaluate(cut_predictor(step.network, images), batches, [confusion], step.dist.device)
    confusion.merge(step.dist)
    return confusion.compute()
