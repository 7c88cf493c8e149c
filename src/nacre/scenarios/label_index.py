"""The label index: for each image, which label values its mask holds."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Index:
    """For each image, which label values its mask holds.

    Attributes:
        names: Image names, sorted: the order of every list made from them.
        labels: The label values of each image's mask, whatever their pixel count.
        pixel_counts: Pixel count by label value of each image, where the masks were read.
    """

    names: tuple[str, ...]
    labels: tuple[frozenset[int], ...]
    pixel_counts: Sequence[dict[int, int]] | None = None

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)
