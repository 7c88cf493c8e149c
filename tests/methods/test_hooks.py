"""What the trainer shows a method's hooks, and which step 0 it lets a method take over."""

import pytest
import torch
import torch.nn.functional as F

from nacre.labels.channels import from_background
from nacre.losses.reference import upsample
from nacre.methods import METHODS
from nacre.methods.ewc import Ewc, EwcConfig
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.io import load_model
from nacre.runs.run import run_scenario
from nacre.training.events import StepSkipped, read_events
from nacre.training.loop import begin, update
from small_steps import GivenStep, recipe, updates
from tiny_runs import tiny_config

PULL = 3.0


class Watching(Ewc):
    """Keeps the gradients it is shown, and pulls all parameters towards 0."""

    def begin_step(self, step):
        super().begin_step(step)
        self.shown = []

    def after_backward(self, step):
        super().after_backward(step)
        self.shown.append([value.grad.clone() for value in step.network.parameters()])

    def penalties(self, step):
        squares = [value.square().sum() for value in step.network.parameters()]
        return {"pull": PULL * torch.stack(squares).sum()}


def trainer_of(parts, scaler=None):
    torch.manual_seed(1)
    config = DeepLabConfig(backbone="tiny", decoder_channels=8)
    network = build_network(config, 3, 32)
    method = Watching(EwcConfig(), from_background(0, 3))
    step = GivenStep(
        growth=from_background(0, 3),
        network=network,
        sampler=updates(2),
        config=recipe(batch_size=4, micro_batch=4 // parts, lr=0.01, precision="float32"),
    )
    trainer = begin(method, step)
    network.eval()  # with the statistics of a batch, its parts would not add up to the whole
    if scaler is not None:
        trainer.scaler = scaler
    return trainer


def batch(parts):
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 3, (4, 32, 32), generator=generator, dtype=torch.uint8)
    return list(zip(images.chunk(parts), labels.chunk(parts), strict=True)), images, labels


SCALERS = {
    "none": lambda: None,
    "scaled": lambda: torch.amp.GradScaler("cpu", init_scale=1024.0),
}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("scaler", SCALERS)
def test_gradients_are_shown_once_a_batch_complete_unscaled_and_without_the_penalty(parts, scaler):
    trainer = trainer_of(parts, SCALERS[scaler]())
    cut, images, labels = batch(parts)
    parameters = list(trainer.network.parameters())
    logits = upsample(trainer.network(images).logits, (32, 32))
    expected = torch.autograd.grad(F.cross_entropy(logits, labels.long()), parameters)
    before = [value.detach().clone() for value in parameters]
    losses = update(trainer, cut)
    assert set(losses) == {"ce", "pull"}
    (shown,) = trainer.method.shown
    for gradient, wanted, value, parameter in zip(shown, expected, before, parameters, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(parameter.grad, gradient + 2 * PULL * value)


def test_an_update_that_the_loss_scale_made_impossible_is_not_counted():
    trainer = trainer_of(1, torch.amp.GradScaler("cpu", init_scale=float("inf")))
    before = [value.detach().clone() for value in trainer.network.parameters()]
    update(trainer, batch(1)[0])
    assert trainer.method.shown == []
    assert all(map(torch.equal, before, trainer.network.parameters()))
    assert all(bool((one == 1).all()) for one in trainer.method.state().values())


SHORT = {"scenario": "scenes/4-4/overlapped"}


@pytest.mark.parametrize(
    ("method", "other"), [("ewc", "rw"), ("mib", "rw"), ("lwf-mc-c", "lwf-mc"), ("ilt", "ft")]
)
def test_a_step_0_that_has_more_is_as_good_as_ones_own(tmp_path, method, other):
    config, cache = tiny_config(**SHORT, method=method), tmp_path / "steps"
    run_scenario(config, tmp_path / "own")
    run_scenario(tiny_config(**SHORT, method=other), tmp_path / "other", cache=cache)
    run_scenario(config, tmp_path / "run", cache=cache)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [one.step for one in events if isinstance(one, StepSkipped)] == [0]
    own, taken = (tmp_path / name / "step-1" / "model.safetensors" for name in ("own", "run"))
    assert own.read_bytes() == taken.read_bytes()
    kept = {key.partition(".")[0] for key in load_model(taken)[2]}
    assert kept == METHODS[method].persistent_state
