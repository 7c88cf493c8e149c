"""Channels: the outputs of a network, and how one step adds new ones.

Channel 0 is always the background. The classes follow in the order in which they are learned, so a
channel never moves when the network grows. A pixel's *target* is its channel number, or the ignored
value. Targets and predictions have 8 bits, or 16 if there are more channels than 8 bits can store:
only `target_dtype` decides that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from nacre.errors import NacreError
from nacre.labels.space import BACKGROUND

IGNORE_INDEX = 255
"""The ignored value of 8-bit targets."""

WIDE_IGNORE_INDEX = -1
"""The ignored value of 16-bit targets."""

MAX_CHANNELS = 32_767
"""The number of non-negative values of a signed 16-bit integer, less one."""

Color = tuple[int, int, int]


def is_wide(num_channels: int) -> bool:
    """Return whether targets need 16 bits."""
    return num_channels > IGNORE_INDEX


def target_dtype(num_channels: int) -> Literal["uint8", "int16"]:
    """Return the dtype of targets and predictions, by its name in NumPy and torch."""
    return "int16" if is_wide(num_channels) else "uint8"


def ignore_value(targets: Any, value: int = IGNORE_INDEX) -> int:
    """Return the ignored value for the dtype of targets, or another value if the caller has one."""
    wide = str(targets.dtype).removeprefix("torch.") == "int16"
    return WIDE_IGNORE_INDEX if wide and value == IGNORE_INDEX else value


@dataclass(frozen=True)
class Channels:
    """The channels of a model.

    Attributes:
        names: Class name by channel; the background is the first.
        colors: RGB color by channel.
        step_of: Step that learned each channel; the background belongs to step 0.
    """

    names: tuple[str, ...]
    colors: tuple[Color, ...]
    step_of: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse more channels than 16 bits can store, and inconsistent values."""
        if len(self.names) > MAX_CHANNELS:
            raise NacreError(
                f"{len(self.names) - 1:,} classes are too many; at most {MAX_CHANNELS - 1:,}"
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
        """The number of channels that each step added; the background counts in step 0."""
        return [self.step_of.count(step) for step in sorted(set(self.step_of))]

    def learned_in(self, step: int) -> tuple[str, ...]:
        """Return the classes of a step."""
        pairs = zip(self.names, self.step_of, strict=True)
        return tuple(name for name, own_step in pairs if own_step == step and name != BACKGROUND)

    def extended(self, new: Sequence[str], own: Mapping[str, Color]) -> "Channels":
        """Return the channels after one more step; `own` has the data's colors of classes."""
        names = (*self.names, *new)
        return Channels(
            names,
            tuple(extend_colors(self.colors, names, own)),
            (*self.step_of, *[max(self.step_of) + 1] * len(new)),
        )


def first_channels(new: Sequence[str], own: Mapping[str, Color]) -> Channels:
    """Return the channels after a first step; `own` has the data's colors of classes."""
    names = (BACKGROUND, *new)
    colors = extend_colors([own.get(BACKGROUND, (0, 0, 0))], names, own)
    return Channels(names, tuple(colors), (0,) * len(names))


@dataclass(frozen=True)
class Growth:
    """The channels that one step adds to a model, always after the old ones.

    Attributes:
        num_old: Number of channels before the step, including the background; 0 in step 0.
        origins: By channel, the channel that it splits from: itself for an old channel, the
            background or a parent class for a new one.
    """

    num_old: int
    origins: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that old channels keep their place and new ones split from old ones."""
        first = self.first_new
        assert self.origins[:first] == tuple(range(first)), (self.num_old, self.origins)
        assert all(0 <= origin < first for origin in self.origins[first:]), self.origins

    @property
    def first_new(self) -> int:
        """The first channel of a new class: 1 in step 0, where the background is new as well."""
        return max(1, self.num_old)

    @property
    def num_new(self) -> int:
        """The number of channels that the step adds: in step 0 all of them."""
        return len(self.origins) - self.num_old

    @property
    def new_origins(self) -> tuple[int, ...]:
        """The origins of the new classes."""
        return self.origins[self.first_new :]


def from_background(num_old: int, num_channels: int) -> Growth:
    """Return the growth of a step in which all new classes split from the background."""
    first = max(1, num_old)
    return Growth(num_old, (*range(first), *[0] * (num_channels - first)))


def distinct_colors(count: int) -> tuple[Color, ...]:
    """Return colors by channel: black, then hues at steps of the golden ratio."""
    from colorsys import hsv_to_rgb

    colors: list[Color] = [(0, 0, 0)]
    for i in range(count - 1):
        # The golden ratio keeps neighbors apart, however many there are; the brightness alternates.
        rgb = hsv_to_rgb((i * 0.618034 + 0.55) % 1, 0.75, (0.95, 0.7)[i % 2])
        colors.append((round(rgb[0] * 255), round(rgb[1] * 255), round(rgb[2] * 255)))
    return tuple(colors[:count])


def extend_colors(
    kept: Sequence[Color], names: Sequence[str], own: Mapping[str, Color]
) -> list[Color]:
    """Return a color for each channel.

    The first channels keep the colors in `kept`. A new channel gets the color that the data give
    its class (`own`) unless another channel has it already, or else a distinct one.
    """
    colors, taken = list(kept), set(kept)
    reserved = {own[name] for name in names[len(kept) :] if name in own}
    spread = distinct_colors(len(names) + len(kept) + len(reserved))
    free = (color for color in spread if color not in taken and color not in reserved)
    for channel, name in enumerate(names[len(kept) :], start=len(kept)):
        color = own.get(name)
        if color is None or color in taken:
            color = next(free, spread[channel])
        colors.append(color)
        taken.add(color)
    return colors
