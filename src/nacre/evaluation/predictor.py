"""The one way from images of any size to class scores and class maps.

    image -> scaled, if the model was trained at another scale -> windows, if it uses them -> padded
    to sides that the network takes -> network -> cropped and upsampled -> class

Tests, agreement, `nacre predict`, the images of reports and the check of exported files use it, and
the exported graph (`nacre.export.graph`) does the same.

Windows overlap by at least a third, and their probabilities are summed. An image that fits into one
window is predicted as a whole. A large image is predicted in strips of columns, from top to bottom:
rows above the next row of windows are complete and leave the sums, so that no tensor has the size
of the image.
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
    "the network's scores are not finite numbers: its weights are damaged, or its training diverged"
    " (set a smaller learning rate)"
)

MAX_PIXELS = 2**26
"""Pixels of the largest image that a network predicts at once: 67 million."""

MAX_STRIP_BYTES = 128 << 20
"""Memory for the sums of a strip of a large image."""

Size = tuple[int, int]

Read = Callable[[slice, slice], Tensor]
"""Returns a part of an image by rows and columns, uint8 3,h,w."""


@dataclass(frozen=True)
class Block:
    """A part of an image and the channels of its pixels."""

    rows: slice
    columns: slice
    classes: Tensor


def check_finite(scores: Tensor) -> Tensor:
    """Return scores; raise NacreError if they are not finite."""
    if not bool(scores.isfinite().all()):
        raise NacreError(NOT_FINITE)
    return scores


def smaller(one: int, other: int) -> int:
    """Return the smaller of two numbers, which may be symbols of a graph."""
    result: int = torch.sym_min(one, other)  # type: ignore[no-untyped-call]
    return result


def larger(one: int, other: int) -> int:
    """Return the larger of two numbers, which may be symbols of a graph."""
    result: int = torch.sym_max(one, other)  # type: ignore[no-untyped-call]
    return result


def input_size(size: Size, mode: EvalMode, crop: int) -> Size:
    """Return the size to which an image is scaled; its sides may be symbols of a graph."""
    if mode != "crop":
        return size
    shorter = smaller(*size)
    return (
        (2 * size[0] * crop + shorter) // (2 * shorter),
        (2 * size[1] * crop + shorter) // (2 * shorter),
    )


def window_starts(length: int, window: int) -> Tensor:
    """Return the evenly spaced starts of the windows that cover a side."""
    beyond = larger(length - window, 0)
    last = (3 * beyond + 2 * window - 1) // (2 * window)
    return (2 * torch.arange(last + 1) * beyond + last) // (2 * larger(last, 1))


def padded_places(side: int, multiple: int) -> Tensor:
    """Return the pixels along a padded side, of which the last one is repeated."""
    return torch.arange((side + multiple - 1) // multiple * multiple).clamp(max=side - 1)


def resize_weights(inputs: int, outputs: int) -> Tensor:
    """Return the matrix, outputs x inputs, of a bilinear resize with antialiasing.

    The weights of an output are a triangle around its center, as wide as two pixels of the output
    or of the input, whichever is wider. The scale follows from tensors, so that the exported graph
    computes it.
    """
    places, pixels = (torch.arange(side, dtype=torch.float32) for side in (outputs, inputs))
    scale = (pixels.max() + 1) / (places.max() + 1)
    centers = (places + 0.5) * scale
    distance = (pixels + 0.5 - centers[:, None]).abs() / scale.clamp(min=1)
    weights = (1 - distance).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


@dataclass(frozen=True)
class Predictor:
    """A network and the way it predicts images.

    Attributes:
        network: The network, in eval mode.
        mode: `crop` scales the shorter side to the crop; `full` does not scale; `sliding` does not
            scale, either, and predicts in windows of the crop's size.
        crop: Side of the training crops.
        window: Side of windows in any mode; with None only `sliding` has windows.
        mirror: Whether to average the scores with those of the mirror image.
        edges: Whether upsampled scores follow the edges of the image.
        check: Checks the network's scores and returns them.
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

        With windows they are sums of probabilities.
        """
        maps, side = self._maps(images), self._side
        scores = upsample_maps(maps, _size(images), _guide(maps, images))
        is_one_window = side is not None and max(self._input_size(images)) <= side
        return scores.softmax(1) if is_one_window else scores

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return the probabilities of the classes, N,C,H,W, averaged over windows."""
        scores = self.scores(images)
        return scores.softmax(1) if self._side is None else scores / scores.sum(1, keepdim=True)

    @torch.no_grad()
    def classes(self, images: Tensor) -> Tensor:
        """Return the channel of each pixel, N,H,W, of images N,3,H,W in 0..255."""
        maps = self._maps(images)
        return predict_classes(maps, _size(images), _guide(maps, images))

    @torch.no_grad()
    def blocks(self, read: Read, size: Size) -> Iterator[Block]:
        """Yield the class map of an image of a size in parts; `read` reads a part of the image."""
        scaled = input_size(size, self.mode, self.crop)
        if scaled == size and self._side is not None and max(size) > self._side:
            strip = strip_width(self._side, self.network.num_classes)
            for rows, columns, sums in self._window_sums(read, size, self._side, strip):
                yield Block(rows, columns, sums.argmax(0).to(class_type(len(sums))).cpu())
            return
        check_size(size, scaled)
        columns = slice(0, size[1])
        if scaled == size:
            image = read(slice(0, size[0]), columns)
        else:
            image = _read_scaled(read, size, scaled)
        maps = self._scaled_maps(image[None].to(self._device))

        def guide(rows: slice) -> Tensor:
            return read(rows, columns)[None].to(self._device)

        dtype = class_type(maps.scores.shape[1])
        for part, lines in class_strips(maps, size, None if maps.colors is None else guide):
            yield Block(part.rows, columns, lines.to(dtype).cpu())

    @property
    def _side(self) -> int | None:
        return self.window or (self.crop if self.mode == "sliding" else None)

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def _input_size(self, images: Tensor) -> Size:
        return input_size(_size(images), self.mode, self.crop)

    def _maps(self, images: Tensor) -> Maps:
        size, scaled = _size(images), self._input_size(images)
        check_size(size, scaled)
        if scaled != size:
            images = F.interpolate(images.float(), scaled, mode="bilinear", antialias=True)
        return self._scaled_maps(images)

    def _scaled_maps(self, images: Tensor) -> Maps:
        """Return the scores of images that have been scaled."""
        side, size = self._side, _size(images)
        if side is None or max(size) <= side:
            return self._whole_maps(images)
        return whole_maps(torch.stack([self._all_sums(image, side) for image in images]))

    def _whole_maps(self, images: Tensor) -> Maps:
        """Return the scores of images that the network predicts at once."""
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
        """Return the sums of the probabilities of an image 3,H,W over all windows."""
        size = _size(image)
        total = torch.zeros(self.network.num_classes, *size, device=image.device)
        for rows, columns, sums in self._window_sums(
            lambda rows, columns: image[:, rows, columns], size, side, size[1]
        ):
            total[:, rows, columns] = sums
        return total

    def _window_sums(
        self, read: Read, size: Size, side: int, strip: int
    ) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield rows and columns for which all windows are added, and the sums."""
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
            for window in _touching(size[1], side, columns):
                part = read(slice(top, top + high), window).to(self._device)[None]
                maps = self._whole_maps(part)
                # No mean is needed: it would divide all channels of a pixel by the same number.
                scores = upsample_maps(maps, _size(part), _guide(maps, part)).softmax(1)
                across, within = _overlap(columns, window)
                total[:, :, across] += scores[0, :, :, within]
            settled = following - top
            yield slice(top, following), total[:, :settled].clone()
            total = total.roll(-settled, 1)
            total[:, high - settled :] = 0


def cut_predictor(network: Network, images: ImagesConfig) -> Predictor:
    """Return the predictor for test images, which the data set scales and crops."""
    window, (mirror, edges) = images.test_window, _decided(images)
    return Predictor(network, window=window, mirror=mirror, edges=edges)


def whole_predictor(network: Network, images: ImagesConfig) -> Predictor:
    """Return the predictor for whole images, as in `nacre predict`."""
    mirror, edges = _decided(images)
    return Predictor(network, images.predict_mode, images.crop_size, mirror=mirror, edges=edges)


def model_predictor(network: Network, info: ModelInfo) -> Predictor:
    """Return the predictor with the settings of a model file."""
    return Predictor(network, info.predict_mode, info.crop, mirror=info.mirror, edges=info.edges)


def _decided(images: ImagesConfig) -> tuple[bool, bool]:
    """Return `mirror` and `edges`, with `auto` as False."""
    return images.mirror is True, images.edges is True


def strip_width(window: int, channels: int) -> int:
    """Return the columns of a strip: as many as the memory allows, at least a window's."""
    return max(window, MAX_STRIP_BYTES // (4 * channels * window))


def _size(images: Tensor) -> Size:
    return images.shape[-2], images.shape[-1]


def _guide(maps: Maps, images: Tensor) -> Guide | None:
    return None if maps.colors is None else lambda rows: images[:, :, rows]


def check_size(size: Size, scaled: Size) -> None:
    """Raise NacreError if a scaled image has too many pixels for a network."""
    if scaled[0] * scaled[1] > MAX_PIXELS:
        raise NacreError(
            f"an image of {size[1]} x {size[0]} pixels is too large: scaled for the network it has "
            f"{scaled[1]} x {scaled[0]}, and the maximum is {MAX_PIXELS:,} pixels"
        )


def _read_scaled(read: Read, size: Size, scaled: Size) -> Tensor:
    """Return a scaled image, read a few rows at a time."""
    rows, columns = resize_weights(size[0], scaled[0]), resize_weights(size[1], scaled[1])
    parts = []
    for row in rows:
        (used,) = row.nonzero(as_tuple=True)
        place = slice(int(used[0]), int(used[-1]) + 1)
        pixels = read(place, slice(0, size[1])).float()
        parts.append(torch.einsum("r,crw->cw", row[place], pixels) @ columns.t())
    return torch.stack(parts, 1)


def _touching(length: int, window: int, part: slice) -> Iterator[slice]:
    """Yield the windows along a side that overlap a part of it."""
    for start in window_starts(length, window).tolist():
        stop = min(start + window, length)
        if start < part.stop and stop > part.start:
            yield slice(start, stop)


def _overlap(part: slice, window: slice) -> tuple[slice, slice]:
    """Return the overlap of a part and a window, relative to the part and to the window."""
    start, stop = max(part.start, window.start), min(part.stop, window.stop)
    return (
        slice(start - part.start, stop - part.start),
        slice(start - window.start, stop - window.start),
    )
