"""The one way from images of any size to class scores and class maps.

    image -> scaled, if the model learned at another scale -> windows, if it is to be seen through
    them -> padded to sides that the network takes -> network -> cut back and upsampled -> class

Tests, agreement, `nacre predict`, the images of reports and the check of exported files go this
way, and the exported graph (`nacre.export.graph`) contains the same one.

Windows overlap by at least a third; where they do, the probabilities of all of them are added up.
An image that one window covers is seen as a whole. The blocks of a large image come strip by
strip: once the windows of a row are added, all above the next row of windows is settled and leaves
the sums, so that nothing of the size of the image is ever held.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.data.transforms import EvalMode, ImagesConfig
from nacre.errors import NacreError
from nacre.evaluation.upsampling import (
    Guide,
    Maps,
    class_strips,
    class_type,
    predict_classes,
    upsample_maps,
    whole_maps,
)
from nacre.models.io import ModelInfo
from nacre.models.network import Network

NOT_FINITE = (
    "the network's scores are not finite numbers, so it says nothing about any pixel: its weights "
    "are damaged, or its training diverged (a smaller learning rate may help)"
)

MOST_PIXELS = 2**26
"""Pixels of the largest image that is shown to a network at once: some 67 million."""

STRIP_BYTES = 128 << 20
"""What the sums of a strip of a large image may take."""

Size = tuple[int, int]

Read = Callable[[slice, slice], Tensor]
"""Returns rows and columns of an image as uint8 3,h,w."""


@dataclass(frozen=True)
class Block:
    """A part of an image and the channel of each of its pixels."""

    rows: slice
    columns: slice
    classes: Tensor


def check_finite(scores: Tensor) -> Tensor:
    """Return scores that are finite numbers; refuse others."""
    if not bool(scores.isfinite().all()):
        raise NacreError(NOT_FINITE)
    return scores


def smaller(one: int, other: int) -> int:
    """Return the smaller of two numbers, which may be symbols of a graph."""
    found: int = torch.sym_min(one, other)  # type: ignore[no-untyped-call]
    return found


def larger(one: int, other: int) -> int:
    """Return the larger of two numbers, which may be symbols of a graph."""
    found: int = torch.sym_max(one, other)  # type: ignore[no-untyped-call]
    return found


def seen_size(size: Size, mode: EvalMode, crop: int) -> Size:
    """Return the size at which a network sees an image; its sides may be symbols of a graph."""
    if mode != "crop":
        return size
    shorter = smaller(*size)
    return (
        (2 * size[0] * crop + shorter) // (2 * shorter),
        (2 * size[1] * crop + shorter) // (2 * shorter),
    )


def window_starts(length: int, window: int) -> Tensor:
    """Return where windows begin along a side, evenly, the last one ending at its end."""
    beyond = larger(length - window, 0)
    last = (3 * beyond + 2 * window - 1) // (2 * window)
    return (2 * torch.arange(last + 1) * beyond + last) // (2 * larger(last, 1))


def padded_places(side: int, multiple: int) -> Tensor:
    """Return the places of the pixels along a padded side: the last one is repeated."""
    return torch.arange((side + multiple - 1) // multiple * multiple).clamp(max=side - 1)


def resize_weights(inputs: int, outputs: int) -> Tensor:
    """Return the matrix, outputs x inputs, of a bilinear resize with antialiasing.

    The weights of an output are a triangle around its center, as wide as two of its own pixels or
    of the input's, whichever are wider. Sizes come from the places, so that a graph holds them.
    """
    places, pixels = (torch.arange(side, dtype=torch.float32) for side in (outputs, inputs))
    scale = (pixels.max() + 1) / (places.max() + 1)
    centers = (places + 0.5) * scale
    distance = (pixels + 0.5 - centers[:, None]).abs() / scale.clamp(min=1)
    weights = (1 - distance).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


@dataclass(frozen=True)
class Predictor:
    """A network and how it sees images.

    Attributes:
        network: In eval mode.
        mode: `crop` scales the shorter side to the crop; `full` leaves images as they are;
            `sliding` leaves them, too, and looks through windows of the crop's size.
        crop: Side of the training crops.
        window: Side of windows in any mode; None has them in `sliding` alone.
        mirror: Whether scores are the mean of those of the image and of its mirror image.
        edges: Whether upsampled scores follow the edges of the image.
        check: Looks at the network's scores; that of a `ConfusionMatrix` does not wait for a GPU.
    """

    network: Network
    mode: EvalMode = "full"
    crop: int = 0
    window: int | None = None
    mirror: bool = False
    edges: bool = False
    check: Callable[[Tensor], Tensor] = check_finite

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Return the scores of all pixels, N,C,H,W, of images N,3,H,W in 0..255.

        Through windows they are probabilities, added up.
        """
        maps, side = self._maps(images), self._side
        scores = upsample_maps(maps, _size(images), _guide(maps, images))
        is_one = side is not None and max(self._seen(images)) <= side
        return scores.softmax(1) if is_one else scores

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return how probable each class is at each pixel, N,C,H,W: the mean over windows."""
        scores = self.scores(images)
        return scores.softmax(1) if self._side is None else scores / scores.sum(1, keepdim=True)

    @torch.no_grad()
    def classes(self, images: Tensor) -> Tensor:
        """Return the channel of each pixel, N,H,W, of images N,3,H,W in 0..255."""
        maps = self._maps(images)
        return predict_classes(maps, _size(images), _guide(maps, images))

    @torch.no_grad()
    def blocks(self, read: Read, size: Size, strip: int | None = None) -> Iterator[Block]:
        """Yield the class map of a large image in parts.

        Args:
            read: Reads a part of the image.
            size: Its height and width.
            strip: Columns of a strip of windows; as the memory allows by default.
        """
        seen = seen_size(size, self.mode, self.crop)
        if seen == size and self._side is not None and max(size) > self._side:
            for rows, columns, sums in self._window_sums(read, size, self._side, strip):
                yield Block(rows, columns, sums.argmax(0).to(class_type(len(sums))).cpu())
            return
        check_size(size, seen)
        columns = slice(0, size[1])
        image = read(slice(0, size[0]), columns) if seen == size else _read_scaled(read, size, seen)
        maps = self._seen_maps(image[None].to(self._device))

        def guide(rows: slice) -> Tensor:
            return read(rows, columns)[None].to(self._device)

        strips = class_strips(maps, size, None if maps.colors is None else guide)
        for one, lines in strips:
            yield Block(one.rows, columns, lines.to(class_type(maps.scores.shape[1])).cpu())

    @property
    def _side(self) -> int | None:
        return self.window or (self.crop if self.mode == "sliding" else None)

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def _seen(self, images: Tensor) -> Size:
        return seen_size(_size(images), self.mode, self.crop)

    def _maps(self, images: Tensor) -> Maps:
        size, seen = _size(images), self._seen(images)
        check_size(size, seen)
        if seen != size:
            images = F.interpolate(images.float(), seen, mode="bilinear", antialias=True)
        return self._seen_maps(images)

    def _seen_maps(self, images: Tensor) -> Maps:
        """Return the scores of images at the scale at which they are seen."""
        side, size = self._side, _size(images)
        if side is None or max(size) <= side:
            return self._whole_maps(images)
        return whole_maps(torch.stack([self._all_sums(image, side) for image in images]))

    def _whole_maps(self, images: Tensor) -> Maps:
        """Return the scores of images that the network sees at once."""
        height, width = _size(images)
        rows, columns = (padded_places(side, self.network.alignment) for side in (height, width))
        if (len(rows), len(columns)) != (height, width):
            images = images[..., rows.to(images.device), :][..., columns.to(images.device)]
        scores = self.check(self.network(images).scores)
        if self.mirror:
            mirrored = self.check(self.network(images.flip(-1)).scores)
            scores = (scores + mirrored.flip(-1)) / 2
        grid = _size(scores)
        inside = (grid[0] * height / len(rows), grid[1] * width / len(columns))
        colors = F.adaptive_avg_pool2d(images.float(), grid) if self.edges else None
        return Maps(scores, inside, colors)

    def _all_sums(self, image: Tensor, side: int) -> Tensor:
        """Return the probabilities of an image 3,H,W, added up over all windows."""
        size = _size(image)
        total = torch.zeros(self.network.num_classes, *size, device=image.device)
        for rows, columns, sums in self._window_sums(
            lambda rows, columns: image[:, rows, columns], size, side, size[1]
        ):
            total[:, rows, columns] = sums
        return total

    def _window_sums(
        self, read: Read, size: Size, side: int, strip: int | None
    ) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield settled rows of each strip of columns, and the sums of their probabilities."""
        strip = strip or strip_width(side, self.network.num_classes)
        for left in range(0, size[1], strip):
            columns = slice(left, min(left + strip, size[1]))
            for rows, sums in self._go_down(read, size, side, columns):
                yield rows, columns, sums

    def _go_down(
        self, read: Read, size: Size, side: int, columns: slice
    ) -> Iterator[tuple[slice, Tensor]]:
        high = min(side, size[0])
        width = columns.stop - columns.start
        total = torch.zeros(self.network.num_classes, high, width, device=self._device)
        for top, following in pairwise([*window_starts(size[0], side).tolist(), size[0]]):
            for seen in _touching(size[1], side, columns):
                part = read(slice(top, top + high), seen).to(self._device)[None]
                maps = self._whole_maps(part)
                # The sum is enough: at a pixel all channels would be divided by the same number.
                scores = upsample_maps(maps, _size(part), _guide(maps, part)).softmax(1)
                across, within = _overlap(columns, seen)
                total[:, :, across] += scores[0, :, :, within]
            settled = following - top
            yield slice(top, following), total[:, :settled].clone()
            total = total.roll(-settled, 1)
            total[:, high - settled :] = 0


