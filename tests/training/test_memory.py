"""Memory that is not enough is one sentence; what is loaded lies as it lay."""

import pytest
import torch

from nacre.errors import NacreError
from nacre.training.loop import update
from nacre.training.trainer import Trainer
from small_steps import random_images, second_step


def small_device(monkeypatch, most):
    """Let gradients of more images than so many at once not fit."""
    ask = Trainer.ask_networks

    def limited(self, images, *given):
        if len(images) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return ask(self, images, *given)

    monkeypatch.setattr(Trainer, "ask_networks", limited)


def test_too_little_memory_is_a_sentence_with_what_to_set(monkeypatch):
    trainer, _, samples = second_step("ft", count=1)
    small_device(monkeypatch, 3)
    with pytest.raises(NacreError, match=r"with 4 images at once .*micro_batch below 4,"):
        update(trainer, [samples[0]])


def test_what_is_loaded_lies_in_memory_as_its_parameter_does():
    trainer, _, samples = second_step("ewc", count=1)
    update(trainer, [samples[0]])
    state = {key: value.clone().contiguous() for key, value in trainer.state().items()}
    again = second_step("ewc", count=1)[0]
    again.load_state(state, 1, {})
    parameters = dict(again.network.named_parameters())
    assert any(not one.is_contiguous() for one in parameters.values())
    for name, parameter in parameters.items():
        momentum = again.optimizer.state[parameter]["momentum_buffer"]
        assert momentum.stride() == parameter.stride()
        assert torch.equal(momentum, state[f"optimizer.momentum_buffer.{name}"])
        if name in again.method.tables["omega"]:
            assert again.method.tables["omega"][name].stride() == parameter.stride()
    images, targets = random_images([0, 3], 1)
    update(trainer, [(images, targets)])
    update(again, [(images, targets)])
    for one, other in zip(trainer.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, other)
