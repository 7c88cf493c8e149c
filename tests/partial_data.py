"""Folders of generated scenes whose masks label only some of their classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from nacre.data.scenes import SPACE, Scenes, ScenesConfig

NAMES = dict(SPACE.names)
LABELS = {name: label for label, name in NAMES.items()}


def write_folder(
    root: Path,
    labeled: Sequence[str],
    *,
    world: ScenesConfig,
    train: Sequence[str] | None = None,
    val: Sequence[str] | None = None,
    lists: bool = True,
) -> Path:
    """Write scenes with masks of some classes; all else is background, as in users' masks.

    Without names, a split gets the scenes that hold one of the labeled classes.
    """
    source = Scenes(world)
    keep = np.zeros(256, np.uint8)
    keep[255] = 255
    for name in labeled:
        keep[LABELS[name]] = LABELS[name]
    wanted = {LABELS[name] for name in labeled}
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for split, given in (("train", train), ("val", val)):
        index = source.index(split)
        held = zip(index.names, index.labels, strict=True)
        names = [name for name, labels in held if labels & wanted] if given is None else given
        for name in names:
            source.image(split, name).save(root / "images" / f"{split}-{name}.png")
            mask = Image.fromarray(keep[source.mask(split, name)])
            mask.save(root / "masks" / f"{split}-{name}.png")
        if lists:
            (root / f"{split}.txt").write_text("".join(f"{split}-{name}\n" for name in names))
    classes = ", ".join(f"{LABELS[name]}: {name}" for name in labeled)
    (root / "classes.yaml").write_text(f"classes: {{{classes}}}\n")
    return root
