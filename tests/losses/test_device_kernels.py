"""The losses as a GPU computes them, on the CPU; and what all losses cost a GPU that is not there,
against upsampling first."""

import pytest
import torch

from fake_device import NEEDS, fake_device
from nacre.losses import reference, sigmoid
from nacre.losses.device_kernels import PlainKernel, weighted_exp
from nacre.losses.fused import _losses, fused_binary_losses, fused_losses
from nacre.losses.pseudo_labels import weighted_cross_entropy
from nacre.losses.reference import upsample
from nacre.ops import strip_upsample


def problem(old=4, new=3, seed=0, low=5, size=37, images=3):
    g = torch.Generator().manual_seed(seed)
    student = 4 * torch.randn(images, old + new, low, low, generator=g)
    teacher = 4 * torch.randn(images, old, low, low, generator=g)
    targets = torch.randint(0, old + new, (images, size, size), generator=g, dtype=torch.uint8)
    targets[torch.rand(targets.shape, generator=g) < 0.1] = 255
    return student, teacher, targets


@pytest.mark.parametrize("strip_bytes", [4000, 4 << 20])
def test_the_kernel_gives_what_upsampling_first_gives(strip_bytes, monkeypatch):
    monkeypatch.setattr(strip_upsample, "_CPU_STRIP_BYTES", strip_bytes)
    student, teacher, targets = problem()
    found, wanted = (student.clone().requires_grad_() for _ in range(2))
    divisors = {
        "ce": reference.pixel_count(student, targets, None, 255),
        "kd": torch.tensor(float(targets.numel() * 4)),
    }
    losses = _losses(PlainKernel(True, True, 4, 255), found, teacher, targets, divisors)
    full, old = upsample(wanted, (37, 37)), upsample(teacher, (37, 37))
    expected = {
        "ce": reference.cross_entropy(full, targets),
        "kd": reference.distillation(full, old),
    }
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, rtol=1e-5, atol=1e-6)
    (losses["ce"] + 10 * losses["kd"]).backward()
    (expected["ce"] + 10 * expected["kd"]).backward()
    torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-6)


def test_images_have_their_weights():
    student, _, targets = problem(seed=1)
    weights = torch.tensor([0.0, 0.3, 2.0])
    found, wanted = (student.clone().requires_grad_() for _ in range(2))
    kernel = PlainKernel(ce=True, kd=False, num_old=1, ignore_index=255)
    divisors = {"ce": torch.tensor(1000.0)}
    loss = _losses(kernel, found, None, targets, divisors, weights.unsqueeze(1))["ce"]
    expected = weighted_cross_entropy(wanted, targets, weights, num_pixels=1000.0)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-7)


def test_a_power_times_a_weight_takes_one_pass():
    log_q = torch.tensor([[0.0, -1.0], [-200.0, -0.5]])
    weight = torch.tensor([[0.0], [3.0]])
    found = weighted_exp(log_q, weight, out=torch.empty_like(log_q))
    torch.testing.assert_close(found, weight * log_q.exp())


def of_mib(x, z, y):
    return reference.unbiased_cross_entropy(x, y, z.shape[1]) + reference.unbiased_distillation(
        x, z
    )


def of_lwf(x, z, y):
    return reference.cross_entropy(x, y) + reference.distillation(x, z)


def of_lwf_mc(x, z, y):
    return reference.binary_cross_entropy(x, y) + reference.binary_distillation(x, z)


def of_dkd(x, z, y):
    num_old = z.shape[1]
    bce = sigmoid.new_binary_cross_entropy(x[:, num_old:], y, num_old)
    return bce + reference.binary_distillation(x, z)


def of_star(x, z, y):
    return sigmoid.new_binary_cross_entropy(x[:, z.shape[1] :], y, z.shape[1], positive_weight=4.0)


def fused_star(x, z, y):
    first_new = z.shape[1]
    new = x[:, first_new:]
    return sigmoid.fused_split_binary_losses(new, y, first_new=first_new, positive_weight=4.0)


def of_plop(x, z, y):
    """The mean of each image, weighted."""
    log_q = x.log_softmax(1)
    by_pixel = torch.nn.functional.nll_loss(log_q, y.long(), ignore_index=255, reduction="none")
    return (by_pixel.sum((1, 2)) * weights_of(x)).sum() / y.numel()


def weights_of(x):
    return torch.full((len(x),), 0.5, device=x.device)


# How a loss is computed, and the same on upsampled logits.
LOSSES = {
    "ft": (lambda x, z, y: fused_losses(x, y), lambda x, z, y: reference.cross_entropy(x, y)),
    "lwf": (lambda x, z, y: fused_losses(x, y, z, kd="plain"), of_lwf),
    "mib": (lambda x, z, y: fused_losses(x, y, z, ce="unbiased", kd="unbiased"), of_mib),
    "lwf-mc": (lambda x, z, y: fused_binary_losses(x, y, z, distil=True), of_lwf_mc),
    "lwf-mc-d": (
        lambda x, z, y: fused_binary_losses(x, y, z, old_targets="teacher"),
        lambda x, z, y: reference.binary_mixed(x, y, z, labeled_background=False),
    ),
    "dkd": (
        lambda x, z, y: sigmoid.fused_split_binary_losses(x, y, z, first_new=z.shape[1]),
        of_dkd,
    ),
    "star": (fused_star, of_star),
    "plop": (lambda x, z, y: {"ce": weighted_cross_entropy(x, y, weights_of(x))}, of_plop),
}


def modelled(device, loss, classes, batch=24):
    """The modelled milliseconds of a loss and its gradient, from stride 16 to 512 x 512."""
    num_old = classes * 2 // 3
    student = torch.empty(batch, classes, 32, 32, device="cuda", requires_grad=True)
    teacher = torch.empty(batch, num_old, 32, 32, device="cuda")
    targets = torch.empty(batch, 512, 512, dtype=torch.uint8, device="cuda")
    device.bytes.clear()
    found = loss(student, teacher, targets)
    total = sum(found.values()) if isinstance(found, dict) else found
    total.backward()
    return device.milliseconds()


@NEEDS
@pytest.mark.parametrize("classes", [21, 151])
@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_costs_a_gpu_more_than_upsampling_first(name, classes):
    ours, theirs = LOSSES[name]

    def plain(x, z, y):
        return theirs(upsample(x, (512, 512)), upsample(z, (512, 512)), y)

    with fake_device("cuda", memory=80 << 30) as device:
        found, wanted = (modelled(device, loss, classes) for loss in (ours, plain))
    assert found <= wanted
