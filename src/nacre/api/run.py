"""Running a scenario from Python."""

from pathlib import Path
from typing import Any

from nacre.runs.run import run_scenario
from nacre.terminal.progress import progress_bar
from nacre.training.config import build_config, deep_merge
from nacre.utils.progress import set_progress_bar


def run(
    scenario: str,
    out: str | Path,
    *,
    method: str = "mib",
    preset: str | None = None,
    seed: int | None = None,
    cache: str | Path | None = None,
    config: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Learn all steps of a scenario, or go on with a run that was interrupted.

    Args:
        scenario: ``data/task/setup``, a shipped scenario or a ``.yaml`` file.
        out: The run's folder.
        method: Name of the method.
        preset: Values that lie under all others: ``paper``, ``small`` or ``demo``.
        seed: Of the weights, the order and the augmentation; 1 unless the config says another.
        cache: Folder of learned steps that runs share: what is there is not learned again.
        config: Values as in a config file, such as ``{"train": {"epochs": 2}}``.

    Returns:
        The content of the run's ``metrics.json``.
    """
    set_progress_bar(progress_bar)
    values: dict[str, Any] = {"scenario": scenario, "method": {"name": method}}
    if seed is not None:
        values["seed"] = seed
    resolved = build_config(preset=preset, overrides=deep_merge(values, config or {}))
    return run_scenario(resolved, Path(out), cache=Path(cache) if cache else None)
