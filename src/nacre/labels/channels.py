"""Channels: which class is which output of a network, and what one step adds to them.

Channel 0 is always the background. The classes follow in the order in which they are learned, so
that a channel never moves when the network grows. A pixel's *target* is its channel number; one
more number says that it does not count. Both have 8 bits where that is enough, else 16:
`target_dtype` is the only place that decides it, for targets and for predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from nacre.errors import NacreError
from nacre.labels.space import BACKGROUND

IGNORE_INDEX = 255
"""The target of a pixel that does not count, where targets have 8 bits."""

WIDE_IGNORE_INDEX = -1
"""The same where they have 16."""

MOST_CHANNELS = 32_767
"""What 16 bits with a sign can tell apart."""

Color = tuple[int, int, int]


def is_wide(num_channels: int) -> bool:
    """Return whether channel numbers and the ignored one need 16 bits."""
    return num_channels > IGNORE_INDEX


def target_dtype(num_channels: int) -> Literal["uint8", "int16"]:
    """Return the type of targets and predictions, by the name that NumPy and torch have for it."""
    return "int16" if is_wide(num_channels) else "uint8"


def ignore_value(targets: Any, wanted: int = IGNORE_INDEX) -> int:
    """Return what ignores a pixel in targets of this type, unless another value is wanted."""
    wide = str(targets.dtype).removeprefix("torch.") == "int16"
    return WIDE_IGNORE_INDEX if wide and wanted == IGNORE_INDEX else wanted


@dataclass(frozen=True)
class Channels:
    """The channels of a model.

    Attributes:
        names: Class name by channel, the background first.
        colors: RGB by channel.
        step_of: The step that learned each channel; the background is of step 0.
    """

    names: tuple[str, ...]
    colors: tuple[Color, ...]
    step_of: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse more channels than 16 bits can name, and what only a programmer gets wrong."""
        if len(self.names) > MOST_CHANNELS:
            raise NacreError(
                f"{len(self.names) - 1:,} classes are too many; at most {MOST_CHANNELS - 1:,}"
            )
        assert self.names[:1] == (BACKGROUND,), self.names[:1]
        assert len(set(self.names)) == len(self.names), "a class has one channel"
        assert len(self.colors) == len(self.step_of) == len(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def of(self) -> dict[str, int]:
        """The channel of each class by name."""
        return {name: channel for channel, name in enumerate(self.names)}

    @property
    def per_step(self) -> list[int]:
        """The number of channels that each step added, the background in step 0."""
        return [self.step_of.count(step) for step in sorted(set(self.step_of))]

    def learned_in(self, step: int) -> tuple[str, ...]:
        """Return the classes of a step."""
        pairs = zip(self.names, self.step_of, strict=True)
        return tuple(name for name, own in pairs if own == step and name != BACKGROUND)

    def extended(self, new: Sequence[str], own: Mapping[str, Color]) -> "Channels":
        """Return the channels with those of one more step.

        Args:
            new: The classes that it learns.
            own: Colors that the data give to classes.
        """
        names = (*self.names, *new)
        return Channels(
            names,
            tuple(extend_colors(self.colors, names, own)),
            (*self.step_of, *[max(self.step_of) + 1] * len(new)),
        )


def first_channels(new: Sequence[str], own: Mapping[str, Color]) -> Channels:
    """Return the channels of a first step.

    Args:
        new: The classes that it learns.
        own: Colors that the data give to classes.
    """
    names = (BACKGROUND, *new)
    colors = extend_colors([own.get(BACKGROUND, (0, 0, 0))], names, own)
    return Channels(names, tuple(colors), (0,) * len(names))


@dataclass(frozen=True)
class Growth:
    """The channels that one step adds to a model: new ones, always after the old.

    Attributes:
        num_old: Channels that were there before the step, the background included; 0 in step 0.
        origins: By channel, the one that it splits from: itself for an old channel, the background
            or a parent class for a new one.
    """

    num_old: int
    origins: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that old channels stay what they are and new ones come from old ones."""
        first = self.first_new
        assert self.origins[:first] == tuple(range(first)), (self.num_old, self.origins)
        assert all(0 <= one < first for one in self.origins[first:]), (self.num_old, self.origins)

    @property
    def first_new(self) -> int:
        """The first channel of a new class: 1 in step 0, where the background is new as well."""
        return max(1, self.num_old)

    @property
    def num_new(self) -> int:
        """The number of channels that the step adds; in step 0 all of them."""
        return len(self.origins) - self.num_old

    @property
    def new_origins(self) -> tuple[int, ...]:
        """The origins of the new classes."""
        return self.origins[self.first_new :]


def from_background(num_old: int, num_channels: int) -> Growth:
    """Return the growth of a step whose new classes all split from the background."""
    first = max(1, num_old)
    return Growth(num_old, (*range(first), *[0] * (num_channels - first)))


def distinct_colors(count: int) -> tuple[Color, ...]:
    """Return colors by channel, black first, the others by golden steps through the hues."""
    from colorsys import hsv_to_rgb

    colors: list[Color] = [(0, 0, 0)]
    for i in range(count - 1):
        # The golden ratio keeps any number of neighbors apart; brightness takes turns.
        rgb = hsv_to_rgb((i * 0.618034 + 0.55) % 1, 0.75, (0.95, 0.7)[i % 2])
        colors.append((round(rgb[0] * 255), round(rgb[1] * 255), round(rgb[2] * 255)))
    return tuple(colors[:count])


def extend_colors(
    kept: Sequence[Color], names: Sequence[str], own: Mapping[str, Color]
) -> list[Color]:
    """Return colors by channel: those that are kept, then the data's own, else spread ones.

    Args:
        kept: Colors of the first channels.
        names: Class name by channel.
        own: Colors that the data give to classes; one that is taken is not given twice.
    """
    colors, taken = list(kept), set(kept)
    given = {own[name] for name in names[len(kept) :] if name in own}
    spread = distinct_colors(len(names) + len(kept) + len(given))
    free = (one for one in spread if one not in taken and one not in given)
    for channel, name in enumerate(names[len(kept) :], start=len(kept)):
        color = own.get(name)
        if color is None or color in taken:
            color = next(free, spread[channel])
        colors.append(color)
        taken.add(color)
    return colors
