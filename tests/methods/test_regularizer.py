"""EWC, PI and RW against slow references: written from the equations, on whole trajectories."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nacre.errors import NacreError
from nacre.labels.channels import from_background
from nacre.methods import METHODS
from small_steps import GivenStep, updates

STEPS = (3, 2, 1)  # channels that each step adds
ITERATIONS = 23  # RW looks back every tenth
LR, MOMENTUM, DECAY = 0.05, 0.9, 1e-3
WEIGHTS = {"ewc": 0.7, "pi": 0.4, "rw": 0.3}


class Small(nn.Module):
    """Two layers, the second of which grows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.body = nn.Linear(4, 5)
        self.steps = nn.ModuleList()
        self.double()

    def grow(self, count):
        self.steps.append(nn.Linear(5, count).double())


def step_of(network, number):
    """A step as the hooks see it, of a network that has grown for it."""
    return GivenStep(
        number=number,
        growth=from_background(sum(STEPS[:number]), sum(STEPS[: number + 1])),
        network=network,
        sampler=updates(ITERATIONS),
    )


def loss_of(parameters, x, y):
    hidden = torch.tanh(F.linear(x, parameters["body.weight"], parameters["body.bias"]))
    heads = [name.removesuffix(".weight") for name in parameters if name.startswith("steps")]
    heads = [name for name in OrderedDict.fromkeys(heads) if not name.endswith("bias")]
    logits = [F.linear(hidden, parameters[f"{h}.weight"], parameters[f"{h}.bias"]) for h in heads]
    return F.cross_entropy(torch.cat(logits, 1), y)


def batches(step):
    generator = torch.Generator().manual_seed(100 + step)
    first = sum(STEPS[:step])
    for _ in range(ITERATIONS):
        x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
        yield x, torch.randint(first, first + STEPS[step], (12,), generator=generator)


def learn(name, change_at=None):
    """Learn all steps with the method; return network, states by step and penalties by step.

    At ``change_at`` = (step, iteration) another object of the method goes on from the state, as
    after an interruption.
    """
    key = METHODS[name]
    config = key.Config(weight=WEIGHTS[name])
    network, state, states, penalties = Small(), {}, [], []
    for number, count in enumerate(STEPS):
        network.grow(count)
        step = step_of(network, number)

        def make(step=step, state=state):
            method = key(config, step.growth)
            if state:
                method.load_state({key: value.clone() for key, value in state.items()})
            method.begin_step(step)
            return method

        method = make()
        optimizer = torch.optim.SGD(network.parameters(), LR, MOMENTUM, 0, DECAY, nesterov=True)
        penalties.append([])
        for i, (x, y) in enumerate(batches(number)):
            if (number, i) == change_at:
                middle = {key: value.clone() for key, value in method.state().items()}
                method = make()
                method.load_state(middle)
            optimizer.zero_grad()
            loss_of(dict(network.named_parameters()), x, y).backward()
            method.after_backward(step)
            penalty = method.penalties(step)
            if penalty:
                (value,) = penalty.values()
                value.backward()
                penalties[-1].append(value.item())
            optimizer.step()
        method.end_step(step)
        state = method.state()
        states.append({key: value.clone() for key, value in state.items()})
    return network, states, penalties


def smallest_to_largest(values):
    return (values - values.min()) / (values.max() - values.min() + 1e-8)


def fisher_after(start, gradients):
    value = start
    for g in gradients:
        value = 0.9 * g * g + 0.1 * value
    return value


def slow_ewc(past, name, thetas, gradients, end):
    start = past.get(f"fisher.{name}", np.ones_like(end))
    return {f"fisher.{name}": fisher_after(start, gradients)}


def slow_pi(past, name, thetas, gradients, end):
    moves = zip(thetas[:-1], thetas[1:], gradients[1:], strict=True)
    path = sum(g * (before - now) for before, now, g in moves)
    score = np.maximum(0, path / ((end - thetas[0]) ** 2 + 1e-20))
    return {f"score.{name}": past.get(f"score.{name}", 0) + score}


