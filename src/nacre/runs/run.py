"""A run: one method over all steps of one scenario with one seed, in one folder."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nacre.data import find_dataset, open_source
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.evaluation.metrics import class_groups, group_means, summarize
from nacre.methods import Step, find_method
from nacre.models.weights import find_model_weights
from nacre.runs.folder import RunFolder
from nacre.runs.step_cache import StepCache, digest_masks, step_keys
from nacre.runs.steps import Metrics, run_steps, step_sampler
from nacre.runs.testing import ScenarioTests
from nacre.scenarios.exemplars import memory_lines
from nacre.scenarios.scenario import make_scenario, read_scenario
from nacre.training.config import RunConfig
from nacre.training.events import Observer
from nacre.utils.distributed import Distributed, explain_lost_process, init_distributed
from nacre.utils.io import save_json, save_text


def open_scenario(config: RunConfig) -> ScenarioData:
    """Open the data of a config and apply its scenario."""
    source = open_source(config.data)
    written = read_scenario(config.scenario)
    tasks = find_dataset(written.data).tasks()
    task = make_scenario(config.scenario, written, source.space, tasks)
    merges = find_method(config.method.name).is_joint
    return ScenarioData(
        source=source,
        scenario=task.merged() if merges else task,
        config=config.images,
        policy=config.labels,
        seed=config.seed,
        memory=config.memory,
    )


def scenario_step(config: RunConfig, data: ScenarioData, number: int, dist: Distributed) -> Step:
    """Return a step of a scenario."""
    classes, images = data.scenario.classes, data.image_lists
    channels, shares = classes.channels(number), data.batch_shares(number)
    entries = [
        {
            "step": one,
            "classes": list(channels.learned_in(one)),
            "images": len(images[one]),
            "data": [data.scenario.data],
            "method": config.method.name,
        }
        for one in range(number + 1)
    ]
    return Step(
        number=number,
        channels=channels,
        growth=classes.growth(number),
        data=data.train_dataset(number),
        # Old images take places of a batch; how long is learned the step's own decide.
        sampler=step_sampler(
            config, len(images[number]), number, dist.rank, dist.world_size, shares
        ),
        config=config,
        dist=dist,
        tests=ScenarioTests(data, config),
        entry=entries[-1],
        history=entries[:-1],
        overlapped=data.scenario.setup == "overlapped",
    )


def learn_scenario(
    config: RunConfig,
    out: Path,
    *,
    cache: Path | None = None,
    data: ScenarioData | None = None,
    num_steps: int | None = None,
    observers: Iterable[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Metrics]:
    """Learn and test steps of a config in the folder ``out``; return the metrics of each.

    Args:
        config: What is learned.
        out: The run's folder.
        cache: Folder of learned steps that runs share; None learns all of them here.
        data: The config's data; opened if not given.
        num_steps: How many of the scenario's steps are learned; all of them by default.
        observers: Receive the events.
        should_stop: Whether the user wants to stop.
    """
    folder, dist = RunFolder(out), init_distributed(config.train.device)
    opened = data or open_scenario(config)
    count = num_steps or opened.num_steps

    def find_weights() -> None:
        # Before the data are read, which may take long.
        if not folder.model(0).exists():
            find_model_weights(config.model)

    def read_data() -> None:
        _ = opened.image_lists
        opened.check_tests(count)

    with explain_lost_process(dist):
        # The main process first: the others then find weights and index in the cache.
        dist.on_main(find_weights)
        dist.on_main(read_data)
        read_data()
        steps = [scenario_step(config, opened, number, dist) for number in range(count)]
        for step in steps:
            step.should_stop = should_stop
        learned = run_steps(
            steps,
            folder,
            about=config.scenario,
            fingerprint=opened.fingerprint(),
            cache=_open_cache(cache, config, opened, dist) if cache else None,
            observers=observers,
            on_open=lambda: _keep_exemplars(folder, config, opened),
        )
        return dist.on_main(lambda: [_by_own_groups(one, folder, opened) for one in learned])


def _by_own_groups(metrics: Metrics, folder: RunFolder, data: ScenarioData) -> Metrics:
    """Return a step's metrics with the means of this scenario.

    Joint training of 4-1 and of 4-2 is one step in the cache, and has other groups of classes.
    """
    step, scenario = metrics["step"], data.scenario
    groups = class_groups(scenario.classes, scenario.groups, step)
    own = metrics | {"mean_iou": group_means(metrics["iou"], groups)}
    if own != metrics:
        save_json(folder.step_metrics(step), own)
    return own


def _open_cache(
    folder: Path, config: RunConfig, data: ScenarioData, dist: Distributed
) -> StepCache:
    """Return the learned steps in a folder, which the main process alone looks at."""
    state = find_method(config.method.name).persistent_state
    keys = step_keys(config, data.fingerprint(), digest_masks(data)) if dist.is_main else []
    return StepCache(folder, keys, state)


def _keep_exemplars(folder: RunFolder, config: RunConfig, data: ScenarioData) -> None:
    """Write down which old images each step learns from; refuse if they are others now."""
    path, lines = folder.exemplars, memory_lines(data.memories)
    if not config.memory:
        path.unlink(missing_ok=True)
        return
    begun = path.exists() and not folder.nothing_learned
    if begun and path.read_text(encoding="utf-8") != lines:
        raise NacreError(
            f"{path}: the images that are kept would be others than when the run began; the "
            "labels of the data were changed"
        )
    save_text(path, lines)


def run_scenario(
    config: RunConfig,
    out: Path,
    *,
    cache: Path | None = None,
    observers: Iterable[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Metrics:
    """Learn all steps of a config in the folder ``out``; return the metrics of the run."""
    data, dist = open_scenario(config), init_distributed(config.train.device)
    steps = learn_scenario(
        config, out, cache=cache, data=data, observers=observers, should_stop=should_stop
    )
    scenario = data.scenario
    name = scenario.classes.space.names
    summary: dict[str, Any] = {
        "scenario": config.scenario,
        "method": config.method.name,
        "seed": config.seed,
        "groups": [[name[label] for label in labels] for labels in scenario.groups],
        "conventions": config.measured_under(),
        **summarize(steps),
    }
    dist.on_main(lambda: save_json(RunFolder(out).metrics, summary))
    return summary
