"""The training of a step: a model (or none) and new data give a model.

`learn_step` is the whole of it; `learn_by_gradient` is the loop of methods with gradients, and
`nacre.methods.base` prints the order in which it calls a method. Nothing here knows scenarios or
folders: `nacre.runs.steps.run_steps` stores the results.
"""

import copy
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from nacre.data.dataset import Sample, split_off
from nacre.errors import NacreError
from nacre.evaluation.choose import choose_options, decide, known_options, open_options
from nacre.labels.mapping import rows_for_loss
from nacre.methods import Method, Step, find_method
from nacre.methods.components import (
    auxiliary_row,
    check_fusible,
    find_thresholds,
    freeze,
    fuse,
    pseudo_labels,
    required_by,
    shared_modules_of,
    unfreeze,
)
from nacre.models.build import build_network
from nacre.models.network import Network, Shared
from nacre.training.events import (
    Iterated,
    OptionsChosen,
    Saved,
    StepBegan,
    StepJudged,
    StepLearned,
    Trained,
)
from nacre.training.trainer import Checkpoint, Trainer, View
from nacre.utils.device import configure_backends, peak_memory
from nacre.utils.signals import Interrupted

T = TypeVar("T")

LOG_EVERY = 10
"""Iterations between two `Trained` events."""
MAX_PENDING_LOSSES = 100
"""Updates whose losses may stay on the device."""

HELD_OUT_EVERY = 10
"""One of this many images is held out if the method judges its updates."""
MIN_IMAGES_TO_HOLD_OUT = 50
"""With fewer images none is held out, and such a method makes no updates."""


def learn_step(step: Step, checkpoint: Checkpoint | None = None) -> Step:
    """Learn a step, or resume it; return it with its new network and state.

    Args:
        step: Its network and state are those of the step before. They change in place.
        checkpoint: Stores the state in the middle of the step; the next call resumes from it.

    Raises:
        Interrupted: The user stopped the step. If there is a checkpoint, the state is saved.
    """
    began, device, config = time.monotonic(), step.dist.device, step.config
    configure_backends(config.train.precision, device)
    method = find_method(config.method.name)(config.method, step.growth)
    if step.state:
        method.load_state(step.state)
    if method.holds_out:
        _hold_out(step)
    _grow(method, step)
    if config.train.passes_on == "ray":
        from nacre.training.ray_pass import ray_mapper

        step.map_elsewhere = ray_mapper(step)
    if method.learns_by_gradient:
        learn_by_gradient(method, step, checkpoint)
    else:
        _fit(method, step)
    step.state, step.teacher = method.state(), None
    step.judged = method.judged if step.iterations else None
    if step.judged is not None:
        before, after, kept = step.judged.before, step.judged.after, step.judged.kept
        names = [step.channels.names[c] for c in step.judged.classes]
        step.observe(StepJudged(step.number, before, after, kept, names))
    _choose_options(step)
    step.observe(StepLearned(step.number, round(time.monotonic() - began, 1), peak_memory(device)))
    return step


def learn_by_gradient(method: Method, step: Step, checkpoint: Checkpoint | None = None) -> None:
    """Train a student that has grown, or resume where training was interrupted."""
    trainer = begin(method, step)
    if checkpoint is not None:
        checkpoint.restore(trainer)
    if trainer.iteration == 0:
        find_thresholds(method, step)
    step.observe(_step_began(step, trainer.iteration))
    if method.is_usable and trainer.iteration == 0 and not trainer.is_done:
        step.state = method.state()
        step.on_usable()
    window = LossWindow(trainer)
    for batch, views in window.timed(trainer.batches()):
        window.add(update(trainer, batch, views))
        step.observe(Iterated(step.number, trainer.iteration))
        if window.is_due:
            step.observe(window.close())
        # Any process may be told to stop; the main process says when to save. All agree here.
        save_now = checkpoint is not None and checkpoint.is_due
        stop, is_due = step.dist.any(step.should_stop(), save_now)
        if (stop or is_due) and not trainer.is_done:
            window.read()
            trainer.check_weights()
            if checkpoint is not None:
                checkpoint.save(trainer)
                step.observe(Saved(step.number, trainer.iteration))
            if stop:
                raise Interrupted
    finish(trainer)


