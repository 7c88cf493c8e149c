"""A valid file of each kind that nacre reads, and the commands that read it."""

from pathlib import Path

import av
import numpy as np
import rasterio
import yaml
from PIL import Image

import nacre
from noise_data import noise_folder
from tiny_runs import TINY, tiny_run

Commands = list[tuple[object, ...]]
SCENES = "scenes/4-4/overlapped"
SMALL = ("--set", "data.train=12", "--set", "data.val=4", "--set", "data.size=16")
STEP = {
    "model": TINY["model"],
    "images": {"crop_size": 16, "crop": "plain"},
    "train": {"iterations": 1, "batch_size": 4, "device": "cpu"},
}
"""The config of a very short step of `nacre learn`."""


class World:
    """A folder with a finished run, a learned step, data, and files of all kinds."""

    def __init__(self, root: Path) -> None:
        self.root, self.run, self.learned = root, root / "run", root / "learned"
        tiny_run(self.run, data={"train": 24, "val": 6, "size": 16}, train={"batch_size": 4})
        suffixes = (".jpg", ".png", ".webp", ".tif", ".bmp")
        cats = {1: "cat", 2: "dog"}
        self.data = noise_folder(root / "data", 5, (12, 16), cats, suffixes=suffixes, test=1)
        with (self.data / "classes.yaml").open("a") as file:
            file.write("ignored: 255\ncolors: {cat: [255, 0, 0]}\n")
        _write_files(root)
        nacre.learn(self.data, start=self.run, out=self.learned, config={"train": STEP["train"]})

    def readers(self) -> dict[str, Commands]:
        """Return the commands for each file; those of folders are found, not listed."""
        root, out = self.root, ("--out", self.root / "out")
        found: dict[str, Commands] = {
            "config.yaml": [("plan", SCENES, "--config", root / "config.yaml", *SMALL)],
            "scenario.yaml": [("plan", root / "scenario.yaml", *SMALL)],
            "step.yaml": [
                ("learn", self.data, "--config", root / "step.yaml", "--out", root / "new")
            ],
            "grid.yaml": [("grid", root / "grid.yaml", "--status", *out)],
            "map.tif": [("predict", self.run, root / "map.tif", "--window", "32", *out)],
        }
        for name in ("picture.png", "film.mp4", "film.mkv"):
            found[name] = [("predict", self.run, root / name, *out)]
        small_step = ("--set", "train.iterations=1", "--set", "train.device=cpu")
        folders: dict[Path, Commands] = {
            self.data: [
                ("data", self.data),
                ("plan", "folder/1-1/overlapped", "--root", self.data),
            ],
            self.run: [
                ("table", self.run),
                ("run", "--out", self.run),
                ("report", self.run, *out, "--images", "0"),
                ("eval", self.run),
                ("predict", self.run, root / "picture.png", *out),
                ("learn", self.data, "--start", self.run, "--out", root / "next", *small_step),
            ],
            self.learned: [
                ("learn", "--out", self.learned),
                ("history", self.learned),
                ("history", self.learned, "--json"),
                ("report", self.learned, *out, "--images", "0"),
            ],
        }
        for folder, commands in folders.items():
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.parent.name != "nacre-index":
                    found[str(path.relative_to(root))] = commands
        return found


def _write_files(root: Path) -> None:
    plain = {
        "config.yaml": {**TINY, "method": {"name": "lwf"}},
        "step.yaml": STEP,
        "scenario.yaml": {"data": "scenes", "setup": "overlapped", "steps": [[1, 2], [3, 4]]},
        "grid.yaml": {"scenarios": [SCENES], "methods": ["ft"], "seeds": [1], "jobs": 1},
    }
    for name, content in plain.items():
        (root / name).write_text(yaml.safe_dump(content))
    pixels = np.random.default_rng(1).integers(0, 255, (40, 48, 3), np.uint8)
    Image.fromarray(pixels).save(root / "picture.png")
    profile = {"driver": "GTiff", "height": 40, "width": 48, "count": 3, "dtype": "uint8"}
    profile["transform"] = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_300_000)
    with rasterio.open(root / "map.tif", "w", crs="EPSG:32632", **profile) as file:
        file.write(pixels.transpose(2, 0, 1))
    for name in ("film.mp4", "film.mkv"):
        with av.open(str(root / name), "w") as video:
            stream = video.add_stream("mpeg4", rate=5)
            stream.height, stream.width, stream.pix_fmt = 40, 48, "yuv420p"
            for _ in range(3):
                video.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            video.mux(stream.encode())
