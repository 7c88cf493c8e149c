"""What `nacre learn` and `nacre log` show on a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nacre.data.learn_data import LearnData
from nacre.models.io import ModelInfo
from nacre.report.numbers import percent

SHOWN = 8


def plan_lines(data: LearnData, how: str, reasons: Sequence[str]) -> RenderableType:
    """Return what a step will learn from what and how, and what was chosen for it and why."""
    lines = [Text(f"new: {', '.join(data.new)}", "bold")]
    for one in data.sets:
        hides = data.training_mapping(one).hidden
        text = f"{one.name}: {len(one.train_index):,} pictures label {_some(one.labeled)}"
        text += f"; its background may hide {_some(hides)}" if hides else ""
        lines.append(Text(text))
        known = [name for name in one.unlabeled if name in data.known]
        if known and hides:
            lines.append(
                Text(
                    f"{one.name} names {_some(known)} and holds no pixel of it: taken as hidden",
                    "yellow",
                )
            )
    lines += [Text(how)] if how else []
    return Group(*lines, *(Text(reason, "dim") for reason in reasons))


def learn_table(metrics: dict[str, Any]) -> RenderableType:
    """Return every class, what it was and what it is, and where both models agree."""
    table = Table(
        title=f"after step {metrics['step']}: IoU %, {metrics['images']:,} test pictures",
        title_justify="left",
    )
    for column in ("class", "before", "after", "change", "agreement", "verdict", "tested on"):
        is_text = column in ("class", "verdict", "tested on")
        table.add_column(column, justify="left" if is_text else "right")
    for name in metrics["classes"][1:]:
        style = "bold" if name in metrics["new"] else ""
        table.add_row(Text(name), *_class_row(metrics, name), style=style)
    reasons = [
        Text(f"{name}: {one['word']}; {one['reason']}", "yellow")
        for name, one in metrics.get("verdicts", {}).items()
        if one["reason"]
    ]
    training = sum(test.get("training_images", 0) for test in metrics["tests"])
    if training:
        reasons.insert(0, Text(f"{training:,} of the test images are training images", "yellow"))
    if not (metrics["agreement"] or {}).get("iou"):
        return Group(table, *reasons)
    return Group(
        table,
        *reasons,
        Text(
            f"agreement: on {metrics['agreement']['images']:,} new pictures, how much of what the "
            "start model saw of a class is still seen (IoU of the two models' predictions)",
            "dim",
        ),
    )


def _class_row(metrics: dict[str, Any], name: str) -> list[str | Text]:
    was, now = metrics["iou_before"].get(name), metrics["iou"].get(name)
    change = f"{100 * (now - was):+.1f}" if was is not None and now is not None else ""
    agreement = (metrics["agreement"] or {}).get("iou", {}).get(name)
    where = ", ".join(test["name"] for test in metrics["tests"] if name in test["iou"])
    verdict = metrics.get("verdicts", {}).get(name, {}).get("word", "")
    figures = (percent(was), percent(now), change, percent(agreement), verdict)
    return [*figures, Text(where or "no test pictures")]


def log_table(path: Path, info: ModelInfo, figures: dict[str, Any] | None) -> RenderableType:
    """Return the lineage of a model: the steps that made it."""
    table = Table(title=Text(f"{path}: {len(info.classes) - 1} classes"), title_justify="left")
    for column in ("step", "learnt", "from", "pictures", "method", "when"):
        table.add_column(column, justify="right" if column in ("step", "pictures") else "left")
    for entry in info.lineage:
        table.add_row(
            str(entry.get("step", "")),
            Text(_some(entry.get("classes", []))),
            Text(", ".join(map(str, entry.get("data", [])))),
            f"{entry.get('images', 0):,}",
            Text(str(entry.get("method", ""))),
            Text(str(entry.get("when", ""))[:16].replace("T", " ")),
        )
    if figures is None:
        return table
    values = [f"{name} {percent(value)}" for name, value in figures.items() if value is not None]
    return Group(table, Text(f"IoU % after the last step: {', '.join(values)}"))


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
