"""A word for every class after a step, and the likely reason of a bad one.

The limits are conventions and no more: a figure of one step is a hint.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

from nacre.data.step_data import LearnData

Word = Literal["learned", "weak", "not learned", "kept", "lost", "not tested"]

NO_EFFECT, LITTLE = 0.05, 0.3
"""IoU below which a new class is not learned, and below which it is weak."""

LOST = 0.2
"""Share of its IoU that an old class may lose and still be kept."""

AGREES = 0.5
"""Agreement from which on an old class without test images is kept."""

FEW_IMAGES = 5
RARE = 0.01
"""Share of the pixels of the training images below which a class is rare."""


def judge(
    data: LearnData,
    stride: int,
    iou: dict[str, Any],
    before: dict[str, Any],
    agreement: Any,
    has_updates: bool = True,
) -> dict[str, dict[str, str]]:
    """Return a word for every class of a model, and the likely reason of a bad one.

    Args:
        data: Of the step.
        stride: Pixels of an image for a score of the network.
        iou: Of every class that was tested.
        before: The same of the start model.
        agreement: By class the share of what the start model saw that is still seen, or None.
        has_updates: Whether the step made updates, so that more of them may help.
    """
    found = {}
    for name in data.channels.names[1:]:
        now = iou.get(name)
        if name in data.new:
            word, reason = _of_new(now), ""
            if word in ("weak", "not learned"):
                reason = _reason(data, name, stride, has_updates)
            elif word == "not tested":
                reason = "no test image contains it: list some in val.txt"
        else:
            word, reason = _of_old(now, before.get(name), (agreement or {}).get(name))
        found[name] = {"word": word, "reason": reason}
    return found


def _of_new(now: float | None) -> Word:
    if now is None:
        return "not tested"
    return "not learned" if now < NO_EFFECT else "weak" if now < LITTLE else "learned"


def _of_old(now: float | None, was: float | None, agreement: float | None) -> tuple[Word, str]:
    if now is not None and was is not None:
        is_kept = was - now <= max(NO_EFFECT, LOST * was)
        return ("kept", "") if is_kept else ("lost", "a larger weight of the method keeps more")
    if agreement is not None:
        if agreement >= AGREES:
            return "kept", "judged by agreement only, because no test image contains it"
        return "lost", "judged by agreement only; give test images that contain it (--test)"
    return "not tested", "no image contains it: give a folder with it (--test)"


def _reason(data: LearnData, name: str, stride: int, has_updates: bool) -> str:
    """Return the likely reason why a class was not learned, and what to try next."""
    pixels = list(_pixels(data, name))
    updates = ", or try more updates (--set train.iterations=…)" if has_updates else ""
    if len(pixels) < FEW_IMAGES:
        return f"only {len(pixels)} training images contain it: label more"
    width = median(_width(data, *one) for one in pixels)
    if width < 1.5 * stride:
        crop = data.config.crop_size
        return (
            f"it is about {width:.0f} pixels wide, but the network has one score every {stride}: "
            f"try --set images.crop_size={2 * crop}, which takes longer"
        )
    share = sum(held for held, _ in pixels) / sum(total for _, total in pixels)
    if share < RARE:
        return f"it covers only {share:.1%} of the pixels: label more{updates}"
    return f"label more images{updates}"


def _pixels(data: LearnData, name: str) -> Sequence[tuple[int, int]]:
    """Return the pixels of a class and all pixels of every training image that has it."""
    found = []
    for one in data.sets:
        labels = [label for label, own in one.names.items() if own == name]
        for counts in one.train_index.pixel_counts:
            held = sum(counts.get(label, 0) for label in labels)
            if held:
                found.append((held, sum(counts.values())))
    return found


def _width(data: LearnData, held: int, total: int) -> float:
    """Return the side of a square as large as a class, at the scale that the network sees."""
    if data.config.predict_mode != "crop":
        return math.sqrt(held)
    return data.config.crop_size * math.sqrt(held / total)
