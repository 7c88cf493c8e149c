"""Norms against autograd through torch's batch norm, and two processes against one."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models import norm as norms
from nacre.models.norm import (
    ABN,
    Activation,
    InPlaceABN,
    channel_statistics,
    synchronize_batch_norm,
)
from nacre.utils.distributed import exit_process, init_distributed, leave_distributed
from one_and_two import end_two

NORMS: dict[str, type[ABN] | type[InPlaceABN]] = {"abn": ABN, "iabn": InPlaceABN}
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "leaky_relu": lambda y: F.leaky_relu(y, 0.01),
    "identity": lambda y: y,
    "relu": F.relu,
    "relu6": F.relu6,
}
INVERTIBLE: list[Activation] = ["leaky_relu", "identity"]
WEIGHT, BIAS = (1.5, -0.7, 0.2, -0.4), (-0.3, 0.1, 0.5, 0.0)

each_norm = pytest.mark.parametrize("name", NORMS)
each_way = pytest.mark.parametrize("native", [True, False], ids=["kernel", "formula"])


def make(name: str = "iabn", activation: Activation = "leaky_relu") -> Any:
    made = NORMS[name](4, activation=activation)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(WEIGHT))
        made.bias.copy_(torch.tensor(BIAS))
    return made


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return 2 + 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Plain(nn.Module):
    """The same function, differentiated by autograd."""

    def __init__(self, norm: ABN) -> None:
        super().__init__()
        self.batch_norm, self.norm = nn.BatchNorm2d(4), [norm]
        self.batch_norm.load_state_dict(norm.state_dict())

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        bn, (norm,) = self.batch_norm, self.norm
        weight, bn_count = bn.weight, bn.num_batches_tracked
        if isinstance(norm, InPlaceABN):  # as the original: the sign of 0 is +
            weight = torch.where(weight < 0, -weight, weight) + 1e-5
        if self.training and bn_count is not None:
            bn_count.add_(1)
        y = F.batch_norm(x, bn.running_mean, bn.running_var, weight, bn.bias, self.training)
        return ACTIVATIONS[norm.activation](y if shortcut is None else y + shortcut)


def trained(module: nn.Module, x: Tensor, *shortcuts: Tensor) -> dict[str, Any]:
    """Return what two training steps leave; the loss is a sum, whose gradient needs no weighting.

    Weights that differ by position keep the gradient of the statistics from vanishing.
    """
    inputs = [one.clone().requires_grad_() for one in (x, *shortcuts)]
    for _ in range(2):
        y = module(*inputs)
        (y * torch.linspace(-1, 2, y.shape[-1])).sum().backward()
    found = {"y": y, "dx": inputs[0].grad}
    if shortcuts:
        found["dshortcut"] = inputs[1].grad
    for key, one in module.named_parameters():
        found[f"d {key.removeprefix('batch_norm.')}"] = one.grad
    found |= {key.removeprefix("batch_norm."): one for key, one in module.named_buffers()}
    return {key: value.detach().numpy().copy() for key, value in found.items()}  # type: ignore[union-attr]


CASES = [("abn", one) for one in ACTIVATIONS] + [("iabn", one) for one in INVERTIBLE]


@each_way
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("name", "activation"), CASES)
def test_outputs_gradients_and_statistics(
    name: str, activation: Activation, add: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(norms, "_NATIVE", ())
    inputs = [pixels(3, 4, 5, 6), pixels(3, 4, 5, 6, seed=1)][: 1 + add]
    own = make(name, activation)
    plain = Plain(own)
    expected, got = trained(plain, *inputs), trained(own, *inputs)
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-4, atol=1e-4, err_msg=key)
    x = pixels(1, 4, 1, 1, seed=2)
    torch.testing.assert_close(own.eval()(x), plain.eval()(x))


def test_a_weight_of_0_has_the_scale_eps() -> None:
    norm = make()
    nn.init.zeros_(norm.weight)
    got, expected = (trained(one, pixels(3, 4, 5, 6)) for one in (norm, Plain(norm)))
    for key in ("y", "dx", "d bias"):
        np.testing.assert_allclose(got[key], expected[key], rtol=1e-4, atol=1e-4, err_msg=key)
    # digits of the normalized input are lost in the output
    np.testing.assert_allclose(got["d weight"], expected["d weight"], rtol=0.05, atol=0.05)


def test_only_the_output_is_kept() -> None:
    """A chain of convolutions and norms with a shortcut keeps what the convolutions read."""
    first, second = (nn.Conv2d(4, 4, 1) for _ in range(2))
    pair = make(), make()
    kept: set[int] = set()
    held: list[Tensor] = []

    def keep(value: Tensor) -> Tensor:
        if value.shape == x.shape:
            held.append(value)
            kept.add(value.untyped_storage().data_ptr())
        return value

    x = pixels(2, 4, 8, 8).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        y = pair[0](first(x))
        z = pair[1](second(y), x)
    assert kept == {value.untyped_storage().data_ptr() for value in (x, y, z)}


@pytest.mark.parametrize("add", [False, True])
def test_bfloat16_as_under_autocast(add: bool) -> None:
    """Input in half precision, parameters in float32; gradients within its 3 digits."""
    x = pixels(4, 4, 8, 8).bfloat16()
    shortcuts = [10 * pixels(4, 4, 8, 8, seed=1).bfloat16()] if add else []
    factors = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(5))
    grads = []
    for dtype in (torch.float32, torch.bfloat16):
        layer, leaf = make(), x.to(dtype).requires_grad_()
        y = layer(leaf, *(one.to(dtype) for one in shortcuts))
        assert y.dtype == dtype
        (y.float() * factors).sum().backward()
        assert leaf.grad is not None
        grads.append((leaf.grad.float(), layer.weight.grad, layer.bias.grad))
    for expected, got in zip(*grads, strict=True):
        assert (got - expected).norm() < 0.02 * expected.norm()


@each_norm
def test_one_value_per_channel_is_refused_with_the_batch_size(name: str) -> None:
    one = torch.ones(1, 4, 1, 1)
    with pytest.raises(NacreError, match=r"one image at a time .* 1 x 4 x 1 x 1.* 2 or more"):
        make(name)(one)
    assert make(name).eval()(one).shape == (1, 4, 1, 1)
    assert make(name)(pixels(2, 4, 1, 1)).shape == (2, 4, 1, 1)


@each_norm
def test_empty_batch_changes_nothing(name: str) -> None:
    own = make(name)
    before = {key: value.clone() for key, value in own.state_dict().items()}
    x = torch.empty(0, 4, 3, 3, requires_grad=True)
    own(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 4, 3, 3)
    for key, value in own.state_dict().items():
        assert torch.equal(value, before[key])


# Batch norms of other libraries


class NormAct(nn.BatchNorm2d):
    """As timm's: calls `F.batch_norm` itself and activates."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias,
            self.training, 0.2, self.eps,
        )  # fmt: skip
        return F.silu(y)