def begin(method: Method, step: Step) -> Trainer:
    """Prepare the student, freeze parts of it and make its optimizer."""
    step.network.train()
    method.prepare(step)
    trainer = Trainer(method, step, frozen=freeze(method, step))
    method.begin_step(step)
    return trainer


def update(
    trainer: Trainer, micro_batches: list[Sample], views: list[list[View]] | None = None
) -> dict[str, Tensor]:
    """Learn from one batch; return its named losses, on the device.

    Nothing here waits for a GPU: reading a loss would leave the GPU without work.

    Args:
        trainer: The method, the networks and the optimizer.
        micro_batches: The batch in pieces that fit the device; their gradients add up.
        views: The views in each micro-batch, if features are kept.
    """
    method, step, count = trainer.method, trainer.step, len(micro_batches)
    totals: dict[str, Tensor] = {}
    trainer.begin_update()
    num_valid = trainer.num_valid_pixels(micro_batches)
    for i, sample in enumerate(micro_batches):
        with trainer.no_sync(is_last=i + 1 == count), trainer.explain_oom(len(sample[0])):
            batch = trainer.to_device(sample, num_valid)
            student, teacher = trainer.forward(batch.images, views[i] if views else ())
            batch = pseudo_labels(method, step, batch, teacher)
            losses = method.losses(batch, student, teacher)
            losses |= auxiliary_row(method, batch, student)
            total = torch.stack(list(losses.values())).sum() / count
            torch.autograd.backward(trainer.scaler.scale(total))
        for name, value in losses.items():
            share = value.detach() / count
            totals[name] = totals[name] + share if name in totals else share
    if trainer.has_gradients():
        method.after_backward(step)
    penalties = method.penalties(step)
    if penalties:  # equal in all processes and never scaled: nothing has to be exchanged
        torch.autograd.backward(torch.stack(list(penalties.values())).sum())
    trainer.end_update()
    return totals | {name: value.detach() for name, value in penalties.items()}


def finish(trainer: Trainer) -> None:
    """End a step after its last update."""
    method, step = trainer.method, trainer.step
    fuse(method, step)  # before the method takes its statistics of the final network
    method.end_step(step)
    trainer.check_learned()
    step.network.eval()
    unfreeze(trainer.frozen)
    method.fit(step)


def _fit(method: Method, step: Step) -> None:
    """Learn a step without gradients; an interrupted one starts again."""
    processes, last = step.dist.world_size, step.iterations

    def on_images(done: int) -> None:
        step.observe(Iterated(step.number, min(last, done * processes)))

    step.on_images = on_images
    step.observe(_step_began(step, 0))
    step.network.train()
    method.prepare(step)
    step.network.eval()
    method.fit(step)


def _step_began(step: Step, first: int) -> StepBegan:
    return StepBegan(
        step=step.number,
        classes=step.new_names,
        images=step.num_images + len(step.held_data or ()),
        iterations=step.iterations,
        first=first,
    )


def _hold_out(step: Step) -> None:
    """Hold every tenth image out; the number of updates stays the same."""
    if step.num_images < MIN_IMAGES_TO_HOLD_OUT:
        step.sampler = replace(step.sampler, total=0)
        return
    dataset, step.held_data = split_off(step.data, HELD_OUT_EVERY)
    sampler = replace(step.sampler, num_images=len(dataset), total=step.sampler.iterations)
    if sampler.shares is not None:
        pairs = zip(dataset.folders, sampler.shares, strict=True)
        shares = tuple((len(folder), share) for folder, (_, share) in pairs)
        sampler = replace(sampler, shares=shares)
    step.data, step.sampler = dataset, sampler


def _choose_options(step: Step) -> None:
    """Choose the prediction options that the config leaves to held-out images."""
    images = step.config.images
    if not open_options(images):
        return
    choice = choose_options(step)
    decide(step, choice.options if choice else known_options(step.history) or {})
    if choice:
        step.entry = step.entry | {"chosen": choice.options}
        images = step.config.images
        step.observe(
            OptionsChosen(step.number, images.mirror, images.edges, choice.plain, choice.best)
        )


