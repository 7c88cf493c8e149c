"""What a step of `nacre learn` will be: its config, and why it is as it is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nacre.methods import find_method, find_row
from nacre.methods.parts import Shared
from nacre.runs.learn import Learning, Start
from nacre.runs.learn_config import (
    LearnConfig,
    build_learn_config,
    ground_of,
    read_written,
)
from nacre.runs.learn_data import open_folders
from nacre.training.automatic import Choice, choose, look_at
from nacre.training.config import read_section
from nacre.training.events import Observer
from nacre.utils.device import choose_device

FROZEN: dict[Shared, list[str]] = {
    "nothing": [],
    "backbone": ["backbone"],
    "decoder": ["backbone", "decoder"],
}


class Plan:
    """A step that is about to be learnt: its config, and why it is as it is."""

    def __init__(self, config: LearnConfig, start: Start | None, choice: Choice | None) -> None:
        self.config, self.start = config, start
        self.how = _how(config) if start else ""
        self.reasons = choice.reasons if choice and _was_taken(choice, config) else ()
        kind = find_method(config.method.name)
        # The last reason says how many updates are made.
        if not kind.learns_by_gradient:
            self.reasons = (*self.reasons[:-1], "one pass over the images, without an update")
        elif kind.holds_out and self.reasons:
            first = "first the ledger in one pass over the images, then its decoder"
            kept = "kept if they gain on held-out images"
            self.reasons = (*self.reasons[:-1], f"{first}: {self.reasons[-1]}; {kept}")

    def learning(
        self,
        out: Path,
        *,
        observers: Iterable[Observer] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Learning:
        """Open the data for a folder, ready to begin."""
        return Learning(self.config, out, self.start, observers=observers, should_stop=should_stop)


def _how(config: LearnConfig) -> str:
    """Return by which method a model is continued, and what of it does not change."""
    parts = config.method.parts
    kept = FROZEN[parts.freeze] or ["backbone"] * parts.freeze_step_0
    kept += ["batch norm"] if parts.freeze_bn else []
    kept += ["old classifier rows"] if parts.freeze_old_rows else []
    named = " and ".join([", ".join(kept[:-1]), kept[-1]] if kept[1:] else kept)
    stays = f"; {named} {'stay' if kept[1:] else 'stays'} as before" if kept else ""
    name = config.method.name
    return f"learnt by {find_row(name).title}{stays}"


def _was_taken(choice: Choice, config: LearnConfig) -> bool:
    """Whether what was chosen is what is done: a person's own values need no reasons."""
    plain = config.to_dict()
    sections = {name: values for name, values in choice.values.items() if name != "method"}
    # Of MiB's parts `how` speaks.
    return all(
        plain[name].get(key) == value
        for name, values in sections.items()
        for key, value in values.items()
    )


def plan_learning(
    data: Sequence[Path],
    start: Start | None,
    *,
    tests: Sequence[Path] = (),
    preset: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    values: Mapping[str, Any],
) -> Plan:
    """Put together what a step is learnt with, from what fits the machine and what is given."""
    overrides = {
        **values,
        "data": [str(path) for path in data],
        "tests": [str(path) for path in tests],
        "start": str(start.path) if start else None,
    }
    num_images = sum(len(source.index("train")) for _, source in open_folders(data))
    written = read_written(file, assignments, overrides=overrides)
    choice = choose(
        look_at(choose_device("auto")),
        num_images,
        ground_of(start.info.model if start else None, read_section(written, "model")),
        has_backbone=start is None or start.has_backbone,
    )
    config = build_learn_config(
        start=start.info if start else None, automatic=choice, written=written, preset=preset
    )
    return Plan(config, start, None if preset else choice)
