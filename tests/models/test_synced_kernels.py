"""The norm of several processes on CUDA: torch's kernels, for which formulas stand in here."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from nacre.models import abn, inplace_abn, synced_kernels
from nacre.models.abn import ABN
from nacre.models.foreign import batch_norm
from nacre.models.foreign.batch_norm import joined_batch_norm
from nacre.models.inplace_abn import InPlaceABN

DIMS = (0, 2, 3)
EPS, MOMENTUM = 1e-5, 0.1


def _wide(values):
    return values.view(-1, 1, 1)


def stats(x, eps):
    return x.mean(DIMS), (x.var(DIMS, correction=0) + eps).rsqrt()


def gather_stats(x, means, scales, running_mean, running_var, momentum, eps, counts):
    share = (counts / counts.sum()).unsqueeze(1)
    mean = (share * means).sum(0)
    variances = scales.pow(-2) - eps + (means - mean).square()
    var = (share * variances).sum(0)
    if running_mean is not None:
        count = counts.sum()
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * count / (count - 1), momentum)
    return mean, (var + eps).rsqrt()


def elemt(x, weight, bias, mean, scale, eps):
    return (x - _wide(mean)) * _wide(scale * weight) + _wide(bias)


def backward_reduce(dy, x, mean, scale, weight, *wanted):
    assert dy.stride() == x.stride(), "the kernels read both alike"
    total, product = dy.sum(DIMS), (dy * (x - _wide(mean))).sum(DIMS)
    return total, product, product * scale, total


def backward_elemt(dy, x, mean, scale, weight, total, product, counts):
    assert counts.dtype == torch.int32
    count = counts.sum()
    xhat = (x - _wide(mean)) * _wide(scale)
    return (dy - _wide(total / count) - xhat * _wide(product * scale / count)) * _wide(
        scale * weight
    )


KERNELS = {
    "batch_norm_stats": stats,
    "batch_norm_gather_stats_with_counts": gather_stats,
    "batch_norm_elemt": elemt,
    "batch_norm_backward_reduce": backward_reduce,
    "batch_norm_backward_elemt": backward_elemt,
}


class Pair:
    """Two threads that exchange tensors as two processes do."""

    def __init__(self):
        self.meeting = threading.Barrier(2, timeout=60)
        self.tensors = {}
        self.rank = threading.local()

    def _exchange(self, tensor):
        self.tensors[self.rank.value] = tensor.clone()
        self.meeting.wait()
        both = [self.tensors[0], self.tensors[1]]
        self.meeting.wait()
        return both

    def all_gather(self, out, tensor):
        out.copy_(torch.stack(self._exchange(tensor)))

    def all_reduce(self, tensor):
        one, other = self._exchange(tensor)
        tensor.copy_(one + other)

    def run(self, work):
        def of_rank(rank):
            self.rank.value = rank
            return work(rank)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(of_rank, (0, 1)))


@pytest.fixture
def pair(monkeypatch):
    found = Pair()
    for name, kernel in KERNELS.items():
        monkeypatch.setattr(torch, name, kernel)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_into_tensor", found.all_gather)
    monkeypatch.setattr(dist, "all_reduce", found.all_reduce)
    for module in (abn, inplace_abn, batch_norm):
        monkeypatch.setattr(module, "world_size", lambda: 2)
    return found


def turn_kernels(monkeypatch, on):
    for module in (abn, inplace_abn, batch_norm, synced_kernels):
        monkeypatch.setattr(module, "has_kernels", lambda x: on)


def data(parts, layout):
    torch.manual_seed(3)
    x = torch.randn(sum(parts), 6, 5, 4) * 3 + torch.arange(6.0).view(-1, 1, 1)
    dy = torch.randn_like(x)
    return [
        [one.contiguous(memory_format=layout) for one in values.split(parts)] for values in (x, dy)
    ]


def of_layer(kind, xs, dys, pair):
    """Output, gradients and running statistics of two processes that share a layer's weights."""
    torch.manual_seed(1)
    first = kind(6, eps=EPS, momentum=MOMENTUM)
    nn.init.normal_(first.weight, 1, 0.5)
    nn.init.normal_(first.bias)
    layers = first, copy.deepcopy(first)  # threads share the generator

    def work(rank):
        layer = layers[rank]
        x = xs[rank].clone(memory_format=torch.preserve_format).requires_grad_()
        y = layer(x)
        y.backward(dys[rank])
        statistics = layer.running_mean, layer.running_var, layer.num_batches_tracked
        return [y.detach(), x.grad, layer.weight.grad, layer.bias.grad, *statistics]

    return pair.run(work)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("parts", [(2, 2), (3, 1)])
@pytest.mark.parametrize("kind", [ABN, InPlaceABN])
def test_the_kernels_give_what_sums_in_float64_give(kind, parts, layout, pair, monkeypatch):
    xs, dys = data(parts, layout)
    found = []
    for on in (True, False):
        turn_kernels(monkeypatch, on)
        found.append(of_layer(kind, xs, dys, pair))
    for kernels, sums in zip(*found, strict=True):
        for one, other in zip(kernels, sums, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_two_processes_give_what_one_gives_of_both_batches(pair, monkeypatch):
    xs, dys = data((3, 1), torch.channels_last)
    turn_kernels(monkeypatch, True)
    weight, bias = torch.rand(6) + 0.5, torch.randn(6)
    whole = torch.cat(xs).requires_grad_()
    mean, var = torch.zeros(6), torch.ones(6)
    expected = F.batch_norm(whole, mean, var, weight, bias, True, MOMENTUM, EPS)
    expected.backward(torch.cat(dys))

    def work(rank):
        x = xs[rank].clone(memory_format=torch.preserve_format).requires_grad_()
        running = torch.zeros(6), torch.ones(6)
        y = joined_batch_norm(x, *running, weight, bias, True, MOMENTUM, EPS)
        y.backward(dys[rank])
        return y.detach(), x.grad, *running

    y, dx, *running = zip(*pair.run(work), strict=True)
    torch.testing.assert_close(torch.cat(y), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(dx), whole.grad, rtol=1e-4, atol=1e-5)
    for of_process, wanted in zip(running, (mean, var), strict=True):
        for one in of_process:
            torch.testing.assert_close(one, wanted)
