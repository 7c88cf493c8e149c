"""One valid thing of each kind that nacre reads, and the commands that read it."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import rasterio
import yaml
from PIL import Image

import nacre
from tiny_runs import TINY, tiny_run

Command = tuple[object, ...]
SMALL = ("--set", "data.train=12", "--set", "data.val=4", "--set", "data.size=16")
STEP = {
    "model": TINY["model"],
    "images": {"crop_size": 16, "augmentation": "flip"},
    "train": {"iterations": 1, "batch_size": 4, "device": "cpu"},
}
"""The config of a step of `nacre learn` that takes no time."""


@dataclass(frozen=True)
class Reader:
    """A file that commands read.

    Attributes:
        name: What it is.
        path: A valid sample.
        commands: What reads it.
    """

    name: str
    path: Path
    commands: tuple[Command, ...]


class World:
    """A folder with a finished run, data, and files of all other kinds."""

    def __init__(self, root: Path) -> None:
        self.root, self.run, self.data = root, root / "run", root / "data"
        tiny_run(self.run, data={"train": 24, "val": 6, "size": 16}, train={"batch_size": 4})
        self._make_data()
        self._make_files()
        self.learnt = root / "learnt"
        nacre.learn(self.data, start=self.run, out=self.learnt, config={"train": STEP["train"]})

    def _make_data(self) -> None:
        for name in ("images", "masks"):
            (self.data / name).mkdir(parents=True)
        rng = np.random.default_rng(0)
        for i in range(5):
            pixels = rng.integers(0, 255, (12, 16, 3), np.uint8)
            suffix = (".jpg", ".png", ".webp", ".tif", ".bmp")[i]
            Image.fromarray(pixels).save(self.data / "images" / f"p{i}{suffix}")
            mask = np.zeros((12, 16), np.uint8)
            mask[:4], mask[4:8] = 1, 2
            Image.fromarray(mask).save(self.data / "masks" / f"p{i}.png")
        (self.data / "classes.yaml").write_text(
            "classes: {1: cat, 2: dog}\nbackground: 0\nignored: 255\ncolors: {cat: [255, 0, 0]}\n"
        )
        (self.data / "train.txt").write_text("p0\np1\np2\np3\n")
        (self.data / "val.txt").write_text("p4\n")

    def _make_files(self) -> None:
        root = self.root
        (root / "config.yaml").write_text(yaml.safe_dump({**TINY, "method": {"name": "lwf"}}))
        (root / "step.yaml").write_text(yaml.safe_dump(STEP))
        scenario = {"data": "scenes", "setup": "overlapped", "steps": [[1, 2], [3, 4]]}
        (root / "scenario.yaml").write_text(yaml.safe_dump(scenario))
        (root / "index.csv").write_text(
            "image,labels\n" + "".join(f"i{i},0 {1 + i % 20}\n" for i in range(40))
        )
        grid = {"scenarios": ["scenes/4-4/overlapped"], "methods": ["ft"], "seeds": [1], "jobs": -1}
        (root / "grid.yaml").write_text(yaml.safe_dump(grid))
        Image.new("RGB", (20, 16), "red").save(root / "picture.png")
        pixels = np.random.default_rng(1).integers(0, 255, (40, 48, 3), np.uint8)
        profile = {"driver": "GTiff", "height": 40, "width": 48, "count": 3, "dtype": "uint8"}
        place = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_300_000)
        with rasterio.open(
            root / "map.tif", "w", crs="EPSG:32632", transform=place, **profile
        ) as file:
            file.write(pixels.transpose(2, 0, 1))
        for name in ("film.mp4", "film.mkv"):
            with av.open(str(root / name), "w") as video:
                stream = video.add_stream("mpeg4", rate=5)
                stream.height, stream.width, stream.pix_fmt = 40, 48, "yuv420p"
                for _ in range(3):
                    video.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
                video.mux(stream.encode())

    def readers(self) -> Iterator[Reader]:
        """Yield every file; those of runs and data folders are found, not listed."""
        out = self.root / "out"
        listed: dict[str, tuple[Command, ...]] = {
            "config.yaml": (("plan", "scenes/4-4/overlapped", "--config", "{file}", *SMALL),),
            "scenario.yaml": (("plan", "{file}", *SMALL),),
            "step.yaml": (("learn", self.data, "--config", "{file}", "--out", self.root / "new"),),
            "index.csv": (("plan", "voc/15-5/overlapped", "--index", "{file}"),),
            "grid.yaml": (("grid", "{file}", "--list", "--out", out),),
            "picture.png": (("predict", self.run, "{file}", "--out", out),),
            "map.tif": (("predict", self.run, "{file}", "--window", "32", "--out", out),),
            "film.mp4": (("predict", self.run, "{file}", "--out", out),),
            "film.mkv": (("predict", self.run, "{file}", "--out", out),),
        }
        for name, commands in listed.items():
            yield Reader(name, self.root / name, commands)
        data = (
            ("data", "folder", "--root", self.data),
            ("plan", "folder/1-1/overlapped", "--root", self.data),
        )
        for path in sorted(self.data.rglob("*")):
            if path.is_file() and path.parent.name != "nacre-index":
                yield Reader(str(path.relative_to(self.root)), path, data)
        runs: tuple[Command, ...] = (
            ("table", self.run),
            ("run", "--out", self.run),
            ("report", self.run, "--out", out, "--pictures", "0"),
            ("eval", self.run),
            ("predict", self.run, self.root / "picture.png", "--out", out),
        )
        step: tuple[Command, ...] = (
            ("learn", "--out", self.learnt),
            ("log", self.learnt),
            ("log", self.learnt, "--json"),
            ("report", self.learnt, "--out", out, "--pictures", "0"),
            ("learn", self.data, "--start", self.learnt, "--out", self.root / "next"),
        )
        for folder, commands in ((self.run, runs), (self.learnt, step)):
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    yield Reader(str(path.relative_to(self.root)), path, commands)


def read_plain(path: Path) -> Any:
    """Return the plain data of a file that has such, else None."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".yaml":
        return yaml.safe_load(path.read_text())
    if path.suffix == ".safetensors":
        header, _ = split_safetensors(path.read_bytes())
        return json.loads(header["__metadata__"]["nacre"])
    return None


def write_plain(path: Path, content: Any) -> None:
    """Write plain data as the file has it."""
    if path.suffix == ".safetensors":
        header, tensors = split_safetensors(path.read_bytes())
        header["__metadata__"]["nacre"] = json.dumps(content)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)
        return
    dump: Callable[[Any], str] = yaml.safe_dump if path.suffix == ".yaml" else json.dumps
    path.write_text(dump(content))


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the tensors of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]