def _grow(method: Method, step: Step) -> None:
    """Add the new channels to the network, or build it; keep a teacher if the method needs one."""
    # All processes draw the same weights, and they do not depend on the steps before.
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
    """Build the network of step 0."""
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
            "model.background=null: a network without a background can only be continued; leave "
            "the key out to learn a new one"
        )
    _check_needs(method, network)
    return network


def _check_needs(method: Method, network: Network) -> None:
    """Refuse a network that lacks what the method requires, before anything is learned."""
    missing = sorted(required_by(method) - network.provides)
    if not missing:
        return
    if "classifier" in missing:
        reason = "its parameters must keep their shapes, and an external scoring layer is widened"
    elif "backbone" in missing:
        reason = (
            "it must have a module `base_model`, `backbone` or `encoder` without the layers that "
            "score the classes"
        )
    else:
        reason = "name the modules whose features are compared in model.stages"
    raise NacreError(
        f"method {method.name!r} needs {' and '.join(missing)} of a network, which a network of "
        f"kind {network.config.kind!r} does not provide: {reason}"
    )


def make_teacher(network: Network, shared: Shared) -> Network:
    """Return a frozen copy of a network; modules that the student does not change are shared."""
    kept = network.shared_modules(shared)
    teacher = copy.deepcopy(network, {id(module): module for module in kept}).eval()
    shared_parameters = {id(parameter) for module in kept for parameter in module.parameters()}
    for parameter in teacher.parameters():
        if id(parameter) not in shared_parameters:
            parameter.requires_grad_(False)
    return teacher


class LossWindow:
    """Mean losses and speed since the last `Trained` event.

    Losses stay on the device until the event, a checkpoint, or `MAX_PENDING_LOSSES` updates:
    reading one waits for all updates so far. So a loss that is not finite is noticed a few updates
    late; the error names its own iteration.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._pending: list[tuple[int, dict[str, Tensor]]] = []
        self._reset()

    def _reset(self) -> None:
        self.sums: dict[str, float] = {}
        self.count = 0
        self.data_seconds = 0.0
        self.began = time.monotonic()

    @property
    def is_due(self) -> bool:
        """True if an event is due."""
        return self.trainer.iteration % LOG_EVERY == 0 or self.trainer.is_done

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield batches and measure the time spent waiting for them."""
        waiting = time.monotonic()
        for batch in batches:
            self.data_seconds += time.monotonic() - waiting
            yield batch
            waiting = time.monotonic()

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of the last update."""
        self._pending.append((self.trainer.iteration - 1, losses))
        self.count += 1
        if len(self._pending) >= MAX_PENDING_LOSSES:
            self.read()

    def read(self) -> None:
        """Read the pending losses of all processes from the device.

        Raises:
            NotFinite: A loss is not a finite number.
        """
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        dist = self.trainer.dist
        values = torch.stack([x.float() for _, losses in pending for x in losses.values()])
        means = iter((dist.sum(values.cpu()) / dist.world_size).tolist())
        for iteration, losses in pending:
            named = {name: next(means) for name in losses}
            if not all(math.isfinite(value) for value in named.values()):
                self.trainer.raise_not_finite(iteration, named)
            for name, value in named.items():
                self.sums[name] = self.sums.get(name, 0.0) + value

    def close(self) -> Trained:
        """Return the means over the window, and begin a new one."""
        self.read()
        trainer, count = self.trainer, self.count
        seconds = max(time.monotonic() - self.began, 1e-9)
        images = count * trainer.step.sampler.batch_size
        event = Trained(
            step=trainer.step.number,
            iteration=trainer.iteration,
            lr=trainer.optimizer.param_groups[0]["lr"],
            losses={name: round(total / count, 6) for name, total in self.sums.items()},
            images_per_second=round(images / seconds, 2),
            update_seconds=round(seconds / count, 4),
            data_seconds=round(self.data_seconds / count, 4),
        )
        self._reset()
        return event