def cut_predictor(network: Network, images: ImagesConfig) -> Predictor:
    """Return how a network sees test images that were scaled and cut as the config says."""
    window, (mirror, edges) = images.test_window, _decided(images)
    return Predictor(network, window=window, mirror=mirror, edges=edges)


def whole_predictor(network: Network, images: ImagesConfig) -> Predictor:
    """Return how a network sees whole images, as `nacre predict` shows them."""
    mirror, edges = _decided(images)
    return Predictor(network, images.predict_mode, images.crop_size, mirror=mirror, edges=edges)


def model_predictor(network: Network, info: ModelInfo) -> Predictor:
    """Return how the network of a model file sees images, as the file says."""
    return Predictor(network, info.predict_mode, info.crop, mirror=info.mirror, edges=info.edges)


def _decided(images: ImagesConfig) -> tuple[bool, bool]:
    """Return whether mirror images are seen and edges followed; what is undecided is not."""
    return images.mirror is True, images.edges is True


def strip_width(window: int, channels: int) -> int:
    """Return the columns of a strip: a window's at least, else as many as the memory allows."""
    return max(window, STRIP_BYTES // (4 * channels * window))


def _size(images: Tensor) -> Size:
    return images.shape[-2], images.shape[-1]


def _guide(maps: Maps, images: Tensor) -> Guide | None:
    return None if maps.colors is None else lambda rows: images[:, :, rows]


def check_size(size: Size, seen: Size) -> None:
    """Refuse an image of which a network would see too many pixels at once."""
    if seen[0] * seen[1] > MOST_PIXELS:
        raise NacreError(
            f"an image of {size[1]} x {size[0]} pixels is too large: the network would see "
            f"{seen[1]} x {seen[0]}, and {MOST_PIXELS:,} pixels are the most"
        )


def _read_scaled(read: Read, size: Size, seen: Size) -> Tensor:
    """Return a large image scaled, of which some rows at a time are read."""
    rows, columns = resize_weights(size[0], seen[0]), resize_weights(size[1], seen[1])
    parts = []
    for row in rows:
        (used,) = row.nonzero(as_tuple=True)
        place = slice(int(used[0]), int(used[-1]) + 1)
        pixels = read(place, slice(0, size[1])).float()
        parts.append(torch.einsum("r,crw->cw", row[place], pixels) @ columns.t())
    return torch.stack(parts, 1)


def _touching(length: int, window: int, part: slice) -> Iterator[slice]:
    """Yield the windows along a side that have something in common with a part of it."""
    for start in window_starts(length, window).tolist():
        stop = min(start + window, length)
        if start < part.stop and stop > part.start:
            yield slice(start, stop)


def _overlap(part: slice, window: slice) -> tuple[slice, slice]:
    """Return where a window lies in a part, and where that is in the window."""
    start, stop = max(part.start, window.start), min(part.stop, window.stop)
    return (
        slice(start - part.start, stop - part.start),
        slice(start - window.start, stop - window.start),
    )
