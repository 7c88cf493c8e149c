"""Images per second from files to training samples, compared with straightforward code.

    python benchmarks/data_path.py            # images of NACRE_TEST_DATA, else generated ones
    python benchmarks/data_path.py --tiny     # for correctness only

Both sides do the same on one core: decode an image and its mask, crop a random box, scale it, flip
it or not, normalize the image and map the labels to channels. The other side is typical research
code: Pillow for everything, and a Python function called for every pixel of the mask. nacre
normalizes on the device, here into an existing buffer. ``without_mapping`` is the other side
without the mapping of labels. Images have a long side of 500 (Pascal VOC) or 2000 (a camera), where
decoding at a smaller scale pays.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from measuring import TEST_DATA, Row, command, take_turns
from nacre.data.dataset import LabeledImages, TrainDataset
from nacre.data.folder import Folder, FolderConfig
from nacre.data.transforms import ImagesConfig, _draw_box
from nacre.data.voc import SPACE
from nacre.labels.mapping import LabelPolicy
from nacre.models.backbone import IMAGENET_MEAN, IMAGENET_STD
from nacre.scenarios.classes import ClassSchedule

CLASSES = ClassSchedule(SPACE, (tuple(range(1, 16)), tuple(range(16, 21))))


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the ratio of the images per second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    count, crop = (4, 64) if tiny else (60, 512)
    rows = []
    for long_side in (500, 2000):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            names = write_images(root, count, 100 if tiny else long_side)
            seconds = take_turns(_jobs(root, names, crop), rounds)
        speed = {f"{side} images/s": count / spent for side, spent in seconds.items()}
        what = f"images of {long_side} pixels to crops of {crop}: times faster"
        goal = 8 if long_side == 500 else None
        ratios = {side: spent / seconds["nacre"] for side, spent in seconds.items()}
        rows.append(Row(what, ratios["straightforward"], goal, behind=speed))
        rows.append(Row(f"{what}, mapping of labels left out there", ratios["without_mapping"]))
    torch.set_num_threads(threads)
    return rows


def write_images(root: Path, count: int, long_side: int) -> list[str]:
    """Write a data folder of images of this size, from VOC if it is available."""
    voc = TEST_DATA / "voc2012-part" / "VOC2012"
    found = sorted((voc / "SegmentationClassAug").glob("*.png"))[:count]
    rng = np.random.default_rng(0)
    names = [f"{i:04}" for i in range(count)]
    for folder in ("images", "masks"):
        (root / folder).mkdir()
    for i, name in enumerate(names):
        if found:
            image = Image.open(voc / "JPEGImages" / f"{found[i].stem}.jpg")
            mask = Image.open(found[i])
        else:
            image = Image.fromarray(rng.integers(0, 256, (24, 32, 3)).astype(np.uint8))
            mask = Image.fromarray(rng.integers(0, 21, (24, 32)).astype(np.uint8))
        scale = long_side / max(image.size)
        size = (round(image.size[0] * scale), round(image.size[1] * scale))
        image.resize(size, Image.Resampling.BICUBIC).save(root / f"images/{name}.jpg", quality=92)
        mask.resize(size, Image.Resampling.NEAREST).save(root / f"masks/{name}.png")
    labels = "".join(f"  {label}: {name}\n" for label, name in SPACE.names.items())
    (root / "classes.yaml").write_text(f"classes:\n{labels}")
    return names


def _jobs(root: Path, names: Sequence[str], crop: int) -> dict[str, Callable[[], object]]:
    source = Folder(FolderConfig(root=root))
    mapping = CLASSES.training_mapping(1, LabelPolicy())
    images = LabeledImages(source, names, mapping)
    fast = TrainDataset([images], ImagesConfig(crop_size=crop), seed=0)
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    scale, shift = 1 / (255 * std), -mean / std
    normalize = torch.empty(3, crop, crop)

    def nacre() -> None:
        for i in range(len(names)):
            image, *_ = fast[(0, i)]
            normalize.copy_(image).mul_(scale).add_(shift)

    def plain(mapping: bool) -> None:
        channels = {label: int(images.mapping.lookup[label]) for label in CLASSES.new(1)}
        rng = np.random.default_rng(0)
        for name in names:
            straightforward(root, name, crop, channels if mapping else None, rng)

    return {
        "nacre": nacre,
        "straightforward": lambda: plain(True),
        "without_mapping": lambda: plain(False),
    }


def straightforward(
    root: Path, name: str, crop: int, channels: dict[int, int] | None, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Read one sample like typical research code."""
    image = Image.open(root / f"images/{name}.jpg").convert("RGB")
    mask = Image.open(root / f"masks/{name}.png")
    box = _draw_box(*image.size, rng)
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    image = image.crop(corners).resize((crop, crop), Image.Resampling.BILINEAR)
    mask = mask.crop(corners).resize((crop, crop), Image.Resampling.NEAREST)
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        mask = mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    labels = torch.from_numpy(np.array(mask))
    if channels is not None:
        labels = labels.apply_(lambda label: channels.get(label, 0))
    return (pixels - mean) / std, labels.long()


if __name__ == "__main__":
    command(measure, __doc__, rounds=5)
