"""Testing a saved model again, under the conventions of its run or under others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nacre.data.dataset import eval_batches
from nacre.errors import NacreError
from nacre.evaluation.evaluate import confusion_of
from nacre.evaluation.metrics import step_metrics
from nacre.models.io import find_model, load_model
from nacre.training.config import merge, parse_assignment, resolve_config
from nacre.data.step_data import ScenarioData
from nacre.runs.scenario_data import open_scenario
from nacre.utils.device import choose_device


def _check_classes(path: Path, known: list[str], prepared: ScenarioData, step: int) -> None:
    """Refuse data whose classes are not those of the model."""
    wanted = list(prepared.scenario.classes.names(step)) if step < prepared.num_steps else []
    if wanted != known:
        raise NacreError(
            f"{path} knows {', '.join(known)}, but after step {step} the scenario "
            f"{prepared.scenario.name!r} has {', '.join(wanted) or 'no such step'}"
        )
    prepared.check_tests()


def retest(path: Path, values: dict[str, Any], assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Test the model at a path with its own config, changed by plain values and ``a.b=value``."""
    network, info, _ = load_model(find_model(path))
    changed = merge(info.config, values)
    for text in assignments:
        changed = merge(changed, parse_assignment(text))
    config = resolve_config(changed)
    prepared = open_scenario(config)
    device = choose_device(config.train.device)
    step = len(info.steps) - 1
    _check_classes(path, info.classes, prepared, step)
    batches = eval_batches(prepared.eval_dataset(step), config.train.batch, 0, 1, 0)
    confusion = confusion_of(network.to(device), batches, device, window=config.test_window)
    metrics = step_metrics(prepared.scenario.classes, prepared.scenario.groups, step, confusion)
    return metrics | {
        "images": len(prepared.eval_dataset(step)),
        "conventions": config.measured_under(),
    }
