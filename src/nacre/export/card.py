"""The model card: what a model knows, how it came to know it, how it tests, how to use it.

A README.md with the front matter that the Hugging Face hub reads. Every figure stands with the
convention it was measured under; a step without metrics is shown without figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from nacre.models.io import ModelInfo
from nacre.version import __version__

GROUPS = ("old", "new", "all")
_WITHOUT, _WITH = "without_background", "with_background"


@dataclass(frozen=True)
class Card:
    """What a card is made of.

    Attributes:
        name: Of the model.
        info: What its file says about it.
        metrics: Of the steps that were tested, by the step's number.
        license: Of the weights; None if nobody said.
        pictures: A picture beside the card that shows what the model sees; None without one.
    """

    name: str
    info: ModelInfo
    metrics: dict[int, dict[str, Any]]
    license: str | None = None
    pictures: str | None = None


def write_card(card: Card) -> str:
    """Return the text of the card."""
    front = yaml.safe_dump(_front_matter(card), sort_keys=False, allow_unicode=True)
    parts = [_head(card), _usage(card), _lineage(card), _results(card), _classes(card)]
    return f"---\n{front}---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(card: Card) -> dict[str, Any]:
    front: dict[str, Any] = {
        "library_name": "nacre",
        "pipeline_tag": "image-segmentation",
        "tags": ["semantic-segmentation", "continual-learning", "class-incremental-learning"],
    }
    if card.license:
        front["license"] = card.license.lower()
    results = [one for step in sorted(card.metrics) for one in _entries(card, step)]
    if results:
        front["metrics"] = ["mean_iou"]
        front["model-index"] = [{"name": card.name, "results": results}]
    return front


def _entries(card: Card, step: int) -> list[dict[str, Any]]:
    """Return a step's results as the hub lists them: one per group and convention."""
    metrics = card.metrics[step]
    found = []
    for group in GROUPS:
        for which in (_WITHOUT, _WITH):
            value = metrics.get("mean_iou", {}).get(f"{group}_{which}")
            if value is not None:
                name = f"mean IoU of {group} classes, {which.replace('_', ' ')}"
                found.append({"type": "mean_iou", "name": name, "value": round(value, 5)})
    if not found:
        return []
    data = _data(card.info, step)
    return [
        {
            "task": {"type": "image-segmentation"},
            "dataset": {"name": f"{data}, after step {step}", "type": data},
            "metrics": found,
        }
    ]


def _data(info: ModelInfo, step: int) -> str:
    entry = info.lineage[step] if step < len(info.lineage) else {}
    return ", ".join(str(name) for name in entry.get("data", [])) or "not stated"


def _head(card: Card) -> str:
    count = len(card.info.classes) - 1
    steps = len(card.info.steps)
    learned = f"in {steps} steps, one after the other" if steps > 1 else "in one step"
    picture = f"\n\n![What the model sees]({card.pictures})" if card.pictures else ""
    return (
        f"# {card.name}\n\nA network for semantic segmentation that knows {count} "
        f"{'class' if count == 1 else 'classes'}, learnt {learned}, with nacre {__version__}."
        f"{picture}"
    )


def _usage(card: Card) -> str:
    address = f"hf://{card.name}" if "/" in card.name else card.name
    return f"""## Use it

```python
import nacre

model = nacre.load("{address}")
model.predict("picture.jpg").shares()  # which share of the picture each class covers
model = nacre.learn("new-data/", start=model, out="grown")  # teach it the next class
```"""


def _lineage(card: Card) -> str:
    rows = [
        f"| {i} | {_cell(', '.join(map(str, step.get('classes', []))))} "
        f"| {_cell(step.get('images', ''))} | {_cell(_data(card.info, i))} "
        f"| {_cell(step.get('method', ''))} |"
        for i, step in enumerate(card.info.lineage)
    ]
    head = "| step | classes | images | data | method |\n|---:|---|---:|---|---|"
    return "\n".join(["## How it learnt", "", head, *rows])


def _results(card: Card) -> str:
    if not card.metrics:
        return ""
    rows = []
    for step in sorted(card.metrics):
        means = card.metrics[step].get("mean_iou", {})
        cells = [_percent(means.get(f"{g}_{w}")) for w in (_WITHOUT, _WITH) for g in GROUPS]
        rows.append(f"| {step} | {card.metrics[step].get('images', '')} | {' | '.join(cells)} |")
    head = (
        "| after step | test images | old | new | all "
        "| old, with background | new, with background | all, with background |"
        "\n|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    said = _conventions(card.metrics[max(card.metrics)].get("conventions", {}))
    text = f"Mean IoU in percent. The first three means leave the background out.{said}"
    return "\n".join(["## How it tests", "", text, "", head, *rows])


def _conventions(values: dict[str, Any]) -> str:
    named = ", ".join(f"{key} = {value}" for key, value in values.items())
    return f" Measured under: {named}." if named else ""


def _classes(card: Card) -> str:
    last = card.metrics.get(len(card.info.steps) - 1, {}).get("iou", {})
    starts = _steps_of_channels(card.info.steps)
    rows = [
        f"| {i} | {_cell(name)} | {starts[i]} | {_percent(last.get(name))} |"
        for i, name in enumerate(card.info.classes)
    ]
    head = "| channel | class | step | IoU |\n|---:|---|---:|---:|"
    return "\n".join(["## Classes", "", head, *rows])


def _steps_of_channels(steps: Sequence[int]) -> list[int]:
    return [step for step, count in enumerate(steps) for _ in range(count)]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f}"


def _cell(value: object) -> str:
    """Return text that cannot leave its cell of a table."""
    text = " ".join(str(value).split()).replace("|", "\\|")
    return text.replace("<", "&lt;")
