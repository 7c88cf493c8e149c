"""The trainer: kept features of a frozen backbone, memory, and resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.io import find_model
from nacre.runs.run import run_scenario
from nacre.training.loop import update
from nacre.training.trainer import KeptFeatures, Trainer, View, _generators, _set_generators
from nacre.utils.distributed import Distributed
from small_steps import random_images, second_step
from tiny_runs import tiny_config

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
    """Record the number of images in each call of the backbone."""
    counts: list[int] = []
    read = DeepLab.read_maps

    def counting(network: DeepLab, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts.append(len(images))
        return read(network, images)

    monkeypatch.setattr(DeepLab, "read_maps", counting)
    return counts


def note_views(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, View]]:
    """Record every view that a step trains on, with the number of its store of features."""
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
def test_each_view_passes_the_backbone_once_with_the_same_model_as_without_kept_features(
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


def test_too_little_memory_is_a_sentence_with_the_keys_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, _, samples = second_step("ft", count=1)
    ask = Trainer.forward

    def limited(self: Trainer, images: torch.Tensor, views: Any) -> Any:
        if len(images) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return ask(self, images, views)

    monkeypatch.setattr(Trainer, "forward", limited)
    with pytest.raises(NacreError, match=r"with 4 images at once .*micro_batch below 4,"):
        update(trainer, [samples[0]])


def test_loaded_tensors_have_the_memory_layout_of_their_parameter() -> None:
    trainer, _, samples = second_step("ewc", count=1)
    again = second_step("ewc", count=1)[0]
    for one in (trainer, again):  # as on a GPU
        one.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    update(trainer, [samples[0]])
    state = {key: value.clone().contiguous() for key, value in trainer.state().items()}
    again.load_state(state, 1, {})
    parameters = dict(again.network.named_parameters())
    assert any(not one.is_contiguous() for one in parameters.values())
    for name, parameter in parameters.items():
        momentum = again.optimizer.state[parameter]["momentum_buffer"]
        assert momentum.stride() == parameter.stride()
        assert torch.equal(momentum, state[f"optimizer.momentum_buffer.{name}"])
        if name in again.method.values["omega"]:
            assert again.method.values["omega"][name].stride() == parameter.stride()
    images, targets = random_images([0, 3], 1)
    update(trainer, [(images, targets)])
    update(again, [(images, targets)])
    for one, other in zip(trainer.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, other)


ALONE = Distributed(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("process", [ALONE, Distributed(1, 2, torch.device("cpu"))])
def test_generators_resume_and_a_new_process_takes_the_main_ones(process: Any) -> None:
    states = _generators(ALONE)
    drawn = torch.rand(3)
    torch.manual_seed(99)
    _set_generators(states, process)
    assert torch.equal(torch.rand(3), drawn)