def slow_rw(past, name, thetas, gradients, end):
    start = past.get(f"fisher.{name}", np.ones_like(end))
    walk = np.zeros_like(end)
    for i in range(10, len(thetas), 10):
        before, now, g = thetas[i - 10], thetas[i], gradients[i]
        fisher = fisher_after(start, gradients[:i])
        walk += g * (before - now) / (0.5 * fisher * (now - before) ** 2 + 1e-8)
    score, key = np.maximum(0, walk), f"walk_score.{name}"
    if key in past:
        score = (score + past[key]) / 2
    return {f"fisher.{name}": fisher_after(start, gradients), key: score}


SLOW = {"ewc": slow_ewc, "pi": slow_pi, "rw": slow_rw}
IMPORTANCE = {
    "ewc": lambda past, name: smallest_to_largest(past[f"fisher.{name}"]),
    "pi": lambda past, name: smallest_to_largest(past[f"score.{name}"]),
    "rw": lambda past, name: (
        smallest_to_largest(past[f"fisher.{name}"])
        + smallest_to_largest(past[f"walk_score.{name}"])
    ),
}


def slow_learn(method):
    """The same in numpy: keeps the whole trajectory and looks back at the end of a step."""
    network, past, states, theta = Small(), {}, [], {}
    for step, count in enumerate(STEPS):
        network.grow(count)  # draws the same first values of the new head
        drawn = {name: value.detach().numpy() for name, value in network.named_parameters()}
        old = dict(theta)
        theta = {name: old.get(name, value).copy() for name, value in drawn.items()}
        speed = {name: np.zeros_like(value) for name, value in theta.items()}
        thetas, gradients = [], []
        for x, y in batches(step):
            tensors = {name: torch.tensor(value).requires_grad_() for name, value in theta.items()}
            found = torch.autograd.grad(loss_of(tensors, x, y), list(tensors.values()))
            g = {name: one.numpy() for name, one in zip(tensors, found, strict=True)}
            thetas.append(theta)
            gradients.append(g)
            theta = dict(theta)
            for name, value in theta.items():
                total = g[name] + DECAY * value
                if name in old:
                    held = IMPORTANCE[method](past, name)
                    total = total + 2 * WEIGHTS[method] * held * (value - old[name])
                speed[name] = MOMENTUM * speed[name] + total
                theta[name] = value - LR * (total + MOMENTUM * speed[name])
        found = {}
        for name in theta:
            ways = [one[name] for one in thetas], [one[name] for one in gradients]
            found |= SLOW[method](past, name, *ways, theta[name])
        past = found
        states.append(found)
    return theta, states


@pytest.fixture(scope="module", params=SLOW)
def learned(request):
    return request.param, *learn(request.param)


def test_parameters_and_importances_are_those_of_the_equations(learned):
    method, network, states, _ = learned
    theta, expected = slow_learn(method)
    for name, value in network.named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), theta[name], rtol=1e-8)
    for step, state in enumerate(states):
        assert set(state) == set(expected[step])
        for key, value in state.items():
            np.testing.assert_allclose(value.numpy(), expected[step][key], rtol=1e-5, err_msg=key)


def test_the_penalty_is_zero_when_a_step_begins_and_not_later(learned):
    _, _, _, penalties = learned
    assert penalties[0] == []
    for found in penalties[1:]:
        assert len(found) == ITERATIONS
        assert found[0] == 0
        assert min(found[1:]) > 0


@pytest.mark.parametrize("change_at", [(0, 13), (1, 1), (2, 11)])
def test_goes_on_exactly_from_its_state_in_the_middle_of_a_step(learned, change_at):
    method, network, states, _ = learned
    again, states_again, _ = learn(method, change_at)
    for one, other in zip(network.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(states, states_again, strict=True):
        assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_importances_that_are_missing_are_refused(learned):
    method, network, _, _ = learned
    step = step_of(network, 1)
    with pytest.raises(NacreError, match=f"learn step 0 with {method}, too"):
        METHODS[method](METHODS[method].Config(), step.growth).begin_step(step)
