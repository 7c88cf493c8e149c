"""What a device is told, and how many processes load pictures for it."""

import pytest
import torch

from nacre.utils import device as devices
from nacre.utils.device import choose_device, configure_backends, count_workers, sizes_vary

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


SWITCHES = (
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
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


def test_a_gpu_looks_for_fast_kernels_and_the_losses_keep_their_digits(flags):
    torch.backends.cuda.matmul.allow_tf32 = True
    configure_backends(CUDA, tf32=True, deterministic=False)
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    configure_backends(CUDA, tf32=False, deterministic=False)
    assert not torch.backends.cudnn.allow_tf32


def test_deterministic_means_no_search_for_kernels(flags, monkeypatch):
    monkeypatch.setattr(devices.os, "environ", environment := {})
    configure_backends(CUDA, tf32=True, deterministic=True)
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert torch.are_deterministic_algorithms_enabled()
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    configure_backends(CUDA, tf32=True, deterministic=False)
    assert torch.are_deterministic_algorithms_enabled(), "who asked for it elsewhere keeps it"
    assert not torch.backends.cudnn.benchmark


def test_nothing_is_set_for_a_cpu(flags):
    before = torch.backends.cudnn.benchmark
    configure_backends(CPU, tf32=False, deterministic=True)
    assert torch.backends.cudnn.benchmark == before
    assert not torch.are_deterministic_algorithms_enabled()


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


def test_no_kernels_are_looked_for_where_sizes_vary(flags):
    torch.backends.cudnn.benchmark = True
    with sizes_vary(False):
        assert torch.backends.cudnn.benchmark
    with sizes_vary(True):
        assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark
