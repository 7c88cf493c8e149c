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
from nacre.scenarios.scenario import make_scenario, memory_lines, read_scenario
from nacre.training.config import RunConfig
from nacre.training.events import Observer
from nacre.utils.distributed import Distributed, explain_lost_process, init_distributed
from nacre.utils.io import save_json, save_text


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
    names = scenario.classes.space.names
    summary: dict[str, Any] = {
        "scenario": config.scenario,
        "method": config.method.name,
        "seed": config.seed,
        "groups": [[names[label] for label in labels] for labels in scenario.groups],
        "conventions": config.conventions(),
        **summarize(steps),
    }
    dist.on_main(lambda: save_json(RunFolder(out).metrics, summary))
    return summary


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
        config: The config.
        out: The run's folder.
        cache: The folder of learned steps that runs share.
        data: The config's data, if it is open already.
        num_steps: Number of steps to learn. Default: all steps of the scenario.
        observers: Functions that are called with every event.
        should_stop: Function that returns True to stop.
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
        # The main process first, so that the others find weights and index on the disk.
        dist.on_main(find_weights)
        dist.on_main(read_data)
        read_data()
        steps = [scenario_step(config, opened, number, dist) for number in range(count)]
        for step in steps:
            step.should_stop = should_stop
        metrics = run_steps(
            steps,
            folder,
            title=config.scenario,
            fingerprint=opened.fingerprint(),
            cache=_open_cache(cache, config, opened, dist) if cache else None,
            observers=observers,
            on_open=lambda: _write_exemplars(folder, config, opened),
        )
        return dist.on_main(lambda: [_by_own_groups(m, folder, opened) for m in metrics])


def open_scenario(config: RunConfig) -> ScenarioData:
    """Open the data of a config and apply its scenario."""
    source = open_source(config.data)
    written = read_scenario(config.scenario)
    tasks = find_dataset(written.data).tasks()
    scenario = make_scenario(config.scenario, written, source.space, tasks)
    is_joint = find_method(config.method.name).is_joint
    return ScenarioData(
        source=source,
        scenario=scenario.merged() if is_joint else scenario,
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
            "step": step,
            "classes": list(channels.learned_in(step)),
            "images": len(images[step]),
            "data": [data.scenario.data],
            "method": config.method.name,
        }
        for step in range(number + 1)
    ]
    return Step(
        number=number,
        channels=channels,
        growth=classes.growth(number),
        data=data.train_dataset(number),
        # Old images take places in a batch, but the step's own images decide its length.
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


def _by_own_groups(metrics: Metrics, folder: RunFolder, data: ScenarioData) -> Metrics:
    """Return a step's metrics with the means of this scenario.

    Joint training of 4-1 and of 4-2 is one step in the cache, with other groups of classes.
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
    """Return the step cache; only the main process uses it."""
    state = find_method(config.method.name).persistent_state
    keys = step_keys(config, data.fingerprint(), digest_masks(data)) if dist.is_main else []
    return StepCache(folder, keys, state)


def _write_exemplars(folder: RunFolder, config: RunConfig, data: ScenarioData) -> None:
    """Write the list of old images of each step; refuse a run that began with another list."""
    path, lines = folder.exemplars, memory_lines(data.memories)
    if not config.memory:
        path.unlink(missing_ok=True)
        return
    has_list = path.exists() and not folder.is_empty
    if has_list and path.read_text(encoding="utf-8") != lines:
        raise NacreError(
            f"{path}: the memory would hold other images than when the run began, because the "
            "labels of the data have changed; choose another --out"
        )
    save_text(path, lines)
