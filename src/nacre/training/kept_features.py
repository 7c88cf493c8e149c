"""Features of a frozen backbone, kept for the epochs in which the same views come again.

    kept[view, image] = what the decoder reads of the backbone, in half precision

With `images.views` an image is augmented in as many ways and no more. Where the backbone does not
learn, its features of each view are computed once, and every later epoch costs the decoder alone.
They are always computed image by image and rounded, whether they are kept or not, so neither the
batch that an image came in, nor a restart, nor `MOST_BYTES` changes what is learned.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from nacre.methods import Method
from nacre.models.network import Network

View = tuple[int, int]
"""The number of a view, and of an image."""

MOST_BYTES = 4 * 2**30
"""That are kept at the most; the features of further views are computed again."""


class KeptFeatures:
    """Features of views that were seen before.

    Args:
        network: whose backbone does not learn.
        most_bytes: to keep.
    """

    def __init__(self, network: Network, most_bytes: int = MOST_BYTES) -> None:
        self.network, self.bytes_left = network, most_bytes
        self._kept: dict[View, tuple[Tensor, ...]] = {}

    def of(self, views: Iterable[View], images: Tensor) -> tuple[Tensor, ...]:
        """Return what the decoder reads of a batch of images."""
        rows = [self._one(view, images[i : i + 1]) for i, view in enumerate(views)]
        dtype = next(self.network.parameters()).dtype
        maps = (torch.cat(parts).to(dtype) for parts in zip(*rows, strict=True))
        return tuple(one.contiguous(memory_format=torch.channels_last) for one in maps)

    def _one(self, view: View, image: Tensor) -> tuple[Tensor, ...]:
        known = self._kept.get(view)
        if known is not None:
            return known
        maps = tuple(one.half() for one in self.network.read_maps(image))
        size = sum(one.numel() * one.element_size() for one in maps)
        if size <= self.bytes_left:
            self._kept[view] = maps
            self.bytes_left -= size
        return maps


def keep_features(network: Network, method: Method, views: int | None) -> KeptFeatures | None:
    """Return where features are kept, if views come again and nobody asks for more of them."""
    if views is None or method.uses_stages or not method.freezes_backbone:
        return None
    return KeptFeatures(network) if network.takes_maps else None
