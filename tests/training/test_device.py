"""The whole program on a fake GPU: it mixes no devices and waits for nothing."""

import numpy as np
import pytest
import torch

import nacre
from fake_device import NEEDS, FakeDevice, fake_device
from nacre.evaluation import metrics
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.metrics import ConfusionMatrix
from nacre.evaluation.predictor import Predictor
from nacre.methods import METHODS
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.norm import InPlaceABN
from nacre.runs.run import run_scenario
from nacre.training import trainer as trainers
from nacre.training.loop import update
from nacre.utils.distributed import Distributed
from nacre.utils.signals import Interrupted
from small_steps import second_step
from tiny_runs import StopAfter, tiny_config

pytestmark = [
    NEEDS,
    # What torch says of a device that is not there.
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning"),
]
CUDA = Distributed(0, 1, torch.device("cuda", 0))
# The updates of duo are those of mib.
STEPWISE = [
    n
    for n, kind in METHODS.items()
    if kind.learns_by_gradient and kind.name != "duo" and not kind.is_joint
]


@pytest.fixture
def device(request, monkeypatch):
    # Numbers that are read from the pretended device are made up: nothing can be checked by them.
    monkeypatch.setattr(
        metrics, "_matrix", lambda counts, channels: counts[1:-1].view(channels, -1)
    )
    with fake_device(getattr(request, "param", "cuda")) as found:
        yield found


def waits_of_updates(device: FakeDevice, trainer, samples, count=2):
    """Make updates; return the waits of all but the first, which allocates what is kept."""
    before = device.waits.copy()
    for at, sample in enumerate(samples[: count + 1]):
        if at == 1:
            before = device.waits.copy()
        update(trainer, [sample])
    return dict(device.waits - before)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPWISE)
def test_no_update_of_any_method_waits_for_the_device(device, name):
    trainer, _, samples = second_step(name, dist=CUDA, count=1, train={"precision": "bfloat16"})
    assert waits_of_updates(device, trainer, samples, 1) == {}
    assert device.kernels["convolution"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ewc", "rw"])
def test_a_loss_scale_and_clipping_wait_for_nothing(device, name):
    train = {"precision": "float16", "grad_clip_norm": 1.0}
    trainer, _, samples = second_step(name, "iabn", dist=CUDA, count=1, train=train)
    if name == "rw":  # the walk takes a step in every tenth update
        trainer.method.values["count"]["iterations"].fill_(9)
    assert waits_of_updates(device, trainer, samples) == {}
    assert any(name.startswith("_fused_sgd") for name in device.kernels)


def test_several_processes_do_not_wait_in_in_place_norms(device, monkeypatch):
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("all_reduce", None)):
        monkeypatch.setattr(torch.distributed, name, lambda *_, value=value: value)
    monkeypatch.setattr(trainers, "DistributedDataParallel", lambda network, **_: network)
    dist = Distributed(0, 2, torch.device("cuda", 0))
    trainer, _, samples = second_step("ft", "iabn", dist=dist, count=1)
    assert waits_of_updates(device, trainer, samples, 1) == {}
    assert any(isinstance(module, InPlaceABN) for module in trainer.network.modules())


def test_a_test_of_many_batches_waits_once(device):
    model = DeepLabConfig(backbone="tiny", decoder_channels=8)
    network = build_network(model, 5, 32).to("cuda")
    batch = torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, 32, 32).byte()
    for mode in ("full", "sliding"):
        predictor = Predictor(network, mode, 24)
        evaluate(predictor, [batch], [ConfusionMatrix(5, CUDA.device)], CUDA.device)
        counted = ConfusionMatrix(5, CUDA.device)
        before = device.waits.copy()
        evaluate(predictor, [batch] * 3, [counted], CUDA.device)
        assert sum((device.waits - before).values()) == 1


def config(method, **changes):
    data = {"train": 16, "val": 2, "size": 32, "seed": 3}
    changes["train"] = {"iterations": 2, "num_workers": 0, **changes.get("train", {})}
    return tiny_config(scenario="scenes/4-4/overlapped", method=method, data=data, **changes)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("device", "precision"), [("cuda", "float16"), ("mps", "float32")], indirect=["device"]
)
def test_a_run_is_learned_tested_interrupted_and_used_on_a_device(device, precision, tmp_path):
    out = tmp_path / "run"
    train = {"precision": precision, "micro_batch": 4}
    wanted = config("rw", model={"norm": "iabn"}, train=train)
    with pytest.raises(Interrupted):
        run_scenario(wanted, out, should_stop=StopAfter(2))
    run_scenario(wanted, out)
    assert nacre.load(out).predict(np.zeros((40, 50, 3), np.uint8)).mask.shape == (40, 50)
