"""Testing a saved model again, under the conventions of its run or under others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nacre.data.dataset import eval_batches
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.metrics import compute_metrics
from nacre.models.io import find_model, load_model
from nacre.runs.scenario_data import open_scenario
from nacre.training.config import deep_merge, parse_assignment, resolve_config
from nacre.utils.device import choose_device


def _check_classes(path: Path, known: list[str], data: ScenarioData, step: int) -> None:
    """Refuse data whose classes are not those of the model."""
    wanted = list(data.scenario.classes.names(step)) if step < data.num_steps else []
    if wanted != known:
        raise NacreError(
            f"{path} knows {', '.join(known)}, but after step {step} the scenario "
            f"{data.scenario.name!r} has {', '.join(wanted) or 'no such step'}"
        )
    data.check_tests(step + 1)


def evaluate_checkpoint(
    path: Path, values: dict[str, Any], assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """Test the model at a path with its own config, changed by plain values and ``a.b=value``."""
    network, info, _ = load_model(find_model(path))
    changed = deep_merge(info.config, values)
    for text in assignments:
        changed = deep_merge(changed, parse_assignment(text))
    config = resolve_config(changed)
    data = open_scenario(config)
    device = choose_device(config.train.device)
    step = len(info.steps) - 1
    _check_classes(path, info.classes, data, step)
    batches = eval_batches(data.eval_dataset(step), config.train.batch_size, 0, 1, 0)
    confusion = evaluate(network.to(device), batches, device, window=config.test_window)
    metrics = compute_metrics(data.scenario.classes, data.scenario.groups, step, confusion)
    return metrics | {
        "images": len(data.eval_dataset(step)),
        "conventions": config.measured_under(),
    }
