"""What a device is told, and how many processes load images for it."""

import pytest
import torch

from nacre.utils import device as devices
from nacre.utils.device import (
    choose_device,
    configure_backends,
    count_workers,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


SWITCHES = (
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_tf32"),
)


@pytest.fixture
def flags():
    """The switches of torch, which are put back."""
    before = [getattr(place, name) for place, name in SWITCHES]
    yield
    for (place, name), value in zip(SWITCHES, before, strict=True):
        setattr(place, name, value)
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("precision", "tf32"), [("float32", False), ("tf32", True), ("auto", True)]
)
def test_tf32_is_for_convolutions_if_it_is_allowed_and_never_for_matrix_products(
    flags, precision, tf32
):
    for place, name in SWITCHES:
        setattr(place, name, not tf32)
    configure_backends(precision, CUDA)
    assert torch.backends.cudnn.allow_tf32 == tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.benchmark


def test_kernels_are_not_benchmarked_for_many_sizes_or_where_results_must_repeat(flags):
    configure_backends("auto", CUDA, one_size=False)
    assert not torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    configure_backends("auto", CUDA)
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("cores", "processes", "workers"), [(64, 1, 8), (64, 8, 8), (12, 4, 3), (2, 4, 1)]
)
def test_workers_share_the_cores_of_the_machine(cores, processes, workers, monkeypatch):
    monkeypatch.setattr(devices, "usable_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert count_workers("auto", CUDA) == workers
    assert count_workers("auto", CPU) == 0
    assert count_workers(3, CPU) == 3


def test_a_process_touches_no_gpu_but_its_own(monkeypatch):
    touched = []
    monkeypatch.setattr(torch, "empty", lambda *_, device: touched.append(device))
    assert choose_device("cuda", local_rank=3) == torch.device("cuda", 3)
    assert choose_device("cuda:1", local_rank=3) == torch.device("cuda", 1)
    assert touched == [torch.device("cuda", 3), torch.device("cuda", 1)]
