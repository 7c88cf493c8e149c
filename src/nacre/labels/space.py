"""Label spaces: what the values in the masks of a data set mean."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nacre.errors import NacreError, did_you_mean, shown

BACKGROUND = "background"
"""The name of channel 0: what is not labeled, or not named yet."""


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


def ranges(values: Iterable[int]) -> str:
    """Write 1, 2, 3, 7 as ``1..3, 7``."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(f"{a}..{b}" if b > a else f"{a}" for a, b in runs)
