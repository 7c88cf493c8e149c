"""The background shift, shown on the data itself: what a step's labels say against the truth.

For each step the training image is taken, out of a random sample of the step's, in which the
smaller of two shares is largest: that of the step's new classes and that of what its background
hides. So both can be seen in it.
"""

from dataclasses import dataclass

import numpy as np

from nacre.data.image_io import Mask
from nacre.data.step_data import ScenarioData
from nacre.data.transforms import eval_sample
from nacre.labels.channels import ignore_value
from nacre.labels.mapping import LabelPolicy
from nacre.report.pictures.predict import UNTESTED, Color, Pixels

SAMPLE = 60
"""Images of a step among which one is chosen."""

NO_EFFECT, OLD, FUTURE = 0, 1, 2


@dataclass(frozen=True)
class Shift:
    """A training image of a step.

    Attributes:
        step: The step.
        name: The image's name.
        pixels: H,W,3.
        labels: Channel by pixel as the step's labels have it.
        truth: Channel by pixel as it is, after the last step.
        hidden: By pixel, `OLD` or `FUTURE` where the background hides such a class.
    """

    step: int
    name: str
    pixels: Pixels
    labels: Pixels
    truth: Pixels
    hidden: Pixels

    def share(self, kind: int) -> float:
        """Return the share of the step's background pixels that hide an old or future class."""
        background = self.labels == 0
        return float((self.hidden == kind).sum() / max(int(background.sum()), 1))


def background_shift(data: ScenarioData, seed: int = 0) -> list[Shift]:
    """Return one telling training image for each step."""
    return [_shift(data, step, seed) for step in range(data.num_steps)]


def _shift(data: ScenarioData, step: int, seed: int) -> Shift:
    images = data.image_lists[step]
    rng = np.random.default_rng([seed, step])
    sample = sorted(images[i] for i in rng.permutation(len(images))[:SAMPLE])
    names = [data.train_index.names[i] for i in sample]
    best = max(names, key=lambda name: _telling(data, step, _mask(data, name)))
    picture = data.source.image("train", best)
    pixels, mask = eval_sample(picture, _mask(data, best), data.config)
    classes, policy = data.scenario.classes, data.policy
    last = data.num_steps - 1
    return Shift(
        step=step,
        name=best,
        pixels=np.ascontiguousarray(pixels.transpose(1, 2, 0)),
        labels=classes.training_mapping(step, policy).apply(mask),
        truth=classes.testing_mapping(last, LabelPolicy(unseen="background")).apply(mask),
        hidden=_hidden(data, step, mask),
    )


def _mask(data: ScenarioData, name: str) -> Mask:
    return data.source.mask("train", name)


def _hidden(data: ScenarioData, step: int, mask: Mask) -> Pixels:
    classes = data.scenario.classes
    found = np.full(mask.shape, NO_EFFECT, np.uint8)
    found[np.isin(mask, classes.old(step))] = OLD
    found[np.isin(mask, classes.future(step))] = FUTURE
    return found


def _telling(data: ScenarioData, step: int, mask: Mask) -> float:
    new = np.isin(mask, list(data.scenario.classes.new(step)))
    hidden = _hidden(data, step, mask) != NO_EFFECT
    return float(min(new.mean(), hidden.mean()))


def colorize_hidden(shift: Shift, colors: tuple[Color, Color]) -> Pixels:
    """Return the picture in grey with what the background hides in two colours, old and future."""
    gray = shift.pixels.astype(np.float32).mean(2, keepdims=True).repeat(3, 2) * 0.5
    for kind, color in zip((OLD, FUTURE), colors, strict=True):
        is_kind = shift.hidden == kind
        gray[is_kind] = gray[is_kind] * 0.4 + np.asarray(color, np.float32) * 0.8
    gray[shift.labels == ignore_value(shift.labels)] = UNTESTED
    return gray.round().clip(0, 255).astype(np.uint8)
