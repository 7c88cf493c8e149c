"""Learning one step: a model (or none) and new data give a model. It knows nothing of scenarios.

start = None
for spec in steps:                       (a scenario is such a loop, see `nacre.runs.run`)
    start = learn_step(spec, start, recipe, session)
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from nacre.data.dataset import (
    EvalDataset,
    EvalSample,
    TrainDataset,
    UnionDataset,
    eval_batches,
    plain_batches,
    split_off,
    train_batches,
)
from nacre.data.sampler import StepSampler
from nacre.errors import NacreError
from nacre.labels.channels import Channels, Growth
from nacre.labels.mapping import rows_for_loss
from nacre.methods import Batch, Judged, Method, Step, find_method
from nacre.methods.parts import Shared
from nacre.methods.step import Mapper
from nacre.models.build import build_network
from nacre.models.deeplab import DeepLab
from nacre.models.network import Network
from nacre.training.config import Recipe, TrainConfig
from nacre.training.events import Iterated, Recorder, Saved, StepBegan, StepJudged, StepLearned
from nacre.training.kept_features import View, keep_features
from nacre.training.resume import Checkpoint
from nacre.training.trainer import Trainer
from nacre.training.window import LossWindow
from nacre.utils.device import (
    Precision,
    configure_backends,
    count_workers,
    memory_layout,
    peak_memory,
)
from nacre.utils.distributed import Distributed
from nacre.utils.tensor_file import Tensors

T = TypeVar("T")

HELD_OUT = 10
"""Of so many images one is held out, where a method judges by such."""
FEWEST_TO_HOLD_OUT = 50
"""Images of a step without which none is held out."""


class Interrupted(Exception):
    """The user asked to stop; what was learnt so far is saved."""


@dataclass(frozen=True)
class StepSpec:
    """What a step learns, from what.

    Attributes:
        index: Its number among the steps that made the model.
        channels: Of the model after the step.
        growth: What the step adds to them.
        dataset: Its images, with targets.
        sampler: Which of them come when.
        overlapped: Whether its images may come again in other steps.
        held_out: Images of the step that are not in `dataset`: no update is made from them.
    """

    index: int
    channels: Channels
    growth: Growth
    dataset: TrainDataset | UnionDataset
    sampler: StepSampler
    overlapped: bool = True
    held_out: TrainDataset | UnionDataset | None = None

    @property
    def num_images(self) -> int:
        """How many images the step has, with those that are held out."""
        return len(self.dataset) + len(self.held_out or ())

    @property
    def new_names(self) -> list[str]:
        """The classes that are new."""
        return list(self.channels.names[self.growth.first_new :])


@dataclass(frozen=True)
class Learned:
    """What a step leaves, and what the next one starts from.

    Attributes:
        network: The network.
        method_state: What the method keeps for later steps.
        judged: What images found the updates to be worth, where the method asks them.
    """

    network: Network
    method_state: Tensors = field(default_factory=dict)
    judged: Judged | None = None


@dataclass(frozen=True)
class Session:
    """Who learns, and who is told.

    Attributes:
        dist: The processes and their device.
        precision: In which numbers they compute.
        checkpoint: Where the state in the middle of a step goes.
        recorder: Receives the events.
        should_stop: Whether the user wants to stop.
        save_first: Called where a model is of use before its first update.
    """

    dist: Distributed
    precision: Precision
    checkpoint: Checkpoint
    recorder: Recorder
    should_stop: Callable[[], bool]
    save_first: Callable[[Learned], None] = lambda learned: None


def learn_step(spec: StepSpec, start: Learned | None, recipe: Recipe, session: Session) -> Learned:
    """Learn a step, or go on where it was interrupted.

    Raises:
        Interrupted: when the user wanted to stop; the state was saved.
    """
    began = time.monotonic()
    device = session.dist.device
    configure_backends(device, tf32=recipe.train.precision != "float32")
    kind = find_method(recipe.method.name)
    if kind.holds_out and spec.num_images >= FEWEST_TO_HOLD_OUT:
        spec = _hold_out(spec)
    learned = (_iterate if kind.learns_by_gradient else _fit)(spec, start, recipe, session)
    seconds = round(time.monotonic() - began, 1)
    session.recorder(StepLearned(spec.index, seconds, peak_memory(device)))
    return learned


def _hold_out(spec: StepSpec) -> StepSpec:
    """Set every tenth image apart; as many updates are made from the others."""
    dataset, held_out = split_off(spec.dataset, HELD_OUT)
    sampler = replace(spec.sampler, num_images=len(dataset), total=spec.sampler.iterations)
    if sampler.shares is not None:
        parts = dataset.parts if isinstance(dataset, UnionDataset) else [dataset]
        pairs = zip(parts, sampler.shares, strict=True)
        sampler = replace(sampler, shares=tuple((len(one), share) for one, (_, share) in pairs))
    return replace(spec, dataset=dataset, held_out=held_out, sampler=sampler)


def _fit(spec: StepSpec, start: Learned | None, recipe: Recipe, session: Session) -> Learned:
    """Learn a step without gradients; one that was interrupted begins anew."""
    method, step = _begin(spec, start, recipe, session)
    session.recorder(_began(spec, 0))
    step.network.train()
    method.prepare(step)
    layout = memory_layout(session.dist.device)
    step.network.to(memory_format=layout).eval()  # type: ignore[call-overload]
    method.fit(step)
    return Learned(step.network, method.state())


def _iterate(spec: StepSpec, start: Learned | None, recipe: Recipe, session: Session) -> Learned:
    """Learn a step by gradients, or go on where it was interrupted."""
    trainer = _prepare(spec, start, recipe, session)
    method, step = trainer.method, trainer.step
    if method.is_usable:
        session.save_first(Learned(step.network, method.state()))
    session.checkpoint.restore(trainer)
    if trainer.iteration == 0:
        method.parts.survey(step)
        method.survey(step)
    session.recorder(_began(spec, trainer.iteration))
    _train(trainer, spec, session)
    # Statistics are to be those of the network that is kept: fusion comes first.
    method.parts.end_step(step)
    method.end_step(step)
    trainer.check_learned()
    step.network.eval()
    method.fit(step)
    judged = method.judged
    if judged is not None:
        named = [spec.channels.names[c] for c in judged.classes]
        session.recorder(StepJudged(spec.index, judged.before, judged.after, named))
    return Learned(step.network, method.state(), judged)


def _prepare(spec: StepSpec, start: Learned | None, recipe: Recipe, session: Session) -> Trainer:
    """Grow the student, keep the teacher, make what updates the parameters; the method begins."""
    method, step = _begin(spec, start, recipe, session)
    lr = recipe.train.incremental_lr if spec.growth.num_old else recipe.train.lr
    kept = keep_features(step.network, method, recipe.images.views)
    trainer = Trainer(step, method, recipe.train, lr, session.precision, kept)
    method.begin_step(step)
    return trainer


def _begin(
    spec: StepSpec, start: Learned | None, recipe: Recipe, session: Session
) -> tuple[Method, Step]:
    """Return the method with what it kept, and the step with its networks and its images."""
    method = find_method(recipe.method.name)(recipe.method, spec.growth)
    if start is not None and start.method_state:
        method.load_state(start.method_state)
    step = replace(
        _grow(spec, start, method, recipe, session.dist),
        iterations_per_epoch=_one_epoch(spec.sampler).iterations,
        num_images=len(spec.dataset),
        open_batches=_opener(spec, recipe.train.num_workers, session.dist),
        open_images=lambda: _plain_pass(spec, spec.dataset, recipe, session),
        overlapped=spec.overlapped,
    )
    if spec.held_out is not None:
        held_out = spec.held_out
        step = replace(step, open_held_out=lambda: _plain_pass(spec, held_out, recipe, session))
    if recipe.train.passes_on == "ray":
        step = replace(step, map_elsewhere=_ray_pass(spec, recipe.train, step, session))
    return method, step


def _began(spec: StepSpec, iteration: int) -> StepBegan:
    sampler = spec.sampler
    return StepBegan(
        step=spec.index,
        classes=spec.new_names,
        images=spec.num_images,
        iterations=sampler.iterations,
        first=iteration,
        micro_batch=sampler.local_batch // sampler.micro_batches,
    )


def _grow(
    spec: StepSpec, start: Learned | None, method: Method, recipe: Recipe, dist: Distributed
) -> Step:
    """Return the step with its student grown, and a teacher if the method has one."""
    # All processes draw the same weights, and a step's do not depend on the steps before.
    torch.manual_seed(recipe.seed * 1000 + spec.index)
    teacher = None
    if start is None:
        crop_size = recipe.images.crop_size
        model = method.network_config(recipe.model)
        network = build_network(model, len(spec.channels), crop_size).to(dist.device)
        if getattr(network, "ledger", None) is not None and "sums" not in method.persistent_state:
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
    else:
        network = start.network
        _check_needs(method, network)
        if isinstance(network, DeepLab) and "sums" not in method.persistent_state:
            network.drop_ledger()  # without its sums it could not learn the new classes
        method.parts.remember(network)
        if method.needs_teacher:
            teacher = make_teacher(network, method.parts.shared)
        if not method.parts.grow(network, spec.growth.num_new):
            method.grow(network, spec.growth.num_new)
        method.parts.check_grown(network)
    iterations = spec.sampler.iterations
    may_be = _may_be(spec, recipe, dist)
    return Step(spec.index, spec.growth, network, teacher, dist, iterations, may_be)


def _may_be(spec: StepSpec, recipe: Recipe, dist: Distributed) -> Tensor | None:
    """Return what the method's loss is told of each data set, see `Step`."""
    hides_old = find_method(recipe.method.name).hides_old(recipe.method)
    rows = rows_for_loss(spec.dataset.mappings, spec.growth, hides_old=hides_old)
    return None if rows is None else torch.from_numpy(rows).to(dist.device)


