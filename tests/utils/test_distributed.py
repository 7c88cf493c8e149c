"""How processes find and tell each other; what they do together is tested in tests/runs."""

import pytest
import torch

from nacre.utils import distributed
from nacre.utils.distributed import Distributed, init_distributed


@pytest.fixture
def joined(monkeypatch):
    """What a process says when it joins others; nobody is there."""
    said = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(
        distributed.dist, "init_process_group", lambda *a, **more: said.append((a, more))
    )
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(distributed.dist, "get_rank", lambda: 1)
    return said


def test_beside_nccl_gloo_moves_what_is_on_the_cpu_and_waits_for_hours(joined, monkeypatch):
    device = torch.device("cuda", 1)
    monkeypatch.setattr(distributed, "choose_device", lambda *given: device)
    monkeypatch.setattr(torch.cuda, "set_device", lambda given: None)
    assert init_distributed("auto").device == device
    assert joined[0][0] == ("cpu:gloo,cuda:nccl",)
    assert joined[0][1]["timeout"].total_seconds() > 3600


def test_numbers_of_the_cpu_do_not_go_over_the_gpu(monkeypatch):
    moved = []
    monkeypatch.setattr(distributed.dist, "all_reduce", moved.append)
    group = Distributed(0, 2, torch.device("cuda", 0))
    values = torch.tensor([1, 2])
    assert group.sum(values).device.type == "cpu"
    assert group.any(True, False) == (True, False)
    assert {one.device.type for one in moved} == {"cpu"}


def test_a_sum_has_the_gradient_of_its_own_part(monkeypatch):
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda tensor: tensor.data.mul_(2))
    own = torch.ones(3, requires_grad=True)
    total = Distributed(0, 2, torch.device("cpu")).sum((own * 3).sum())
    total.backward()
    assert (float(total.detach()), own.grad.tolist()) == (18.0, [3.0, 3.0, 3.0])
