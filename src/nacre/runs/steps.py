"""The steps of a run, learned and tested in a folder that does not contain them yet.

    for step in steps:
        if folder.is_finished(step): continue
        step.network, step.state = those of the step before
        learn_step(step)                     (resumes an interrupted step)
        save the model
        save step.tests.measure(step)

`nacre run` makes the list of steps of a scenario, `nacre learn` a list of one. Calling `run_steps`
again on the same folder resumes: a step with a model is not learned again, a step with metrics is
not tested again.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from nacre.data.dataset import StepSampler, TrainDataset
from nacre.evaluation.choose import decide
from nacre.labels.channels import Channels, from_background
from nacre.methods import Step, find_method
from nacre.models.config import BACKBONES, DeepLabConfig
from nacre.models.io import ModelInfo, load_model, save_model
from nacre.runs.folder import RunFolder, check_shared, with_absolute_paths
from nacre.runs.step_cache import StepCache
from nacre.training.config import Recipe
from nacre.training.events import (
    EventFile,
    Observer,
    Position,
    Recorder,
    RunBegan,
    StepAwaited,
    StepSkipped,
    StepTested,
    StepUsable,
)
from nacre.training.loop import learn_step
from nacre.training.trainer import Checkpoint, load_resume
from nacre.utils.device import choose_precision
from nacre.utils.distributed import explain_lost_process, init_distributed
from nacre.utils.io import save_json
from nacre.utils.signals import Interrupted
from nacre.utils.tensor_file import Tensors
from nacre.version import __version__

Metrics = dict[str, Any]
WAIT_SECONDS = 2.0


def run_steps(
    steps: Sequence[Step],
    folder: RunFolder,
    *,
    title: str,
    fingerprint: dict[str, Any],
    cache: StepCache | None = None,
    observers: Iterable[Observer] = (),
    on_open: Callable[[], None] = lambda: None,
) -> list[Metrics]:
    """Learn and test the steps that a folder does not contain yet; return the metrics of all.

    Args:
        steps: The steps in order; each continues the one before.
        folder: The folder for models, metrics and events.
        title: The scenario or the names of the data, for people.
        fingerprint: The classes and images of the steps, so that changes are noticed.
        cache: Learned steps that several folders share.
        observers: Functions that are called with every event.
        on_open: A function that the main process calls when it has locked the folder.

    Raises:
        Interrupted: The user stopped the run. What was learned is saved.
    """
    dist, recorder = steps[0].dist, Recorder()
    checkpoint = Checkpoint(folder.resume, dist)
    began = time.monotonic()
    for step in steps:
        step.observe = recorder
    with contextlib.ExitStack() as while_running:
        while_running.enter_context(explain_lost_process(dist))

        def open_folder() -> None:
            while_running.enter_context(folder.lock())
            folder.remove_leftovers()
            folder.bind_config(steps[0].config, fingerprint)
            on_open()
            position = _position(steps, folder, checkpoint)
            recorder.observers = [EventFile(folder.events, position), *observers]
            event = _run_began(steps, title)
            folder.append_start(event.to_dict())
            recorder(event)

        dist.on_main(open_folder)
        check_shared(folder, fingerprint, dist)
        before: Step | None = None
        source: Path | None = None
        for step in steps:
            # The main process looks and tells the others: another machine may see files late.
            is_taken = dist.from_main(folder.is_finished(step.number))
            if is_taken:
                recorder(StepSkipped(step.number, step.iterations))
            else:
                with _shared(cache, step, folder, checkpoint) as is_taken:
                    if not is_taken:
                        if before is not None:
                            step.network, step.state = before.network, before.state
                        _learn_or_load(step, source, folder, checkpoint, began)
                        _test(step, folder)
            before = None if is_taken else step
            source = folder.model(step.number)
        return dist.on_main(lambda: [folder.metrics_of(step.number) for step in steps])


def step_sampler(
    recipe: Recipe,
    num_images: int,
    step: int,
    rank: int = 0,
    world_size: int = 1,
    shares: tuple[tuple[int, float], ...] | None = None,
) -> StepSampler:
    """Return the sampler of a step's images in a process."""
    train = recipe.train
    updates = (train.incremental_iterations or train.iterations) if step else train.iterations
    one_pass = not find_method(recipe.method.name).learns_by_gradient
    return StepSampler(
        num_images=num_images,
        batch_size=train.batch_size,
        epochs=(train.incremental_epochs or train.epochs) if step else train.epochs,
        seed=recipe.seed,
        rank=rank,
        world_size=world_size,
        micro_batch=train.micro_batch,
        total=math.ceil(num_images / train.test_batch(1)) if one_pass else updates,
        shares=shares,
    )


def next_step(
    config: Recipe,
    info: ModelInfo | None,
    images: TrainDataset,
    channels: Channels,
    *,
    about: Mapping[str, Any],
    tests: Any = None,
) -> Step:
    """Return the step that continues a model, or a first step.

    Args:
        config: How the step is learned.
        info: The description of the model; None without one.
        images: The training images.
        channels: The channels of the model and the new ones.
        about: More keys for the step's entry in the history.
        tests: The tests after the step.
    """
    dist, known = init_distributed(config.train.device), len(info.classes) if info else 0
    # A merged model has more steps in its history than groups of channels.
    number = max(len(info.steps), len(info.history)) if info else 0
    sampler = step_sampler(config, len(images), number, dist.rank, dist.world_size)
    entry = {
        "step": number,
        "classes": list(channels.names[max(1, known) :]),
        "images": len(images),
        **about,
        "method": config.method.name,
        "iterations": sampler.iterations,
        "nacre": __version__,
    }
    return Step(
        number=number,
        channels=channels,
        growth=from_background(known, len(channels)),
        data=images,
        sampler=sampler,
        config=config,
        dist=dist,
        tests=tests,
        entry=entry,
        history=info.history if info else (),
    )