def _check_needs(method: Method, network: Network) -> None:
    """Refuse a network that lacks what a method asks of it, before anything is learnt."""
    needs = method.needs | method.parts.needs
    missing = sorted(needs - network.gives) if needs else []
    if not missing:
        return
    if "classifier" in missing:
        reason = "its parameters must keep their shapes, and a foreign scoring layer is widened"
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
    kept = [] if shared == "nothing" else [network.pretrained_part]
    if shared == "decoder":
        assert isinstance(network, DeepLab), "of other networks nobody knows the decoder"
        kept.append(network.decoder)
    teacher = copy.deepcopy(network, {id(module): module for module in kept})
    return teacher.eval().requires_grad_(False)


def _one_epoch(sampler: StepSampler) -> StepSampler:
    return replace(sampler, epochs=1, total=None)


def _opener(
    spec: StepSpec, num_workers: int | str, dist: Distributed
) -> Callable[[], Iterator[Batch]]:
    """Return what opens a pass over a step's images, for methods that look at all of them."""
    workers = count_workers(num_workers, dist.device)
    return lambda: _one_pass(spec, workers, dist)


def _one_pass(spec: StepSpec, num_workers: int, dist: Distributed) -> Iterator[Batch]:
    """Yield this process's share of a step's images as the first epoch shows them."""
    sampler = _one_epoch(spec.sampler)
    pin = dist.device.type == "cuda"
    for micro_batches in train_batches(spec.dataset, sampler, 0, num_workers, pin):
        for images, targets, *_ in micro_batches:
            there = [one.to(dist.device, non_blocking=True) for one in (images, targets)]
            yield Batch(there[0], there[1])


