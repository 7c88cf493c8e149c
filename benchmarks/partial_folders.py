"""Folders whose masks label only some classes of Pascal VOC, as people's own data do.

    python benchmarks/partial_folders.py VOC2012 OUT cat,cow,dog,horse [--name NAME]
           [--train K/N] [--among cat,cow,dog,horse,person,sheep]

OUT/NAME gets images/ (links), masks/ in which every other class is background, classes.yaml and the
split lists: the images of VOC's lists that hold one of the classes, or one of those of `--among`.
`--train 0/3` takes every third training image, beginning with the first. It is what
docs/results.md was measured with.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from PIL import Image

from nacre.data.sources.voc import SPACE, Voc, VocConfig


def write(
    root: Path, out: Path, classes: list[str], among: list[str], part: tuple[int, int]
) -> None:
    voc = Voc(VocConfig(root=root))
    wanted = {SPACE.label_of(name) for name in among}
    labels = {SPACE.label_of(name): name for name in classes}
    keep = np.zeros(256, np.uint8)
    keep[255] = 255
    for label in labels:
        keep[label] = label
    for folder in ("images", "masks"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        index = voc.index(split)
        held = zip(index.names, index.labels, strict=True)
        names = [name for name, found in held if found & wanted]
        if split == "train":
            names = names[part[0] :: part[1]]
        files = {pair.name: pair for pair in voc.pairs(split)}
        for name in names:
            image, mask = files[name].image, files[name].mask
            assert image is not None
            assert mask is not None
            target = out / "images" / f"{name}{image.suffix}"
            if not target.exists():
                os.symlink(image.resolve(), target)
            Image.fromarray(keep[np.asarray(Image.open(mask))]).save(out / "masks" / f"{name}.png")
        (out / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        print(f"{out.name} {split}: {len(names)} images")
    listed = ", ".join(f"{label}: {name}" for label, name in labels.items())
    (out / "classes.yaml").write_text(f"classes: {{{listed}}}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("classes")
    parser.add_argument("--train", default="0/1")
    parser.add_argument("--among")
    parser.add_argument("--name")
    given = parser.parse_args()
    first, every = map(int, given.train.split("/"))
    names = given.classes.split(",")
    among = given.among.split(",") if given.among else names
    write(given.root, given.out / (given.name or "-".join(names)), names, among, (first, every))
