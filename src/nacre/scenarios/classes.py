"""Classes: what the values in a data set's masks mean, and which class is which channel when.

A *label* is a value in a mask, a *channel* an output of the network. Channel 0 is always the
background: what is not labelled, or not named yet. The classes follow in the order in which
they are learnt, so that a channel never moves when the network grows. All mapping from labels
to channels is one look-up in a table of 65,536 entries (a mask has 8 or 16 bits).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nacre.errors import NacreError, did_you_mean, shown

IGNORE_INDEX = 255
"""The target of a pixel that does not count, where targets have 8 bits: up to 254 classes."""

WIDE_IGNORE_INDEX = -1
"""The same where they have 16, for more classes."""

MOST_CLASSES = 32_766

BACKGROUND = "background"

BorderRule = Literal["background", "ignored"]
UnseenRule = Literal["ignored", "background"]
UnlabeledRule = Literal["hidden", "background"]

LabelTable = npt.NDArray[Any]
"""The target by label value; its type is that of the targets."""

StepLabels = tuple[tuple[int, ...], ...]
"""The labels that each step learns."""


@dataclass(frozen=True)
class LabelSpace:
    """What the values in the masks of one data set mean.

    Attributes:
        names: Name of every class by its label, without the background and the ignored label.
        background: The label of unnamed pixels, or None where every pixel has a class.
        ignored: The label of pixels that were not annotated (VOC's border), or None.
        ignore_background_in_tests: True where the background is not a class but a lack of
            annotation (ADE20K's 0), so that it does not count in testing.
        colors: RGB of a class by its label, where the data set has its own palette.
    """

    names: Mapping[int, str]
    background: int | None = 0
    ignored: int | None = 255
    ignore_background_in_tests: bool = False
    colors: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would make two classes one, or one class two."""
        seen: dict[str, int] = {}
        for label, name in self.names.items():
            if name == BACKGROUND:
                raise NacreError(
                    f"label {label} cannot be a class named {BACKGROUND!r}, the name of channel 0; "
                    f"say that {label} is the background"
                )
            if name in seen:
                raise NacreError(
                    f"class {name!r} is named twice: for the labels {seen[name]} and {label}"
                )
            seen[name] = label
        if self.background is not None and self.background == self.ignored:
            raise NacreError(
                f"label {self.background} is both the background and the ignored value"
            )
        for special in (self.background, self.ignored):
            if special is not None and special in self.names:
                raise NacreError(
                    f"label {special} is both the class {self.names[special]!r} "
                    "and the background or the ignored value"
                )

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """The labels of the classes in the data set's own order."""
        return tuple(self.names)

    @cached_property
    def allowed(self) -> frozenset[int]:
        """Every value that may stand in a mask."""
        special = {value for value in (self.background, self.ignored) if value is not None}
        return frozenset(self.names) | special

    def label_of(self, wanted: str | int) -> int:
        """Return the label of a class given by name or by label."""
        if isinstance(wanted, int):
            if wanted in self.names and not isinstance(wanted, bool):
                return wanted
            raise NacreError(
                f"label {shown(wanted)} is not a class of this data; labels: {ranges(self.names)}"
            )
        for label, name in self.names.items():
            if name == wanted:
                return label
        hint = did_you_mean(wanted, self.names.values())
        raise NacreError(
            f"no class is named {shown(wanted)}{hint}; classes: {', '.join(self.names.values())}"
        )


@dataclass(frozen=True)
class ClassTable:
    """Which classes are learnt in which step, and so which class is which channel.

    Attributes:
        space: What the labels mean.
        steps: The labels that each step learns, in order.
    """

    space: LabelSpace
    steps: StepLabels

    def __post_init__(self) -> None:
        """Refuse empty steps, repeated classes and more channels than 16 bits can name."""
        if not self.steps:
            raise NacreError("there is no step; at least one is needed")
        learned: set[int] = set()
        for step, labels in enumerate(self.steps):
            if not labels:
                raise NacreError(f"step {step} learns no class; each step needs at least one")
            for label in labels:
                name = self.space.names[self.space.label_of(label)]
                if label in learned:
                    raise NacreError(f"class {name!r} is learnt twice; step {step} repeats it")
                learned.add(label)
        if len(learned) > MOST_CLASSES:
            raise NacreError(f"{len(learned)} classes are too many; at most {MOST_CLASSES}")

    def new(self, step: int) -> tuple[int, ...]:
        """Labels learnt in this step."""
        return self.steps[step]

    def old(self, step: int) -> tuple[int, ...]:
        """Labels learnt before this step."""
        return tuple(label for labels in self.steps[:step] for label in labels)

    def seen(self, step: int) -> tuple[int, ...]:
        """Labels learnt up to and with this step, in channel order (channel 1 first)."""
        return self.old(step) + self.new(step)

    def future(self, step: int) -> tuple[int, ...]:
        """Labels learnt after this step."""
        return tuple(label for labels in self.steps[step + 1 :] for label in labels)

    def channels(self, step: int) -> int:
        """How many channels the network has in this step, background included."""
        return 1 + len(self.seen(step))

    def old_channels(self, step: int) -> int:
        """How many channels it had before this step; 0 in step 0, where nothing is known."""
        return self.channels(step - 1) if step else 0

    def names(self, step: int) -> tuple[str, ...]:
        """Class name by channel."""
        return (BACKGROUND, *(self.space.names[label] for label in self.seen(step)))

    def colors(self, step: int) -> tuple[tuple[int, int, int], ...]:
        """RGB by channel: the data set's palette, else colours spread over the hues."""
        own = self.space.colors
        spread = distinct_colors(self.channels(step))
        background = self.space.background
        return (
            (0, 0, 0) if background is None else own.get(background, (0, 0, 0)),
            *(own.get(label, spread[i + 1]) for i, label in enumerate(self.seen(step))),
        )

    def training_table(self, step: int, border: BorderRule, *, at: int | None = None) -> LabelTable:
        """Label -> channel in training: new classes by channel, all else is background.

        Old and future classes are background: that is the background shift. The paper makes
        the border background as well; ``border="ignored"`` leaves it out of the losses.

        Args:
            step: Whose classes are labelled.
            border: What pixels of the ignored label are.
            at: The step that learns from them, if it is a later one: its targets may be wider.
        """
        table, ignored = empty_table(self.channels(step if at is None else at))
        start = 1 + len(self.old(step))
        for channel, label in enumerate(self.new(step), start=start):
            table[label] = channel
        if border == "ignored" and self.space.ignored is not None:
            table[self.space.ignored] = ignored
        return table

    def testing_table(self, step: int, unseen: UnseenRule) -> LabelTable:
        """Label -> channel in testing: every known class by channel, the border is ignored.

        Classes not seen yet are ignored as in the paper, or background as in later papers.
        """
        table, ignored = empty_table(self.channels(step))
        table[:] = ignored if unseen == "ignored" else 0
        for channel, label in enumerate(self.seen(step), start=1):
            table[label] = channel
        background = self.space.background
        # What no step ever names (a class outside the task) is background by definition.
        for label in set(self.space.names) - set(self.seen(len(self.steps) - 1)):
            table[label] = 0
        if background is not None:
            table[background] = ignored if self.space.ignore_background_in_tests else 0
        if self.space.ignored is not None:
            table[self.space.ignored] = ignored
        return table

    def merged(self) -> "ClassTable":
        """All classes in one step, for joint training."""
        return ClassTable(self.space, (self.seen(len(self.steps) - 1),))


@dataclass(frozen=True)
class NamedTask:
    """A task whose class lists are published, not derived from its numbers.

    Attributes:
        steps: The labels of each step.
        partition_as: The finer steps that the partition rule is run on, if not on `steps` itself.
    """

    steps: StepLabels
    partition_as: StepLabels | None = None


def empty_table(channels: int) -> tuple[LabelTable, int]:
    """Return a table of background for so many channels, and what ignores a pixel in it."""
    if channels <= IGNORE_INDEX:
        return np.zeros(65536, np.uint8), IGNORE_INDEX
    return np.zeros(65536, np.int16), WIDE_IGNORE_INDEX


def ignore_value(targets: Any, wanted: int = IGNORE_INDEX) -> int:
    """Return what ignores a pixel in targets of this type, unless another value is wanted."""
    is_wide = str(targets.dtype).removeprefix("torch.") == "int16"
    return WIDE_IGNORE_INDEX if is_wide and wanted == IGNORE_INDEX else wanted


def map_labels(mask: npt.NDArray[np.integer], table: LabelTable) -> LabelTable:
    """Map a mask of labels to channels by one table look-up."""
    # `take` is faster than indexing, and faster still from a table of the bytes alone.
    return table[:256].take(mask) if mask.dtype == np.uint8 else table.take(mask)


def distinct_colors(count: int) -> tuple[tuple[int, int, int], ...]:
    """Return colours by channel, black first, the others by golden steps through the hues."""
    from colorsys import hsv_to_rgb

    colors: list[tuple[int, int, int]] = [(0, 0, 0)]
    for i in range(count - 1):
        # The golden ratio keeps any number of neighbours apart; brightness takes turns.
        rgb = hsv_to_rgb((i * 0.618034 + 0.55) % 1, 0.75, (0.95, 0.7)[i % 2])
        colors.append((round(rgb[0] * 255), round(rgb[1] * 255), round(rgb[2] * 255)))
    return tuple(colors[:count])


def ranges(values: Iterable[int]) -> str:
    """Write 1, 2, 3, 7 as ``1..3, 7``."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(f"{a}..{b}" if b > a else f"{a}" for a, b in runs)


def resolve_labels(space: LabelSpace, wanted: Sequence[str | int]) -> tuple[int, ...]:
    """Return labels for classes given by name or label."""
    return tuple(space.label_of(one) for one in wanted)
