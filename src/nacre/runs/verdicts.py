"""Verdicts: a word for every class after a step, and the likely reason of a bad one.

The limits are conventions: a figure of one step is a hint.
"""

import math
from collections.abc import Mapping
from statistics import median
from typing import Any, Literal

from nacre.data.step_data import LearnData

Word = Literal["learned", "weak", "not learned", "kept", "lost", "not tested"]

MIN_IOU_LEARNED, MIN_IOU_GOOD = 0.05, 0.3
"""A new class is not learned below the first IoU, and weak below the second."""
MAX_LOSS = 0.2
"""Fraction of its IoU that an old class may lose and still be kept."""
MIN_AGREEMENT = 0.5
"""Agreement that an old class without test images needs to be kept."""
MIN_IMAGES = 5
MIN_FRACTION = 0.01
"""A class is rare if it covers less of the pixels of its training images."""


def judge(
    data: LearnData,
    stride: int,
    iou: Mapping[str, Any],
    before: Mapping[str, Any],
    agreement: Mapping[str, Any],
    has_updates: bool = True,
) -> dict[str, dict[str, str]]:
    """Return a word for every class of a model, and the likely reason if it is bad.

    Args:
        data: The data of the step.
        stride: Image pixels per score of the network.
        iou: The IoU of every tested class.
        before: The start model's.
        agreement: The agreement of old classes.
        has_updates: True if the step made updates, so that more of them may help.
    """
    verdicts = {}
    for name in data.channels.names[1:]:
        if name in data.new:
            word, reason = _judge_new(iou.get(name)), ""
            if word in ("weak", "not learned"):
                reason = _likely_reason(data, name, stride, has_updates)
            elif word == "not tested":
                reason = "no test image contains it: list some in val.txt"
        else:
            word, reason = _judge_old(iou.get(name), before.get(name), agreement.get(name))
        verdicts[name] = {"word": word, "reason": reason}
    return verdicts


def _judge_new(iou: float | None) -> Word:
    if iou is None:
        return "not tested"
    return "not learned" if iou < MIN_IOU_LEARNED else "weak" if iou < MIN_IOU_GOOD else "learned"


def _judge_old(
    iou: float | None, before: float | None, agreement: float | None
) -> tuple[Word, str]:
    if iou is not None and before is not None:
        is_kept = before - iou <= max(MIN_IOU_LEARNED, MAX_LOSS * before)
        return ("kept", "") if is_kept else ("lost", "a larger weight of the method keeps more")
    if agreement is not None and agreement >= MIN_AGREEMENT:
        return "kept", "judged by agreement only, because no test image contains it"
    if agreement is not None:
        # Where the old model took new classes for it, a step that learns them lowers the agreement.
        return "not tested", (
            f"its agreement is {agreement:.0%}: it was lost, or the new images hardly contain it; "
            "give test images that contain it (--test)"
        )
    return "not tested", "no image contains it: give a folder with it (--test)"


def _likely_reason(data: LearnData, name: str, stride: int, has_updates: bool) -> str:
    """Return the likely reason why a class was not learned, and what to try."""
    pixels = _count_pixels(data, name)
    if len(pixels) < MIN_IMAGES:
        return f"only {len(pixels)} training images contain it: label more"
    width = median(_width(data, count, total) for count, total in pixels)
    if width < 1.5 * stride:
        return (
            f"it is about {width:.0f} pixels wide, but the network has one score every {stride}: "
            f"try --set images.crop_size={2 * data.config.crop_size}, which takes longer"
        )
    updates = ", or try more updates (--set train.iterations=…)" if has_updates else ""
    fraction = sum(count for count, _ in pixels) / sum(total for _, total in pixels)
    if fraction < MIN_FRACTION:
        return f"it covers only {fraction:.1%} of the pixels: label more{updates}"
    return f"label more images{updates}"


def _count_pixels(data: LearnData, name: str) -> list[tuple[int, int]]:
    """Return the pixels of a class and all pixels of each training image that contains it."""
    pixels = []
    for dataset in data.sets:
        labels = [label for label, own in dataset.names.items() if own == name]
        for counts in dataset.train_index.pixel_counts:
            count = sum(counts.get(label, 0) for label in labels)
            if count:
                pixels.append((count, sum(counts.values())))
    return pixels


def _width(data: LearnData, count: int, total: int) -> float:
    """Return the side of a square with the area of a class, at the network's scale."""
    if data.config.predict_mode != "crop":
        return math.sqrt(count)
    return data.config.crop_size * math.sqrt(count / total)
