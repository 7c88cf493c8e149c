"""A model on the Hugging Face hub: its file, and a card with its steps, classes and IoUs.

The file contains the state of the method, so that others can add classes to the model. Only the
last part of a path of this machine is uploaded. Class and data names stay text in the card.
"""

import re
import tempfile
from pathlib import Path, PureWindowsPath
from typing import Any

from nacre.errors import NacreError
from nacre.models.io import MODEL, ModelInfo
from nacre.runs.records import Measured
from nacre.utils.io import markdown_text, save_text
from nacre.utils.system import import_extra
from nacre.utils.tensor_file import read_tensors, write_tensors
from nacre.version import __version__

Ious = dict[str, float | None]


def push(
    file: Path, info: ModelInfo, repository: str, *, private: bool, license: str | None
) -> str:
    """Upload a model file with a card; return the address of the commit.

    Args:
        file: The model file; the card has the IoUs of ``metrics.json`` beside it.
        info: The header of the file.
        repository: ``owner/name``; created if it does not exist.
        private: Make a new repository private.
        license: License of the weights, such as ``cc-by-4.0``.
    """
    hub = import_extra("huggingface_hub", "hub")
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
    except Exception as error:  # the hub, its HTTP library and the network raise many types
        reason = " ".join(str(error).split())[:300]
        raise NacreError(f"could not push to {repository}: {reason}") from error
    return str(done.commit_url)


def write_folder(
    folder: Path, file: Path, info: ModelInfo, repository: str, license: str | None
) -> None:
    """Write the uploaded files: the model file without this machine's paths, and the card."""
    metrics = file.with_name("metrics.json")
    ious = Measured.load(metrics).iou if metrics.is_file() else {}
    tensors, content = read_tensors(file, MODEL, "cpu")
    write_tensors(folder / "model.safetensors", tensors, {"kind": MODEL, **without_paths(content)})
    save_text(folder / "README.md", model_card(info, repository, license, ious))


def model_card(info: ModelInfo, repository: str, license: str | None, ious: Ious) -> str:
    """Return the card: front matter for the hub, an example, steps and classes."""
    hub = import_extra("huggingface_hub", "hub")
    data = hub.ModelCardData(
        library_name="nacre",
        pipeline_tag="image-segmentation",
        tags=["semantic-segmentation", "continual-learning", "class-incremental-learning"],
        license=license.lower() if license else None,
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
model.predict("image.jpg").class_fractions()  # the fraction of the image that each class covers
model = nacre.learn("new-data/", start=model, out="grown")  # teach it the next class
```

## Steps

{_steps(info)}

## Classes

{_classes(info, ious)}
"""


def _steps(info: ModelInfo) -> str:
    rows = []
    for i, step in enumerate(info.history):
        data = ", ".join(map(str, step.get("data", []))) or "not stated"
        rows.append([i, ", ".join(step["classes"]), step["images"], data, step.get("method", "?")])
    return _table(["step", "classes", "images", "data", "method"], rows)


def _classes(info: ModelInfo, ious: Ious) -> str:
    rows = []
    for i, (name, step) in enumerate(zip(info.classes, info.channels.step_of, strict=True)):
        iou = ious.get(name)
        rows.append([i, name, step, "–" if iou is None else f"{iou * 100:.1f}"])
    return _table(["channel", "class", "step", "IoU, %"], rows)


def _table(columns: list[str], rows: list[list[Any]]) -> str:
    cells = [[markdown_text(str(cell)) for cell in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def without_paths(value: Any) -> Any:
    """Return plain data with only the last part of every path of this machine."""
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    is_path = isinstance(value, str) and re.match(r"[/~\\]|[A-Za-z]:[\\/]", value)
    return PureWindowsPath(value).name if is_path else value