def _plain_pass(
    spec: StepSpec, dataset: TrainDataset | UnionDataset, recipe: Recipe, session: Session
) -> Iterator[Batch]:
    """Yield this process's share of images of a step, each once and not augmented.

    Raises:
        Interrupted: when the user wanted to stop; nothing was saved.
    """
    dist, last, train = session.dist, spec.sampler.iterations, recipe.train
    counts = not find_method(recipe.method.name).learns_by_gradient  # else updates are counted
    workers = count_workers(train.num_workers, dist.device)
    pin = dist.device.type == "cuda"
    size = train.test_batch(1)  # not a process's share: a batch is the same for any number of them
    batches = plain_batches(dataset, size, dist.rank, dist.world_size, workers, pin)
    may_be = _may_be(spec, recipe, dist)
    for done, sample in enumerate(until_stopped(batches, dist, session.should_stop), start=1):
        images, targets, whose = (one.to(dist.device, non_blocking=True) for one in sample)
        rows = None if may_be is None else may_be[whose].expand(len(images), -1, -1)
        yield Batch(images, targets, may_be=rows, folder=int(whose))
        if counts:
            session.recorder(Iterated(spec.index, min(last, done * dist.world_size)))


def _ray_pass(spec: StepSpec, train: TrainConfig, step: Step, session: Session) -> Mapper:
    """Return what has a pass over a step's images carried out by a Ray cluster."""
    if session.dist.world_size > 1:
        raise NacreError(
            "train.passes_on=ray: Ray's machines take the place of torchrun's; use one"
        )
    from nacre.training.ray_pass import SharedPass, map_on_ray

    tf32 = train.precision != "float32"
    size, device = train.test_batch(1), train.device
    plan = SharedPass(step.network, spec.dataset, size, step.may_be, device, tf32)

    def check_stop() -> None:
        if session.should_stop():
            raise Interrupted

    def told(function: Callable[[Network, Iterator[Batch]], T]) -> Iterator[T]:
        last = spec.sampler.iterations
        for done, result in enumerate(map_on_ray(plan, function, check_stop), start=1):
            yield result
            session.recorder(Iterated(spec.index, last * done // plan.shares))

    return told


def _train(trainer: Trainer, spec: StepSpec, session: Session) -> None:
    """Make all updates from the present one to the last."""
    checkpoint, record = session.checkpoint, session.recorder
    checkpoint.restart()
    window = LossWindow(trainer, spec.sampler.batch_size)
    pin = session.dist.device.type == "cuda"
    workers = count_workers(trainer.config.num_workers, session.dist.device)
    batches = train_batches(spec.dataset, spec.sampler, trainer.iteration, workers, pin)
    shown = _views(spec, trainer)
    for batch in window.loading(batches):
        views = [next(shown) for _ in batch] if trainer.kept is not None else ()
        window.add(trainer.update(batch, measure=window.closes_next, views=views))
        record(Iterated(spec.index, trainer.iteration))
        if window.is_due:
            record(window.close())
        # Any process may be told to stop, the main one's clock says when to save: all agree here.
        stop, is_due = session.dist.any(session.should_stop(), checkpoint.is_due)
        if (stop or is_due) and not trainer.is_done:
            window.read()
            trainer.check_weights()
            checkpoint.save(trainer)
            record(Saved(spec.index, trainer.iteration))
            if stop:
                raise Interrupted


def _views(spec: StepSpec, trainer: Trainer) -> Iterator[list[View]]:
    """Yield which views of which images each micro-batch from the present one on holds."""
    config = spec.dataset.config
    for keys in spec.sampler.starting_at(trainer.iteration):
        yield [(config.view_of(epoch), image) for epoch, image in keys]


def batches_to_test(
    dataset: EvalDataset, train: TrainConfig, dist: Distributed, should_stop: Callable[[], bool]
) -> Iterator[EvalSample]:
    """Yield this process's test images in batches until one of the processes is told to stop."""
    batches = eval_batches(
        dataset,
        train.test_batch(dist.world_size),
        dist.rank,
        dist.world_size,
        count_workers(train.num_workers, dist.device),
        dist.device.type == "cuda",
    )
    return until_stopped(batches, dist, should_stop)


def until_stopped(
    batches: Iterator[T], dist: Distributed, should_stop: Callable[[], bool]
) -> Iterator[T]:
    """Pass this process's batches on until one of the processes is told to stop."""
    while True:
        batch = next(batches, None)
        # Some processes have a batch more than others; all take part until nobody has one.
        stop, more = dist.any(should_stop(), batch is not None)
        if stop:
            raise Interrupted
        if not more:
            return
        if batch is not None:
            yield batch
