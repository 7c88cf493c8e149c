"""A model on the Hugging Face hub: its file, and a card that says what it knows and how it tests.

The file holds the state of the method, so that others can teach the model more. Of a path of this
machine only the last part is uploaded. Class and data names cannot become Markdown or HTML.
"""

import re
import tempfile
from pathlib import Path, PureWindowsPath
from typing import Any

from nacre.errors import NacreError
from nacre.models.io import MODEL, ModelInfo
from nacre.runs.records import Measured, read_record
from nacre.utils.escape import markdown_text
from nacre.utils.io import save_text
from nacre.utils.packages import need
from nacre.utils.tensor_file import read_tensors, write_tensors
from nacre.version import __version__

Metrics = dict[int, dict[str, Any]]


def push(
    file: Path, info: ModelInfo, repository: str, *, private: bool, license: str | None
) -> str:
    """Upload a model file with a card; return the address of the commit.

    Args:
        file: The model file; metrics that lie beside it go into the card.
        info: What the file says about its network.
        repository: ``owner/name``; created if it does not exist.
        private: Whether a new repository is visible to its owners alone.
        license: License of the weights, such as ``cc-by-4.0``.
    """
    hub = need("huggingface_hub", "hub")
    api = hub.HfApi(library_name="nacre", library_version=__version__)
    try:
        name = api.create_repo(repository, private=private, exist_ok=True).repo_id
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), file, info, name, license)
            done = api.upload_folder(
                repo_id=name, folder_path=folder, commit_message=f"nacre {__version__}"
            )
    except NacreError:
        raise
    except Exception as error:  # of the hub, of its HTTP library, of the network
        reason = " ".join(str(error).split())[:300]
        raise NacreError(f"could not push to {repository}: {reason}") from error
    return str(done.commit_url)


def write_folder(
    folder: Path, file: Path, info: ModelInfo, repository: str, license: str | None
) -> None:
    """Write what is uploaded: the model file without this machine's paths, and the card."""
    tensors, content = read_tensors(file, MODEL, "cpu")
    write_tensors(folder / "model.safetensors", tensors, {"kind": MODEL, **without_paths(content)})
    save_text(folder / "README.md", model_card(info, repository, license, read_metrics(file)))


def model_card(info: ModelInfo, repository: str, license: str | None, metrics: Metrics) -> str:
    """Return the card: front matter that the hub reads, use, steps, results and classes."""
    hub = need("huggingface_hub", "hub")
    data = hub.ModelCardData(
        library_name="nacre",
        pipeline_tag="image-segmentation",
        tags=["semantic-segmentation", "continual-learning", "class-incremental-learning"],
        license=license.lower() if license else None,
        model_name=repository if metrics else None,
        eval_results=[
            hub.EvalResult(
                task_type="image-segmentation",
                dataset_type=_data(info, step),
                dataset_name=f"{_data(info, step)}, after step {step}",
                dataset_config=f"after step {step}",  # else the steps become one result
                metric_type="mean_iou",
                metric_name=f"mean IoU of {group.replace('_', ' ')}",
                metric_value=round(value, 5),
            )
            for step, found in metrics.items()
            for group, value in found["mean_iou"].items()
            if value is not None
        ]
        or None,
    )
    classes, steps = len(info.classes) - 1, len(info.steps)
    return f"""---
{data.to_yaml()}
---

# {repository}

A network for semantic segmentation that knows {classes} {"class" if classes == 1 else "classes"}, \
learned in {steps} {"step" if steps == 1 else "steps"} with nacre {__version__}.

```python
import nacre

model = nacre.load("hf://{repository}")
model.predict("image.jpg").shares()  # the share of the image that each class covers
model = nacre.learn("new-data/", start=model, out="grown")  # teach it the next class
```

## Steps

{_steps(info)}
{_results(metrics)}
## Classes

{_classes(info, metrics)}
"""


def _steps(info: ModelInfo) -> str:
    rows = [
        [i, ", ".join(one["classes"]), one["images"], _data(info, i), one.get("method", "?")]
        for i, one in enumerate(info.lineage)
    ]
    return _table(["step", "classes", "images", "data", "method"], rows)


def _results(metrics: Metrics) -> str:
    if not metrics:
        return ""
    last = metrics[max(metrics)]
    heads = [name.replace("_", " ") for name in last["mean_iou"]]
    rows = [
        [step, found["images"], *(_percent(found["mean_iou"].get(one)) for one in last["mean_iou"])]
        for step, found in metrics.items()
    ]
    under = ", ".join(f"{key} = {value}" for key, value in last.get("conventions", {}).items())
    under = f" Measured under: {markdown_text(under)}." if under else ""
    table = _table(["after step", "test images", *heads], rows)
    return f"\n## Results\n\nMean IoU in percent.{under}\n\n{table}\n"


def _classes(info: ModelInfo, metrics: Metrics) -> str:
    last = metrics.get(len(info.steps) - 1, {}).get("iou", {})
    steps = [step for step, count in enumerate(info.steps) for _ in range(count)]
    rows = [[i, name, steps[i], _percent(last.get(name))] for i, name in enumerate(info.classes)]
    return _table(["channel", "class", "step", "IoU"], rows)


def _table(heads: list[str], rows: list[list[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *([markdown_text(str(c)) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _data(info: ModelInfo, step: int) -> str:
    entry = info.lineage[step] if step < len(info.lineage) else {}
    return ", ".join(map(str, entry.get("data", []))) or "not stated"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f}"


def read_metrics(file: Path) -> Metrics:
    """Return the metrics of a model's step and of the steps before it, where they lie beside it."""
    folder, number = file.parent, file.parent.name.removeprefix("step-")
    if folder.name.startswith("step-") and number.isdecimal():
        folders = [folder.parent / f"step-{step}" for step in range(int(number) + 1)]
    else:
        folders = [folder]
    paths = [one / "metrics.json" for one in folders if (one / "metrics.json").is_file()]
    found = [read_record(Measured, path) for path in paths]
    return {metrics["step"]: metrics for metrics in found}


def without_paths(value: Any) -> Any:
    """Return plain data in which a path of this machine is its last part alone."""
    if isinstance(value, dict):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    is_path = isinstance(value, str) and re.match(r"[/~\\]|[A-Za-z]:[\\/]", value)
    return PureWindowsPath(value).name if is_path else value
