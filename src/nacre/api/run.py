"""Running a scenario from Python, with progress and a safe Ctrl-C."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nacre.runs.run import run_scenario
from nacre.terminal import PlainConsole, RunDisplay, progress_bar
from nacre.training.config import build_config, deep_merge
from nacre.training.events import Observer
from nacre.utils.progress import set_progress_bar
from nacre.utils.signals import Interrupted, StopSignal


def run(
    scenario: str,
    out: str | Path,
    *,
    method: str | None = None,
    preset: str | None = None,
    seed: int | None = None,
    cache: str | Path | None = None,
    config: dict[str, Any] | None = None,
    observers: Iterable[Observer] = (),
    progress: bool | None = None,
) -> dict[str, Any]:
    """Train all steps of a scenario, or resume an interrupted run.

    Args:
        scenario: ``data/task/setup``, a shipped scenario or a ``.yaml`` file.
        out: Folder for the run.
        method: Training method. Default: duo for pretrained weights; mib without them and under
            the presets of the paper.
        preset: Config values to begin with: ``paper``, ``text``, ``small`` or ``demo``.
        seed: Random seed for weights, order and augmentation. Default: the config's, or 1.
        cache: Folder of learned steps that runs share; a step in it is not trained again.
        config: Values as in a config file, such as ``{"train": {"epochs": 2}}``. Other arguments
            override them.
        observers: Functions that are called with every event (`nacre.training.events`).
        progress: Show the progress. Default: in notebooks and on terminals.

    Returns:
        The content of the run's ``metrics.json``.

    Raises:
        Interrupted: after Ctrl-C. The progress is saved, and the same call resumes.
    """
    set_progress_bar(progress_bar)
    named = {"scenario": scenario, "method": {"name": method} if method else None, "seed": seed}
    given = {key: value for key, value in named.items() if value is not None}
    resolved = build_config(preset=preset, overrides=deep_merge(config or {}, given))
    folder = Path(cache) if cache else None
    with watched(out, observers, progress) as (told, stop):
        return run_scenario(resolved, Path(out), cache=folder, observers=told, should_stop=stop)


@contextlib.contextmanager
def watched(
    out: str | Path, observers: Iterable[Observer], progress: bool | None
) -> Iterator[tuple[list[Observer], Callable[[], bool]]]:
    """Show the progress of training, and let Ctrl-C stop it after a save.

    Yields:
        The observers of the events, and a function that returns True after Ctrl-C.

    Raises:
        Interrupted: with how to resume.
    """
    with contextlib.ExitStack() as meanwhile:
        told = list(observers)
        console = PlainConsole(stderr=True)
        shows = console.is_terminal or console.is_jupyter or hasattr(sys, "ps1")
        if (shows if progress is None else progress) and os.environ.get("RANK", "0") == "0":
            told.append(meanwhile.enter_context(RunDisplay(console)))
        stop = meanwhile.enter_context(StopSignal())
        try:
            yield told, stop
        except Interrupted:
            raise Interrupted(
                f"stopped; what was learned is saved in {out}, and the same call goes on"
            ) from None
