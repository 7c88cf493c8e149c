"""From the classes of an export to labels: 0 is background, 1 to n classes, 255 does not count."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nacre.errors import NacreError, did_you_mean
from nacre.importers.problems import brief, some
from nacre.importers.reading import BACKGROUND, IGNORED, Color, Reading, clean_name
from nacre.labels.channels import distinct_colors

_LARGEST_8_BIT = 254
_LARGEST_16_BIT = 65534


@dataclass(frozen=True)
class Labels:
    """The meaning of the values in the masks to write.

    Attributes:
        names: Class name by label; label 1 is the first.
        colors: Color by label, background first.
        of: Label by class, as the export spells it.
        ignored: The label of what does not count.
        has_background: False where no pixel can be background.
    """

    names: tuple[str, ...]
    colors: tuple[Color, ...]
    of: Mapping[str, int]
    ignored: int
    has_background: bool

    @property
    def dtype(self) -> type[np.uint8] | type[np.uint16]:
        """The type in which a mask is stored."""
        return np.uint8 if self.ignored < 256 else np.uint16


def make_labels(
    reading: Reading, classes: Sequence[str], ignore: Sequence[str], rename: Mapping[str, str]
) -> Labels:
    """Give each class a number, or those that the user chose.

    Raises:
        NacreError: Two are spelled almost alike, or a name that the user gave is not there.
    """
    final = _final_names(reading, rename)
    names = list(dict.fromkeys(final[one] for one in reading.classes))
    if reading.is_sorted:
        names.sort(key=str.casefold)
    ignore = _chosen(ignore, [*names, BACKGROUND], "--ignore")
    chosen = _chosen(classes, names, "--classes") or names
    kept = [name for name in chosen if name not in (*ignore, BACKGROUND)]
    if not kept:
        raise NacreError(
            "the export has no class to import" + (f"; it has {some(names, 20)}" if names else "")
        )
    if len(kept) > _LARGEST_16_BIT:
        raise NacreError(f"the export has {len(kept):,} classes; at most {_LARGEST_16_BIT:,}")
    ignored = 255 if len(kept) <= _LARGEST_8_BIT else 65535
    label_of = {name: label for label, name in enumerate(kept, start=1)}
    label_of |= dict.fromkeys(ignore, ignored)
    # A class that is not wanted stays in the image: it is background.
    by_class = {spelled: label_of.get(name, 0) for spelled, name in final.items()}
    has_background = reading.has_background or not set(names) <= set(kept) | set(ignore)
    return Labels(
        tuple(kept),
        _colors(reading, final, kept),
        by_class | {IGNORED: ignored},
        ignored,
        has_background and BACKGROUND not in ignore,
    )


def _final_names(reading: Reading, rename: Mapping[str, str]) -> dict[str, str]:
    """Return the clean name after renaming by the export's spelling, the background first.

    Raises:
        NacreError: Two names differ in case or blanks only.
    """
    by_name = {clean_name(old): clean_name(new) for old, new in rename.items()} | dict(rename)
    known = {BACKGROUND} | {name for one in reading.classes for name in (one, clean_name(one))}
    for old in rename:
        if old not in known:
            raise _unknown(old, list(reading.classes), "--rename")
    final, spellings = {BACKGROUND: BACKGROUND}, defaultdict(list, {BACKGROUND: [BACKGROUND]})
    for spelled in reading.classes:
        new = by_name.get(spelled, by_name.get(clean_name(spelled), spelled))
        new = BACKGROUND if clean_name(new).casefold() == BACKGROUND else new
        final[spelled] = clean_name(new)
        alike = spellings["".join(clean_name(new).casefold().split())]
        if new not in alike:
            alike.append(new)
    for names in spellings.values():
        if len(names) > 1:
            two = " and ".join(repr(brief(name)) for name in names[:2])
            option = f"--rename {brief(names[1])!r}={brief(clean_name(names[0]))!r}"
            raise NacreError(
                f"the classes {two} are spelled almost alike; if they are one class say {option}, "
                "else rename one in the tool"
            )
    return final


def _chosen(wanted: Sequence[str], names: Sequence[str], option: str) -> list[str]:
    for name in wanted:
        if clean_name(name) not in names:
            raise _unknown(name, names, option)
    return list(dict.fromkeys(map(clean_name, wanted)))


def _unknown(name: str, names: Sequence[str], option: str) -> NacreError:
    hint = did_you_mean(name, names)
    return NacreError(
        f"{option}: the export has no class {brief(name)!r}{hint}; it has {some(names, 20)}"
    )


def _colors(reading: Reading, final: Mapping[str, str], kept: Sequence[str]) -> tuple[Color, ...]:
    """Return the export's colors where they tell the classes apart, else colors of our own."""
    own: dict[str, Color] = {}
    for spelled, color in reading.classes.items():
        if color is not None and color not in ((0, 0, 0), *own.values()):
            own.setdefault(final[spelled], color)
    spread = distinct_colors(len(kept) + 1)
    return ((0, 0, 0), *(own.get(name, spread[i]) for i, name in enumerate(kept, start=1)))
