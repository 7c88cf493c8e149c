"""What the losses cost a GPU that is not there, against upsampling first.

That the kernel which GPUs take gives what the others give is seen in test_fused.py.
"""

from types import SimpleNamespace

import pytest
import torch

from fake_device import NEEDS, fake_device
from losses.test_fused import CASES
from nacre.losses.device_kernels import weighted_exp
from nacre.losses.reference import upsample


def test_a_power_times_a_weight_takes_one_pass():
    log_q = torch.tensor([[0.0, -1.0], [-200.0, -0.5]])
    weight = torch.tensor([[0.0], [3.0]])
    found = weighted_exp(log_q, weight, out=torch.empty_like(log_q))
    torch.testing.assert_close(found, weight * log_q.exp())


def modelled(device, loss, classes, batch=24):
    """The modelled milliseconds of a loss and its gradient, from stride 16 to 512 x 512."""
    num_old = classes * 2 // 3
    on_device = {"device": "cuda"}
    problem = SimpleNamespace(
        num_old=num_old,
        old=torch.empty(batch, num_old, 32, 32, **on_device),
        targets=torch.empty(batch, 512, 512, dtype=torch.uint8, **on_device),
        weights=torch.full((batch,), 0.5, **on_device),
        full=lambda x: upsample(x, (512, 512)),
    )
    student = torch.empty(batch, classes, 32, 32, requires_grad=True, **on_device)
    device.bytes.clear()
    sum(loss(student, problem).values()).backward()
    return device.milliseconds()


@NEEDS
@pytest.mark.parametrize("classes", [21, 151])
@pytest.mark.parametrize("name", ["ft", "lwf", "mib", "lwf-mc", "lwf-mc-d", "dkd", "star", "plop"])
def test_no_loss_costs_a_gpu_more_than_upsampling_first(name, classes):
    with fake_device("cuda", memory=80 << 30) as device:
        found, wanted = (modelled(device, loss, classes) for loss in CASES[name])
    assert found <= wanted
