"""Maps of what is salient, made elsewhere: background that stands out, in which a class may be.

A folder has a gray image per training image, `NAME.png`, of its size; what is above 0 is salient.
A mask tells it by a bit above all labels, and a step's table turns background with that bit into a
target of its own, which `split_salient` takes out again before any loss sees it.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nacre.data.image_io import Mask, read_mask
from nacre.errors import NacreError
from nacre.labels.mapping import LabelMapping

BIT = 1 << 15
"""Added to the label of a salient pixel."""

SALIENT, WIDE_SALIENT = 254, -2
"""The target of salient background, with 8 and with 16 bits."""


@dataclass(frozen=True)
class Saliency:
    """A folder of maps.

    Attributes:
        root: The folder.
    """

    root: Path

    def mark(self, mask: Mask, name: str) -> Mask:
        """Return a mask whose salient pixels have the bit."""
        path = self.root / f"{name}.png"
        if not path.exists():
            raise NacreError(
                f"{path} is missing: every training image needs a map of what is salient"
            )
        found = read_mask(path)
        if found.shape != mask.shape:
            (height, width), (rows, columns) = found.shape, mask.shape
            raise NacreError(f"{path} is {width} x {height}, but its image is {columns} x {rows}")
        if mask.max(initial=0) >= BIT:
            raise NacreError(f"{name}: with maps of what is salient, labels are below {BIT:,}")
        return np.where(found > 0, mask.astype(np.uint16) + np.uint16(BIT), mask.astype(np.uint16))


def with_salient(mapping: LabelMapping) -> LabelMapping:
    """Return a step's mapping that also knows the bit."""
    table = mapping.table
    salient = WIDE_SALIENT if table.dtype == np.int16 else SALIENT
    if len(mapping.channels) > SALIENT and salient == SALIENT:
        raise NacreError(f"with maps of what is salient there are at most {SALIENT - 1} classes")
    marked = np.where(table[:BIT] == 0, salient, table[:BIT]).astype(table.dtype)
    return replace(mapping, table=np.concatenate([table[:BIT], marked]))


def split_salient(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return targets as they are without maps, and where background is salient."""
    salient = targets == (WIDE_SALIENT if targets.dtype == torch.int16 else SALIENT)
    return targets.masked_fill(salient, 0), salient
