"""Testing a saved model again, under the conventions of its run or under others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nacre.data.loading import testing_batches
from nacre.errors import NacreError
from nacre.evaluation.evaluate import confusion_of
from nacre.evaluation.metrics import step_metrics
from nacre.models.io import find_model, load_model
from nacre.training.config import merge, parse_assignment, resolve_config
from nacre.data.step_data import Prepared, prepare
from nacre.training.distributed import choose_device


def _check_classes(path: Path, known: list[str], prepared: Prepared, step: int) -> None:
    """Refuse data whose classes are not those of the model."""
    wanted = list(prepared.scenario.classes.names(step)) if step < prepared.steps else []
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
    prepared = prepare(resolve_config(changed))
    config = prepared.config
    device = choose_device(config.train.device)
    step = len(info.steps) - 1
    _check_classes(path, info.classes, prepared, step)
    batches = testing_batches(prepared.testing_set(step), config.train.batch, 0, 1, 0)
    confusion = confusion_of(network.to(device), batches, device, window=config.test_window)
    metrics = step_metrics(prepared.scenario.classes, prepared.scenario.groups, step, confusion)
    return metrics | {
        "images": len(prepared.testing_set(step)),
        "conventions": config.measured_under(),
    }
