"""Learning one step: a model (or none) and new data give a model. It knows nothing of scenarios.

for step in steps:                  (`nacre.runs.steps.run_steps` keeps the results in a folder)
    step.network, step.state = before.network, before.state
    before = learn_step(step)
"""

import copy
import time
from dataclasses import replace
from typing import TypeVar

import torch

from nacre.data.dataset import split_off
from nacre.errors import NacreError
from nacre.evaluation.choose import choose_options, decide, known_options, open_options
from nacre.labels.mapping import rows_for_loss
from nacre.methods import Method, Step, find_method
from nacre.methods.components import check_fusible, required_by, shared_modules_of
from nacre.models.build import build_network
from nacre.models.network import Network, Shared
from nacre.training.events import Iterated, OptionsChosen, StepJudged, StepLearned
from nacre.training.loop import learn_by_gradient, step_began
from nacre.training.resume import Checkpoint
from nacre.utils.device import configure_backends, memory_layout, peak_memory

T = TypeVar("T")

HELD_OUT = 10
"""Of so many images one is held out, where a method judges by such."""
FEWEST_TO_HOLD_OUT = 50
"""Images of a step without which none is held out, and no update made, which none could judge."""


def learn_step(step: Step, checkpoint: Checkpoint | None = None) -> Step:
    """Learn a step, or go on where it was interrupted; return it with what it leaves.

    Args:
        step: Its network and state are those of the step before, which change in place.
        checkpoint: Keeps the state in the middle of the step, from which the next call goes on.

    Raises:
        Interrupted: when the user wanted to stop; the state was saved if there is a checkpoint.
    """
    began, device, config = time.monotonic(), step.dist.device, step.config
    configure_backends(device, tf32=config.train.precision != "float32")
    method = find_method(config.method.name)(config.method, step.growth)
    if step.state:
        method.load_state(step.state)
    if method.holds_out and step.num_images >= FEWEST_TO_HOLD_OUT:
        _hold_out(step)
    elif method.holds_out:
        step.sampler = replace(step.sampler, total=0)
    _grow(method, step)
    if config.train.passes_on == "ray":
        from nacre.training.ray_pass import ray_mapper

        step.map_elsewhere = ray_mapper(step)
    if method.learns_by_gradient:
        learn_by_gradient(method, step, checkpoint)
    else:
        _fit(method, step)
    step.state, step.teacher = method.state(), None
    # Without updates there is nothing to judge.
    step.judged = method.judged if step.iterations else None
    if (found := step.judged) is not None:
        names = [step.channels.names[c] for c in found.classes]
        step.observe(StepJudged(step.number, found.before, found.after, found.kept, names))
    _choose_options(step)
    step.observe(StepLearned(step.number, round(time.monotonic() - began, 1), peak_memory(device)))
    return step


def _choose_options(step: Step) -> None:
    """Decide how the model sees images, as far as the config leaves it to held-out ones."""
    if not open_options(step.config.images):
        return
    found = choose_options(step)
    decide(step, found.options if found else known_options(step.history) or {})
    if found:
        step.entry = step.entry | {"chosen": found.options}
        images = step.config.images
        event = OptionsChosen(step.number, images.mirror, images.edges, found.plain, found.best)
        step.observe(event)


def _hold_out(step: Step) -> None:
    """Set every tenth image apart; as many updates are made from the others."""
    dataset, step.held_data = split_off(step.data, HELD_OUT)
    sampler = replace(step.sampler, num_images=len(dataset), total=step.sampler.iterations)
    if sampler.shares is not None:
        pairs = zip(dataset.folders, sampler.shares, strict=True)
        sampler = replace(sampler, shares=tuple((len(one), share) for one, (_, share) in pairs))
    step.data, step.sampler = dataset, sampler


def _fit(method: Method, step: Step) -> None:
    """Learn a step without gradients; one that was interrupted begins anew."""
    processes, last = step.dist.world_size, step.iterations

    def on_images(done: int) -> None:
        step.observe(Iterated(step.number, min(last, done * processes)))

    step.on_images = on_images
    step.observe(step_began(step, 0))
    step.network.train()
    method.prepare(step)
    fast = step.network.takes_channels_last
    layout = memory_layout(step.dist.device) if fast else torch.contiguous_format
    step.network.to(memory_format=layout).eval()  # type: ignore[call-overload]
    method.fit(step)


def _grow(method: Method, step: Step) -> None:
    """Grow the student, or begin it; keep a teacher if the method has one."""
    # All processes draw the same weights, and a step's do not depend on the steps before.
    torch.manual_seed(step.config.seed * 1000 + step.number)
    rows = rows_for_loss(step.data.mappings, step.growth, hides_old=method.hides_old(method.config))
    step.may_be = None if rows is None else torch.from_numpy(rows).to(step.dist.device)
    network: Network | None = step.network
    if network is None:
        step.network = _new_network(method, step)
        return
    if network.num_classes != step.growth.num_old:
        raise NacreError("this step was learned or begun before; make another with nacre.make_step")
    _check_needs(method, network)
    if "sums" not in method.persistent_state:
        network.drop_ledger()  # without its sums it could not learn the new classes
    if method.config.fusion != "off":
        state = network.state_dict()
        step.weights_before = {name: value.detach().clone() for name, value in state.items()}
    if method.needs_teacher:
        step.teacher = make_teacher(network, shared_modules_of(method))
    method.grow(network, step.num_new)
    check_fusible(network, step.weights_before)


def _new_network(method: Method, step: Step) -> Network:
    """Return the network of step 0."""
    model = method.network_config(step.config.model)
    network = build_network(model, step.num_classes, step.config.images.crop_size)
    network = network.to(step.dist.device)
    if network.ledger is not None and "sums" not in method.persistent_state:
        raise NacreError(
            f"model.grid_stride: method {method.name!r} keeps no sums for a ledger beside the "
            "decoder; leave it out, or use method 'duo'"
        )
    if not network.has_background:
        raise NacreError(
            "model.background=null: a network without a background can only be continued; to "
            "learn one from nothing leave it out"
        )
    _check_needs(method, network)
    return network


def _check_needs(method: Method, network: Network) -> None:
    """Refuse a network that lacks what a method asks of it, before anything is learned."""
    needs = required_by(method)
    missing = sorted(needs - network.provides) if needs else []
    if not missing:
        return
    if "classifier" in missing:
        reason = "its parameters must keep their shapes, and an external scoring layer is widened"
    elif "backbone" in missing:
        reason = (
            "a module `base_model`, `backbone` or `encoder` is wanted, which does not hold the "
            "layers that score the classes"
        )
    else:
        reason = "name the modules whose features are compared in model.stages"
    raise NacreError(
        f"method {method.name!r} needs {' and '.join(missing)} of a network, which a network of "
        f"kind {network.config.kind!r} does not give: {reason}"
    )


def make_teacher(network: Network, shared: Shared) -> Network:
    """Return a frozen copy of a network; what the student will not change is not copied."""
    kept = network.shared_modules(shared)
    teacher = copy.deepcopy(network, {id(module): module for module in kept}).eval()
    shared_parameters = {id(one) for module in kept for one in module.parameters()}
    for parameter in teacher.parameters():
        if id(parameter) not in shared_parameters:
            parameter.requires_grad_(False)
    return teacher
