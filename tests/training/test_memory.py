"""Memory that is not enough is one sentence, and `auto` finds what fits."""

import pytest
import torch

from fake_device import NEEDS, fake_device
from nacre.errors import NacreError
from nacre.training.micro_batch import fitting_micro_batch
from nacre.training.trainer import Trainer
from nacre.utils.distributed import Distributed
from small_steps import pictures, second_step

CUDA = Distributed(0, 1, torch.device("cuda", 0))


def small_device(monkeypatch, most):
    """Let gradients of more images than so many at once not fit."""
    losses, tried = Trainer._losses, []

    def limited(self, sample, num_valid):
        tried.append(len(sample[0]))
        if len(sample[0]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return losses(self, sample, num_valid)

    monkeypatch.setattr(Trainer, "_losses", limited)
    return tried


def test_too_little_memory_is_a_sentence_with_what_to_set(monkeypatch):
    trainer, _, samples = second_step("ft", count=1)
    small_device(monkeypatch, 3)
    with pytest.raises(NacreError, match=r"with 4 images at once .* train.micro_batch=auto finds"):
        trainer.update([samples[0]])


@NEEDS
def test_auto_takes_the_largest_part_of_a_batch_that_fits_and_leaves_no_trace(monkeypatch):
    with fake_device():
        trainer, _, _ = second_step("rw", dist=CUDA, count=1, train={"optimizer": "adamw"})
        before = {name: id(value) for name, value in trainer.network.named_buffers()}
        seed = torch.get_rng_state()
        tried = small_device(monkeypatch, 5)
        assert fitting_micro_batch(trainer, 12, 32) == 4
        assert tried == [12, 6, 4]
        assert {name: id(value) for name, value in trainer.network.named_buffers()} == before
        assert all(one.grad is None for one in trainer.network.parameters())
        assert torch.equal(torch.get_rng_state(), seed)


@NEEDS
def test_where_nothing_fits_it_is_said(monkeypatch):
    with fake_device():
        trainer = second_step("ft", dist=CUDA, count=1)[0]
        small_device(monkeypatch, 1)
        with pytest.raises(NacreError, match="not even 2 images fit the GPU at once"):
            fitting_micro_batch(trainer, 4, 32)


def test_a_trial_leaves_running_statistics_as_they_were(monkeypatch):
    trainer = second_step("ft", count=1)[0]
    before = {name: value.clone() for name, value in trainer.network.named_buffers()}
    trainer.dist = CUDA
    monkeypatch.setattr(Trainer, "find_gradients", lambda self, sample: self.network(sample[0]))
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: torch.enable_grad())
    assert fitting_micro_batch(trainer, 4, 32) == 4
    for name, value in trainer.network.named_buffers():
        assert torch.equal(value, before[name])


def test_on_a_cpu_auto_takes_the_whole_batch_and_several_processes_are_refused():
    trainer = second_step("ft", count=1)[0]
    assert fitting_micro_batch(trainer, 12, 32) == 12
    trainer.dist = Distributed(0, 2, torch.device("cpu"))
    with pytest.raises(NacreError, match="is for one process"):
        fitting_micro_batch(trainer, 12, 32)


def test_what_is_loaded_lies_in_memory_as_its_parameter_does():
    trainer, _, samples = second_step("ewc", count=1, train={"ema_decay": 0.9})
    trainer.update([samples[0]])
    state = {key: value.clone().contiguous() for key, value in trainer.state().items()}
    again = second_step("ewc", count=1, train={"ema_decay": 0.9})[0]
    again.load_state(state, 1, {})
    parameters = dict(again.network.named_parameters())
    assert any(not one.is_contiguous() for one in parameters.values())
    for name, parameter in parameters.items():
        momentum = again.optimizer.state[parameter]["momentum_buffer"]
        assert momentum.stride() == parameter.stride()
        assert torch.equal(momentum, state[f"optimizer.momentum_buffer.{name}"])
        assert again.average.tensors[name].stride() == parameter.stride()
        if name in again.method.tables["omega"]:
            assert again.method.tables["omega"][name].stride() == parameter.stride()
    images, targets = pictures([0, 3], 1)
    trainer.update([(images, targets)])
    again.update([(images, targets)])
    for one, other in zip(trainer.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, other)
