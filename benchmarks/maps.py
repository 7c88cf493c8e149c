"""Memory and time of `nacre predict` on large maps, in windows.

    python benchmarks/maps.py                  # a map of 4,000 against one of 2,000
    python benchmarks/maps.py --side 20000     # that map alone: bytes and seconds

The map is a GeoTIFF (without rasterio a plain PNG, which can only be decoded as a whole). A new
process predicts it in windows and writes masks, overlays and class fractions. The network is one
convolution, so that the time goes to windows, sums and files. A peak is the additional memory of
the process, a time is processor time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from measuring import Row, apart, command, peaks_of
from nacre.api.model import Model
from nacre.export.onnx_file import noise_image
from nacre.models.adapter import Adapter
from nacre.models.io import ModelInfo
from nacre.predict.files import predict_all
from nacre.predict.rasters import has_rasterio

CLASSES = 2
TILE = 512


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return how memory and time grow with the pixels of a map."""
    side, window = (128, 32) if tiny else (2000, 512)
    small, large = (apart(predict_map, side * times, window) for times in (1, 2))
    return [
        Row(
            f"map of {2 * side:,} x {2 * side:,} pixels in windows of {window}: {what} "
            "against a quarter of it",
            large[i] / small[i],
            behind={f"quarter, {unit}": small[i], f"whole, {unit}": large[i]},
        )
        for i, (what, unit) in enumerate((("memory", "bytes"), ("time", "s")))
    ]


def predict_map(side: int, window: int) -> tuple[int, float]:
    """Return the peak memory and the processor time of one map."""
    model = make_model(window)
    with tempfile.TemporaryDirectory() as folder:
        first, image = write_map(Path(folder) / "first", window), write_map(Path(folder), side)
        predictor = model.predictor(window=window)
        predict_all(predictor, model.info.channels, [str(first)], Path(folder) / "warm")
        began = time.process_time()
        (peak,) = peaks_of(
            lambda: predict_all(predictor, model.info.channels, [str(image)], Path(folder) / "seen")
        )
        return peak, time.process_time() - began


def make_model(crop: int) -> Model:
    torch.manual_seed(0)
    network = Adapter(nn.Conv2d(3, CLASSES, 16, 16)).eval()
    names = ["background", *(f"class {i}" for i in range(1, CLASSES))]
    colors = [(i * 200, 255 - i * 200, 128) for i in range(CLASSES)]
    info = ModelInfo(names, colors, [CLASSES], [], {}, crop, "full", {})
    return Model(network, info)


def write_map(folder: Path, side: int) -> Path:
    """Write a map of one tile, repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    tile = noise_image((TILE, TILE))
    if not has_rasterio():
        times = -(-side // TILE)
        Image.fromarray(np.tile(tile, (times, times, 1))[:side, :side]).save(folder / "map.png")
        return folder / "map.png"
    import rasterio

    shape = {"height": side, "width": side, "count": 3, "dtype": "uint8"}
    blocks = {"tiled": True, "blockxsize": TILE, "blockysize": TILE}
    place = rasterio.transform.from_origin(500_000, 5_300_000, 0.5, 0.5)
    with rasterio.open(
        folder / "map.tif",
        "w",
        driver="GTiff",
        crs="EPSG:32632",
        transform=place,
        **shape,
        **blocks,
    ) as file:
        for top in range(0, side, TILE):
            for left in range(0, side, TILE):
                part = tile[: side - top, : side - left].transpose(2, 0, 1)
                where = ((top, top + part.shape[1]), (left, left + part.shape[2]))
                file.write(part, window=where)
    return folder / "map.tif"


def one_map(side: int) -> None:
    peak, seconds = apart(predict_map, side, 1024)
    print(f"{side:,} x {side:,} pixels: {peak / 2**20:,.0f} MiB, {seconds:,.0f} s")


if __name__ == "__main__":
    if "--side" in sys.argv:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--side", type=int, required=True)
        parser.add_argument("--threads", type=int, default=torch.get_num_threads())
        options = parser.parse_args()
        torch.set_num_threads(options.threads)
        one_map(options.side)
    else:
        command(measure, __doc__)
