"""Label mappings: which channel a label becomes, and which channel a pixel of it may in truth be.

A data set labels some of the classes that a model has channels for. Its other pixels are labeled
background, and in truth they may be any class that it does *not* label: the paper's background
shift. A mapping says both, for training and for testing, by one set of rules (`LabelPolicy`):

    pixels labeled ...                      in training              in testing
    255 (not annotated)                     labels.border            ignored
    a class that the model does not know    background               labels.unseen
    background, c is not labeled here       labels.unlabeled         may be c

The mapping says what may be; the method says whether its loss uses it (`rows_for_loss`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nacre.labels.channels import (
    IGNORE_INDEX,
    WIDE_IGNORE_INDEX,
    Channels,
    Growth,
    is_wide,
    target_dtype,
)
from nacre.labels.space import LabelSpace
from nacre.utils.config import AFTER_STEP_0, Config

NUM_LABELS = 65_536
"""Values that a mask of 16 bits can hold."""

LabelArray = npt.NDArray[Any]
"""The target by label value; its type is that of the targets."""

Border = Literal["background", "ignored"]


class LabelPolicy(Config):
    """The points on labels in which papers differ; the defaults are MiB's released code's."""

    border: Border = Field(
        "background",
        description="pixels of the ignored label (255) in training: background, as the paper makes "
        "VOC's border, or ignored, which is the default for a folder of one's own",
    )
    unseen: Literal["ignored", "background"] = Field(
        "ignored",
        description="classes not learned yet in testing: ignored (paper), or background, which is "
        "the default of `nacre learn`",
    )
    unlabeled: Literal["hidden", "background"] = Field(
        "hidden",
        description="classes that a data set does not label, in training: hidden in its "
        "background, which the losses then know, or background, as a plain cross-entropy takes "
        "them (to compare)",
        json_schema_extra=AFTER_STEP_0,
    )


@dataclass(frozen=True, eq=False)
class LabelMapping:
    """The mapping from the labels of one data set to the channels of one model.

    Attributes:
        channels: Of the model.
        lookup: Target by label value, in the type of the model's targets.
        may_be: C,C, bool: whether a pixel whose target is y may in truth be c; itself always.
    """

    channels: Channels
    lookup: LabelArray
    may_be: npt.NDArray[np.bool_]

    @property
    def ignored(self) -> int:
        """The target of pixels that do not count."""
        return WIDE_IGNORE_INDEX if is_wide(len(self.channels)) else IGNORE_INDEX

    @property
    def hidden(self) -> list[str]:
        """The classes that may be inside this data set's background."""
        pairs = zip(self.channels.names[1:], self.may_be[0, 1:], strict=True)
        return [name for name, hides in pairs if hides]

    def apply(self, mask: npt.NDArray[np.integer]) -> LabelArray:
        """Return the targets of a mask."""
        return map_labels(mask, self.lookup)

    def fold(self, confusion: Any) -> Any:
        """Count a prediction of what a target may in truth be as a prediction of that target.

        Args:
            confusion: C,C, an array or a tensor: pixels by target and predicted channel.
        """
        folded = confusion + 0  # a copy, whosever array it is
        for target, channel in np.argwhere(self.may_be).tolist():
            if target != channel:
                folded[:, target] += folded[:, channel]
                folded[:, channel] = 0
        return folded


def mapping_for_training(
    channels: Channels, space: LabelSpace, policy: LabelPolicy, labeled: Mapping[int, str]
) -> LabelMapping:
    """Return how the labels of a data set that a step learns from are seen.

    What is not labeled here is background: that is the background shift.

    Args:
        channels: Of the model after the step.
        space: What the data's labels mean; names may be the data's own.
        policy: What to do with what has no channel.
        labeled: The model's name of each class that the data label, by label.
    """
    lookup = np.zeros(NUM_LABELS, target_dtype(len(channels)))
    mapping = LabelMapping(channels, lookup, _may_be(channels, labeled, policy.unlabeled))
    for label, name in labeled.items():
        lookup[label] = channels.of.get(name, 0)
    if policy.border == "ignored" and space.ignored is not None:
        lookup[space.ignored] = mapping.ignored
    return mapping


def mapping_for_tests(
    channels: Channels,
    space: LabelSpace,
    policy: LabelPolicy,
    labeled: Mapping[int, str],
    never: Collection[int] = (),
) -> LabelMapping:
    """Return how the labels of a data set that a model is tested on are seen.

    Args:
        channels: Of the model.
        space: What the data's labels mean; names may be the data's own.
        policy: What to do with what has no channel.
        labeled: The model's name of each class that the data label, by label.
        never: Labels of classes that no step ever learns: they are background by definition.
    """
    lookup = np.zeros(NUM_LABELS, target_dtype(len(channels)))
    mapping = LabelMapping(channels, lookup, _may_be(channels, labeled, "hidden"))
    lookup[:] = mapping.ignored if policy.unseen == "ignored" else 0
    for label, name in labeled.items():
        if name in channels.of:
            lookup[label] = channels.of[name]
    lookup[list(never)] = 0
    if space.background is not None:
        lookup[space.background] = mapping.ignored if space.ignore_background_in_tests else 0
    if space.ignored is not None:
        lookup[space.ignored] = mapping.ignored
    return mapping


def _may_be(
    channels: Channels, labeled: Mapping[int, str], unlabeled: Literal["hidden", "background"]
) -> npt.NDArray[np.bool_]:
    """Return what may be what: every class that is not labeled may be inside the background."""
    found = np.eye(len(channels), dtype=np.bool_)
    if unlabeled == "hidden":
        known = set(labeled.values())
        found[0, 1:] = [name not in known for name in channels.names[1:]]
    return found


def rows_for_loss(
    mappings: Sequence[LabelMapping], growth: Growth, *, hides_old: bool
) -> npt.NDArray[np.bool_] | None:
    """Return what a method's loss is told of the data sets of a step, D,C,C.

    Every loss is told which *new* classes a data set hides, because another one of the same step
    labels them: without that their labels would contradict each other. That old classes hide in
    the step's own data only those methods are told whose loss lets background be an old class; the
    others take it for background. A data set that labels nothing new was kept from earlier steps.

    Args:
        mappings: One per data set.
        growth: What the step adds.
        hides_old: Whether the method's loss lets background be an old class.

    Returns:
        None where it is in all data sets what the method's loss assumes by itself: for MiB that
        background may be any old class and no other, for fine-tuning that it is background.
    """
    rows = np.stack([one.may_be for one in mappings])
    usual = np.eye(rows.shape[1], dtype=np.bool_)
    if hides_old:
        usual[0, : growth.num_old] = True
    else:
        is_own = ~rows[:, 0, growth.first_new :].all(1)
        rows[is_own, 0, 1 : growth.num_old] = False
    return None if (rows == usual).all() else rows


def map_labels(mask: npt.NDArray[np.integer], lookup: LabelArray) -> LabelArray:
    """Map a mask of labels to targets by one look-up."""
    # `take` is faster than indexing, and faster still from a lookup of the bytes alone.
    return lookup[:256].take(mask) if mask.dtype == np.uint8 else lookup.take(mask)
