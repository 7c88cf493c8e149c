"""Features of a frozen backbone that are kept: faster, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nacre.data.transforms import ImagesConfig
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.io import find_model
from nacre.runs.run import run_scenario
from nacre.training.kept_features import KeptFeatures, View
from nacre.utils.signals import Interrupted
from tiny_runs import StopAfter, tiny_config

FROZEN = {"freeze_step_0": True, "freeze": ["batch_norm"]}


def config(method: str = "mib", **images: Any) -> Any:
    return tiny_config(
        scenario="scenes/4-4/overlapped",
        data={"train": 16},
        images={"views": 2, **images},
        train={"epochs": 4, "batch_size": 4},
        method={"name": method, **FROZEN},
    )


def model(folder: Path) -> bytes:
    return find_model(folder).read_bytes()


def count_images(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many images each call of a backbone for the head sees."""
    counts: list[int] = []
    read = DeepLab.read_maps

    def counting(network: DeepLab, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts.append(len(images))
        return read(network, images)

    monkeypatch.setattr(DeepLab, "read_maps", counting)
    return counts


def note_views(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, View]]:
    """Note every view that a step learns from, with the place where its features are kept."""
    seen: list[tuple[int, View]] = []
    stores: list[KeptFeatures] = []
    of = KeptFeatures.of

    def noting(kept: KeptFeatures, views: Any, images: torch.Tensor) -> Any:
        if kept not in stores:
            stores.append(kept)
        seen.extend((stores.index(kept), view) for view in views)
        return of(kept, views, images)

    monkeypatch.setattr(KeptFeatures, "of", noting)
    return seen


@pytest.mark.parametrize("method", ["mib", "ilt", "dkd", "ewc"])
def test_each_view_passes_the_backbone_once_and_the_model_is_that_of_every_time(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, views = count_images(monkeypatch), note_views(monkeypatch)
    run_scenario(config(method), tmp_path / "kept")
    assert sum(counts) == len(set(views)) < len(views)
    counts.clear()
    monkeypatch.setattr(KeptFeatures.__init__, "__defaults__", (0,))
    run_scenario(config(method), tmp_path / "anew")
    assert sum(counts) == len(views) / 2, "nothing is kept, and the same views were learned from"
    assert model(tmp_path / "anew") == model(tmp_path / "kept")


def test_an_interrupted_step_goes_on_to_the_same_model(tmp_path: Path) -> None:
    run_scenario(config(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        run_scenario(config(), tmp_path / "cut", should_stop=StopAfter(12))
    run_scenario(config(), tmp_path / "cut")
    assert model(tmp_path / "cut") == model(tmp_path / "whole")


def test_views_come_again_and_differ_from_each_other() -> None:
    images = ImagesConfig(views=3)
    assert [images.view_of(epoch) for epoch in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [ImagesConfig().view_of(epoch) for epoch in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("decoder", ["aspp", "light"])
def test_the_output_of_kept_maps_is_that_of_the_images(decoder: Any) -> None:
    torch.manual_seed(0)
    asked = DeepLabConfig(backbone="resnet18", decoder=decoder, decoder_channels=8)
    network = build_network(asked, 3, 64).eval()
    assert isinstance(network, DeepLab)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        kept = network(images, kept=network.read_maps(images))
        torch.testing.assert_close(kept.logits, network(images).logits, rtol=0, atol=0)
        again = network.decode_again(kept)
    assert again is not None
    torch.testing.assert_close(again.logits, kept.logits, rtol=0, atol=0)


def test_a_backbone_that_learns_and_methods_that_ask_for_stages_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_images(monkeypatch)
    free = tiny_config(data={"train": 16}, images={"views": 2}, train={"epochs": 2})
    run_scenario(free, tmp_path / "free")
    run_scenario(config("plop"), tmp_path / "plop")
    assert not counts
