"""From the classes of an export to labels: 0 is background, 1 to n the classes, 255 does not count.

A class is known by its name alone. The numbers that tools give their classes begin at 0 or at 1,
have gaps or are texts, and never become labels.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nacre.errors import NacreError, did_you_mean
from nacre.importers.masks import BACKGROUND, IGNORED
from nacre.importers.problems import brief, some
from nacre.importers.reading import Color, Reading, clean_name
from nacre.labels.channels import distinct_colors

BACKGROUND_NAME = "background"

_LARGEST_8_BIT = 254
_LARGEST_16_BIT = 65534


@dataclass(frozen=True)
class ClassOptions:
    """What a user wants of the classes.

    Attributes:
        classes: The only ones to import, in this order; all if empty.
        ignore: Those whose pixels do not count; ``background`` may be one.
        rename: New name by name; a new name may be that of another class.
    """

    classes: Sequence[str] = ()
    ignore: Sequence[str] = ()
    rename: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Labels:
    """What the values in the masks to write mean.

    Attributes:
        names: Class name by label; label 1 is the first.
        colors: Color by label, background first.
        by_class: Label by the class number of the reading.
        ignored: The label of what does not count.
        has_background: False where no pixel can be background.
    """

    names: tuple[str, ...]
    colors: tuple[Color, ...]
    by_class: npt.NDArray[np.uint16]
    ignored: int
    has_background: bool

    @property
    def is_wide(self) -> bool:
        """Whether labels need 16 bits."""
        return len(self.names) > _LARGEST_8_BIT

    @property
    def dtype(self) -> type[np.uint8] | type[np.uint16]:
        """What a mask is stored as."""
        return np.uint16 if self.is_wide else np.uint8


def make_labels(reading: Reading, options: ClassOptions) -> Labels:
    """Number the classes.

    Raises:
        NacreError: Two are spelled almost alike, or a name that the user gave is not there.
    """
    final = _final_names(reading, options.rename or {})
    _check_alike(final)
    names = list(dict.fromkeys(name for number, name in final.items() if number > IGNORED))
    if reading.is_sorted:
        names.sort(key=str.casefold)
    ignore = _chosen(options.ignore, [*names, BACKGROUND_NAME], "--ignore")
    chosen = _chosen(options.classes, names, "--classes") or names
    kept = [name for name in chosen if name not in (*ignore, BACKGROUND_NAME)]
    _check_count(kept, names)
    ignored = 255 if len(kept) <= _LARGEST_8_BIT else 65535
    has_background = reading.has_background or not set(names) <= set(kept) | set(ignore)
    return Labels(
        tuple(kept),
        _colors(reading, final, kept),
        _labels_by_class(reading, final, kept, ignore, ignored),
        ignored,
        has_background and BACKGROUND_NAME not in ignore,
    )


def _check_count(kept: Sequence[str], names: Sequence[str]) -> None:
    """Refuse no classes, and more of them than 16 bits can tell apart."""
    if not kept:
        raise NacreError(
            "the export has no class to import" + (f"; it has {some(names, 20)}" if names else "")
        )
    if len(kept) > _LARGEST_16_BIT:
        raise NacreError(f"the export has {len(kept):,} classes; at most {_LARGEST_16_BIT:,}")


def _labels_by_class(
    reading: Reading,
    final: Mapping[int, str],
    kept: Sequence[str],
    ignore: Sequence[str],
    ignored: int,
) -> npt.NDArray[np.uint16]:
    """Return the label by the class number of the reading."""
    label_of = {name: label for label, name in enumerate(kept, start=1)}
    label_of |= dict.fromkeys(ignore, ignored)
    by_class = np.zeros(len(reading.names), np.uint16)
    for number, name in final.items():
        # A class that is not wanted stays in the image: it is background.
        by_class[number] = label_of.get(name, 0)
    by_class[IGNORED] = ignored
    return by_class


def _final_names(reading: Reading, rename: Mapping[str, str]) -> dict[int, str]:
    """Return the name by number after renaming; the background is among them."""
    by_name = {clean_name(old): clean_name(new) for old, new in rename.items()} | dict(rename)
    known = {BACKGROUND_NAME} | {name for one in reading.names for name in (one, clean_name(one))}
    for old in rename:
        if old not in known:
            raise _unknown(old, reading.names[IGNORED + 1 :], "--rename")
    final = {BACKGROUND: BACKGROUND_NAME}
    for number, spelled in enumerate(reading.names):
        if number > IGNORED and number not in reading.dropped:
            new = by_name.get(spelled, by_name.get(clean_name(spelled), spelled))
            final[number] = (
                BACKGROUND_NAME if clean_name(new).casefold() == BACKGROUND_NAME else new
            )
    return final


def _check_alike(final: dict[int, str]) -> None:
    """Refuse names that differ in case or blanks only; then make all names clean."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for number, name in final.items():
        alike = "".join(clean_name(name).casefold().split())
        if name not in spellings[alike]:
            spellings[alike].append(name)
        final[number] = clean_name(name)
    for names in spellings.values():
        if len(names) > 1:
            two = " and ".join(repr(brief(name)) for name in names[:2])
            option = f"--rename {brief(names[1])!r}={brief(clean_name(names[0]))!r}"
            raise NacreError(
                f"the classes {two} are spelled almost alike; if they are one class say {option}, "
                "else rename one in the tool"
            )


def _chosen(wanted: Sequence[str], names: Sequence[str], option: str) -> list[str]:
    chosen = []
    for name in wanted:
        if clean_name(name) not in names:
            raise _unknown(name, names, option)
        if clean_name(name) not in chosen:
            chosen.append(clean_name(name))
    return chosen


def _unknown(name: str, names: Sequence[str], option: str) -> NacreError:
    hint = did_you_mean(name, names)
    return NacreError(
        f"{option}: the export has no class {brief(name)!r}{hint}; it has {some(names, 20)}"
    )


def _colors(reading: Reading, final: Mapping[int, str], kept: Sequence[str]) -> tuple[Color, ...]:
    """Return the export's colors where they tell the classes apart, else colors of our own."""
    own: dict[str, Color] = {}
    for number, color in reading.colors.items():
        if number in final and color not in ((0, 0, 0), *own.values()):
            own.setdefault(final[number], color)
    spread = distinct_colors(len(kept) + 1)
    return ((0, 0, 0), *(own.get(name, spread[i]) for i, name in enumerate(kept, start=1)))