def external() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4, momentum=0.3),
        nn.ReLU(),
        NormAct(4),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.SyncBatchNorm(4),
        nn.Flatten(2),
        nn.BatchNorm1d(4),
        nn.Dropout(0),
    )


def synchronized() -> nn.Module:
    module = external()
    synchronize_batch_norm(module)
    synchronize_batch_norm(module)
    return module


def test_one_process_leaves_norms_of_other_libraries_as_they_were() -> None:
    plain, module = external(), synchronized()
    assert isinstance(module[3], NormAct)  # type: ignore[index]
    assert list(module.state_dict()) == list(plain.state_dict())
    found = trained(module, pixels(5, 4, 6, 7))
    for key, value in trained(plain, pixels(5, 4, 6, 7)).items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


def test_on_gpus_several_processes_use_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def apply(*args: Any) -> Tensor:
        calls.append(args)
        return args[0] + 1

    monkeypatch.setattr(norms, "world_size", lambda: 2)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(norms.SyncBatchNorm, "apply", apply)
    x, norm = pixels(2, 4, 5, 6), make("abn", "relu")
    assert torch.equal(norm(x), (x + 1).relu())
    names = list(inspect.signature(norms.SyncBatchNorm.forward).parameters)[1:]
    given = dict(zip(names, calls[0], strict=True))
    for name in ("weight", "bias", "running_mean", "running_var", "eps", "momentum"):
        assert given[name] is getattr(norm, name), name
    assert given["input"] is x
    assert given["world_size"] == 2
    norms.batch_norm(x, None, None, training=True)
    assert torch.equal(calls[1][1], torch.ones(4)), "a norm without weights"


# Two processes


class Block(nn.Module):
    """Convolutions, norms and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm1, self.norm2 = make(), make()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm2(self.conv2(self.norm1(self.conv1(x))), x)
        return y


def block_gradients(block: nn.Module, x: Tensor) -> dict[str, Any]:
    """Return the gradients of two steps; the loss is a mean over the images, as a trainer's."""
    for _ in range(2):
        (block(x) * torch.linspace(-1, 2, 30).view(5, 6)).mean().backward()
    return {
        name.removeprefix("module."): p.grad.numpy().copy()
        for name, p in block.named_parameters()
        if p.grad is not None
    }