def begin_from(step: Step, path: Path, given: nn.Module | None = None) -> ModelInfo:
    """Load a model file into a step, with the part of its state that the step's method knows.

    Args:
        step: The step.
        path: The model file.
        given: The user's network, if the file alone cannot build it.
    """
    step.network, info, state = load_model(path, step.dist.device, given)
    step.state = known_state(step.config, state)
    return info


def known_state(config: Recipe, state: Tensors) -> Tensors:
    """Return the part of a step's state that the method of a config knows."""
    own = find_method(config.method.name).persistent_state
    return {key: value for key, value in state.items() if key.partition(".")[0] in own}


def model_info(step: Step) -> ModelInfo:
    """Return the description of a step's network for its file."""
    channels, config = step.channels, step.config
    judged = {"judged": asdict(step.judged)} if step.judged else {}
    return ModelInfo(
        classes=list(channels.names),
        colors=list(channels.colors),
        steps=channels.per_step,
        history=[*map(dict, step.history), step.entry | judged],
        model=config.model.model_dump(mode="json"),
        crop=config.images.crop_size,
        predict_mode=config.images.predict_mode,
        config=with_absolute_paths(config),
        mirror=config.images.mirror is True,
        edges=config.images.edges is True,
    )


def _learn_or_load(
    step: Step, source: Path | None, folder: RunFolder, checkpoint: Checkpoint, began: float
) -> None:
    """Learn a step from the model `source` and save its model; load it if that was done before."""
    path, dist = folder.model(step.number), step.dist
    if dist.from_main(path.exists()):
        given = step.network.given if step.network is not None else None
        info = begin_from(step, path, given)
        decide(step, {"mirror": info.mirror, "edges": info.edges})
        return
    if step.network is None and source is not None:
        begin_from(step, source)

    def save_first() -> None:
        """Save the usable model before the first update, unless it was saved before."""

        def save() -> None:
            save_model(folder.first_model, step.network, model_info(step), step.state)
            seconds = round(time.monotonic() - began, 1)
            step.observe(StepUsable(step.number, seconds, str(folder.first_model)))

        if not dist.from_main(folder.first_model.exists()):
            dist.on_main(save)

    def save() -> None:
        save_model(path, step.network, model_info(step), step.state)
        checkpoint.remove()
        folder.remove_first()

    if "when" in step.entry:
        step.entry["when"] = dist.on_main(folder.first_start)
    step.on_usable = save_first if folder.one_step else step.on_usable
    learn_step(step, checkpoint)
    dist.on_main(save)


def _test(step: Step, folder: RunFolder) -> None:
    """Test the network after a step, and write its metrics."""
    metrics = step.tests.measure(step)

    def write() -> None:
        # The event first: a step with metrics is not tested again.
        step.observe(StepTested(step.number, metrics["mean_iou"]))
        save_json(folder.step_metrics(step.number), metrics)

    step.dist.on_main(write)


@contextlib.contextmanager
def _shared(
    cache: StepCache | None, step: Step, folder: RunFolder, checkpoint: Checkpoint
) -> Iterator[bool]:
    """Yield True if a step was taken from the cache; else store it there after it was learned."""
    if cache is None:
        yield False
        return
    dist, target = step.dist, folder.step_folder(step.number)
    is_taken = _take(cache, step, target)
    if is_taken:
        dist.on_main(checkpoint.remove)
        step.observe(StepSkipped(step.number, step.iterations, str(cache.folder)))
    try:
        yield is_taken
        if not is_taken:
            dist.on_main(lambda: cache.store(step.number, target))
    finally:
        cache.release()


def _take(cache: StepCache, step: Step, target: Path) -> bool:
    """Return True if a step is in the cache; wait while another process learns it."""
    has_told = False
    while True:
        answer = step.dist.on_main(lambda: cache.ask(step.number, target))
        if answer != "wait":
            return answer == "taken"
        if not has_told:
            step.observe(StepAwaited(step.number))
            has_told = True
        if any(step.dist.any(step.should_stop())):
            raise Interrupted
        time.sleep(WAIT_SECONDS)


def _position(steps: Sequence[Step], folder: RunFolder, checkpoint: Checkpoint) -> Position:
    """Return how far a folder is; remove the saved state of an earlier step."""
    last = steps[-1].number + 1
    number = next((s.number for s in steps if not folder.is_finished(s.number)), last)
    is_learned = number < last and folder.model(number).exists()
    if folder.resume.exists() and not is_learned:
        _, content = load_resume(folder.resume, steps[0].dist.device)
        if content["step"] == number:
            return Position(number, content["iteration"])
    checkpoint.remove()
    return Position(number, is_learned=is_learned)


def _run_began(steps: Sequence[Step], title: str) -> RunBegan:
    config, dist = steps[0].config, steps[0].dist
    start = getattr(config, "start", None)
    return RunBegan(
        scenario=title,
        method=config.method.name,
        seed=config.seed,
        device=str(dist.device),
        processes=dist.world_size,
        precision=choose_precision(config.train.precision, dist.device).reason,
        weights=str(start) if start else _weights(config.model),
        iterations=[step.iterations for step in steps],
    )


def _weights(model: Any) -> str:
    """Describe the initial weights; warn if they are random where ImageNet's are published."""
    row = BACKBONES.get(model.backbone) if isinstance(model, DeepLabConfig) else None
    if model.weights != "none" or (row is not None and not row.has_weights):
        return str(model.weights)
    return "random: the paper's backbone starts from ImageNet's (set model.weights)"
