"""Unusual networks: their sizes, their outputs, and wrappers around them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.small_networks import CLASSES, Small, conv
from nacre.errors import NacreError
from nacre.losses import fused_losses
from nacre.models.adapter import Adapter
from nacre.models.io import load_model, save_start
from nacre.models.probe import find_scoring_layers
from nacre.models.widen import widen

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))


class Unet(nn.Module):
    """A U-Net with concatenated skips, so that sides must be multiples of 8."""

    def __init__(self, width: int = 4, classes: int = CLASSES) -> None:
        super().__init__()
        sizes = (3, width, width, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in itertools.pairwise(sizes)
        )
        self.up = nn.ModuleList(nn.Conv2d(2 * width, width, 3, padding=1) for _ in range(3))
        self.score = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        for layer, skip in zip(self.up, reversed(skips), strict=True):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2), skip], 1)).relu()
        return self.score(x)


class Vit(nn.Module):
    """A vision transformer with position embeddings, so that it accepts one size only."""

    def __init__(self, side: int = 64, patch: int = 8, width: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2, width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.patches(x)
        tokens = self.head(self.norm(maps.flatten(2).transpose(1, 2) + self.places))
        scores = tokens.transpose(1, 2).unflatten(2, maps.shape[-2:])
        return F.interpolate(scores, x.shape[-2:], mode="bilinear")


class Patches(nn.Module):
    """Patches of 14 pixels, in any number."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 14, 14)
        self.head = nn.Conv2d(6, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 14 or x.shape[-2] % 14:
            raise ValueError("sides must be multiples of 14")
        return F.interpolate(self.head(self.patches(x)), x.shape[-2:], mode="bilinear")


class Tasks(Small):
    """Several heads, one of which segments."""

    def __init__(self) -> None:
        super().__init__(conv())
        self.depth = nn.Conv2d(6, 1, 1)

    def forward(self, images: Tensor) -> Any:
        return {"semantic": self.scores(images), "depth": self.depth(self.body(images))}


class Pyramid(Small):
    """One head for two scales, whose scores are added."""

    def forward(self, images: Tensor) -> Any:
        fine = self.scores(images)
        coarse = self.scores(F.avg_pool2d(images, 2))
        return [fine + F.interpolate(coarse, fine.shape[-2:], mode="bilinear"), coarse]


class Grouped(Small):
    """Grouped convolutions that are not scoring layers."""

    def __init__(self) -> None:
        super().__init__(conv())
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1, groups=3), nn.Conv2d(6, 6, 3, 1, 1, groups=6)
        )


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(6, CLASSES, 1),
    )


ODD: dict[str, tuple[Callable[[], nn.Module], int | None]] = {
    # how to make it, and of what sides must be multiples; None for one size alone
    "unet": (Unet, 8),
    "vit": (Vit, None),
    "patches of 14": (Patches, 14),
    "several tasks": (Tasks, 1),
    "shared head": (lambda: Pyramid(conv()), 1),
    "grouped": (Grouped, 1),
    "sequential": (plain, 1),
    "sequential without bias": (lambda: nn.Sequential(nn.Conv2d(3, CLASSES, 1, bias=False)), 1),
}


@pytest.mark.parametrize("name", ODD)
def test_a_network_learns_from_images_of_any_size(name: str) -> None:
    torch.manual_seed(0)
    make, divisor = ODD[name]
    adapter = Adapter(make())
    assert adapter.divisor == (divisor or 1)
    assert (adapter.fixed_size is None) == (divisor is not None)
    adapter.train().grow(2, "background")
    images = torch.randint(0, 256, (2, 3, 67, 93), dtype=torch.uint8)
    output = adapter(images)
    assert output.logits.shape[:2] == (2, CLASSES + 2)
    targets = torch.randint(0, 2, (2, 67, 93)).mul(CLASSES)
    losses = fused_losses(output.logits, targets, output.logits[:, :CLASSES].detach())
    sum(losses.values()).backward()
    assert all(bool(value.isfinite()) for value in losses.values())


@pytest.mark.parametrize("name", ["unet", "patches of 14"])
def test_padding_gives_the_scores_of_the_padded_image(name: str) -> None:
    torch.manual_seed(0)
    make, divisor = ODD[name]
    assert divisor is not None
    adapter = Adapter(make()).eval()
    sides = (5 * divisor, 6 * divisor)
    pixels = torch.randint(0, 256, (1, 3, *sides))
    # The last row and column are the ones before again, as padding continues them.
    pixels[..., -1, :], pixels[..., -1] = pixels[..., -2, :], pixels[..., -2]
    wanted = F.interpolate(adapter(pixels).logits, sides, mode="bilinear")
    found = adapter(pixels[..., :-1, :-1]).logits
    torch.testing.assert_close(found, wanted[..., :-1, :-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_start_of_another_precision_learns_in_float32(dtype: Any, tmp_path: Path) -> None:
    mine = Small(conv()).to(dtype)
    needed = save_start(tmp_path / "start.safetensors", mine, old=list("abcd"))
    network, _, _ = load_model(tmp_path / "start.safetensors", network=needed)
    assert {one.dtype for one in network.parameters()} == {torch.float32}
    assert {one.dtype for one in mine.parameters()} == {dtype}  # the given one does not change
    assert network(torch.zeros(1, 3, 32, 32)).logits.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "wrap",
    [torch.compile, nn.DataParallel, lambda one: torch.jit.trace(one.eval(), IMAGES)],
    ids=["compiled", "parallel", "traced"],
)
def test_a_wrapped_network_is_refused(wrap: Any, tmp_path: Path) -> None:
    wrapped = wrap(Small(conv()))
    for use in (
        lambda: save_start(tmp_path / "start.safetensors", wrapped, old=list("abcd")),
        lambda: widen(wrapped, 1),
        lambda: Adapter(wrapped),
    ):
        with pytest.raises(NacreError, match="wraps a network and cannot be widened"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_shared_head_counts_once_for_each_use() -> None:
    layers = find_scoring_layers(Pyramid(conv()), IMAGES)
    assert layers.main == {"score": 2.0}
