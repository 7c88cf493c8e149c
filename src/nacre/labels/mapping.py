"""Label mappings: from the labels of a data set to the channels of a model.

A data set labels some of the classes of a model. Its other pixels are labeled background, but they
may belong to any class that it does *not* label: the paper's background shift. A mapping stores
both, the channel of each label and the channels that its pixels may be, in training and in testing:

    pixels labeled ...                      in training              in testing
    255 (not annotated)                     labels.border            ignored
    a class that the model does not know    background               labels.unseen
    background, c is not labeled here       labels.unlabeled         may be c

A method decides whether its loss uses what may be there (`rows_for_loss`).
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
"""The number of values of a 16-bit mask."""

LabelArray = npt.NDArray[Any]
"""Targets, or the target of each label value."""

Border = Literal["background", "ignored"]


class LabelPolicy(Config):
    """The rules for labels, which differ between papers; the defaults are those of MiB's code."""

    border: Border = Field(
        "background",
        description="pixels of the ignored label (255) in training: background (the paper, for "
        "VOC's border) or ignored (the default for your own folder)",
    )
    unseen: Literal["ignored", "background"] = Field(
        "ignored",
        description="pixels of classes that are not learned yet, in testing: ignored (paper) or "
        "background (the default of `nacre learn`)",
    )
    unlabeled: Literal["hidden", "background"] = Field(
        "hidden",
        description="classes that a data set does not label, in training: hidden (its background "
        "may contain them, and the losses use that) or background (for comparison)",
        json_schema_extra=AFTER_STEP_0,
    )


@dataclass(frozen=True, eq=False)
class LabelMapping:
    """The mapping from the labels of one data set to the channels of one model.

    Attributes:
        channels: The channels of the model.
        lookup: Target of each label value, in the dtype of the model's targets.
        may_be: C,C, bool: whether a pixel with target y may belong to channel c; always true for
            c = y.
    """

    channels: Channels
    lookup: LabelArray
    may_be: npt.NDArray[np.bool_]

    @property
    def ignored(self) -> int:
        """The target of ignored pixels."""
        return WIDE_IGNORE_INDEX if is_wide(len(self.channels)) else IGNORE_INDEX

    @property
    def hidden(self) -> list[str]:
        """The classes that may be in the background of this data set."""
        pairs = zip(self.channels.names[1:], self.may_be[0, 1:], strict=True)
        return [name for name, is_hidden in pairs if is_hidden]

    def apply(self, mask: npt.NDArray[np.integer]) -> LabelArray:
        """Return the targets of a mask."""
        return map_labels(mask, self.lookup)

    def fold(self, confusion: Any) -> Any:
        """Count a predicted channel that a target may be as a prediction of that target.

        Args:
            confusion: Pixels by target and predicted channel (C,C), as an array or a tensor.
        """
        folded = confusion + 0  # a copy
        for target, channel in np.argwhere(self.may_be).tolist():
            if target != channel:
                folded[:, target] += folded[:, channel]
                folded[:, channel] = 0
        return folded


def mapping_for_training(
    channels: Channels, space: LabelSpace, policy: LabelPolicy, labeled: Mapping[int, str]
) -> LabelMapping:
    """Return the mapping of a data set that a step learns from.

    Args:
        channels: The channels of the model after the step.
        space: The meaning of the labels.
        policy: The rules for labels without a channel.
        labeled: The model's name of each class that the data set labels, by label.
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
    """Return the mapping of a data set that a model is tested on; see `mapping_for_training`.

    The labels in `never` are classes that no step learns: they are background.
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
    """Return `LabelMapping.may_be`: the background may be any class that is not labeled."""
    may_be = np.eye(len(channels), dtype=np.bool_)
    if unlabeled == "hidden":
        known = set(labeled.values())
        may_be[0, 1:] = [name not in known for name in channels.names[1:]]
    return may_be


def rows_for_loss(
    mappings: Sequence[LabelMapping], growth: Growth, *, hides_old: bool
) -> npt.NDArray[np.bool_] | None:
    """Return which channels the pixels of each data set may be, as a method's loss uses it: D,C,C.

    All losses use which *new* classes a data set hides: another data set of the step labels them,
    and the labels would contradict each other otherwise. Only some methods (`hides_old`) have a
    loss in which background may be an old class; the others take it for background, except in a
    data set that labels nothing new, which was kept from earlier steps.

    Returns:
        None if the loss assumes the same by itself for all data sets: that background may be any
        old class and no other (MiB), or that it is background (fine-tuning).
    """
    rows = np.stack([mapping.may_be for mapping in mappings])
    usual = np.eye(rows.shape[1], dtype=np.bool_)
    if hides_old:
        usual[0, : growth.num_old] = True
    else:
        is_own = ~rows[:, 0, growth.first_new :].all(1)
        rows[is_own, 0, 1 : growth.num_old] = False
    return None if (rows == usual).all() else rows


def map_labels(mask: npt.NDArray[np.integer], lookup: LabelArray) -> LabelArray:
    """Return the targets of a mask of labels."""
    # `take` is faster than indexing, and faster still if the lookup is small.
    return lookup[:256].take(mask) if mask.dtype == np.uint8 else lookup.take(mask)