Sizes = tuple[int, int]
"""Images of each process."""

TRIALS: dict[str, tuple[Callable[[], nn.Module], Sizes, bool]] = {
    # what is trained, images of each process, whether a shortcut is added
    "abn, unequal parts": (lambda: make("abn"), (1, 3), True),
    "abn, identity": (lambda: make("abn", "identity"), (2, 2), False),
    "abn, an empty part": (lambda: make("abn"), (0, 2), False),
    "iabn, unequal parts": (lambda: make("iabn"), (1, 3), True),
    "iabn, identity": (lambda: make("iabn", "identity"), (2, 2), False),
    "iabn, an empty part": (lambda: make("iabn"), (0, 2), False),
    "others' norms": (synchronized, (2, 3), False),
}
FAR_FROM_ZERO = 1000 + torch.linspace(-1e-2, 1e-2, 64).view(2, 1, 4, 8)


def trial(name: str, part: slice) -> dict[str, Any]:
    module, sizes, add = TRIALS[name]
    inputs = [pixels(sum(sizes), 4, 5, 6), pixels(sum(sizes), 4, 5, 6, seed=1)][: 1 + add]
    return trained(module(), *(one[part] for one in inputs))


def share(rank: int) -> dict[str, Any]:
    """Return everything that is to be tried in two processes: starting them takes the time."""
    trials = {}
    for name, (_, sizes, _) in TRIALS.items():
        trials[name] = trial(name, slice(0, sizes[0]) if rank == 0 else slice(sizes[0], None))
    far = ABN(1, activation="identity")
    far(FAR_FROM_ZERO[rank : rank + 1])
    one_each = ABN(2)(torch.full((1, 2, 1, 1), float(rank)))
    with pytest.raises(NacreError) as refused:
        ABN(2)(torch.ones(1 - rank, 2, 1, 1))
    if rank == 0:  # in eval nobody waits for the other process
        copy.deepcopy(synchronized()).eval()(pixels(2, 4, 6, 7))
    parallel = nn.parallel.DistributedDataParallel(Block())
    return {
        "trials": trials,
        "far": far.running_var.item(),
        "one each": one_each[0, 0, 0, 0].item(),
        "one in all": str(refused.value),
        "block": block_gradients(parallel, pixels(4, 4, 5, 6)[2 * rank : 2 * rank + 2]),
    }


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("pair")
    for process in end_two(Path(__file__), folder):
        assert process.returncode == 0, process.stderr
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIALS)
def test_two_processes_equal_one(shares: list[dict[str, Any]], name: str) -> None:
    first, second = (share["trials"][name] for share in shares)
    tolerance = 2e-4 if name.startswith("others") else 1e-5
    for key, expected in trial(name, slice(None)).items():
        if key in ("y", "dx", "dshortcut"):
            got = np.concatenate([first[key], second[key]])
        elif key.startswith("d "):
            got = first[key] + second[key]
        else:
            got = first[key]
            np.testing.assert_array_equal(first[key], second[key])
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.slow
def test_data_parallel_training_equals_one_process(shares: list[dict[str, Any]]) -> None:
    whole = block_gradients(Block(), pixels(4, 4, 5, 6))
    assert len(whole) == 8
    for one in shares:
        for name, expected in whole.items():
            got = one["block"][name]
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_variance_survives_a_mean_far_from_zero(shares: list[dict[str, Any]]) -> None:
    expected = 0.9 + 0.1 * FAR_FROM_ZERO.double().var().item()
    for one in shares:
        assert one["far"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_one_value_in_each_of_two_processes_is_enough(shares: list[dict[str, Any]]) -> None:
    assert [one["one each"] for one in shares] == pytest.approx([-0.01, 1], abs=1e-3)
    for one in shares:
        assert one["one in all"].startswith("one image at a time ")


@pytest.mark.parametrize("shape", [(2, 16, 256, 256), (3, 5, 61, 47), (0, 4, 3, 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_statistics_have_the_digits_of_float64(shape: tuple[int, ...], layout: Any) -> None:
    x = pixels(*shape).relu().contiguous(memory_format=layout)
    mean, var = channel_statistics(x)
    exact = x.double() if x.numel() else torch.zeros(1, 4, 1, 1)
    torch.testing.assert_close(mean, exact.double().mean((0, 2, 3)), rtol=2e-6, atol=0)
    wanted = exact.double().var((0, 2, 3), correction=0)
    torch.testing.assert_close(var, wanted, rtol=2e-6, atol=0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = init_distributed("cpu").rank
    Path(sys.argv[1], str(rank)).write_bytes(pickle.dumps(share(rank)))
    leave_distributed()
    exit_process(0)
