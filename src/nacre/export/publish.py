"""`nacre publish`: a model in the layout of the Hugging Face hub, and onto the hub.

    config.json  model.safetensors  preprocessor_config.json  README.md  seen.png

`nacre.load` reads the folder, and so does `nacre learn`: the state of the method is in the file.
Paths of the machine it was learnt on are not: of each only the last part is kept.
"""

import re
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import numpy as np
from torch import nn

from nacre.errors import NacreError
from nacre.export.card import Card, write_card
from nacre.export.labeled import open_labeled
from nacre.export.verify import torch_scores
from nacre.models.io import MODEL, ModelInfo, find_model, load_model
from nacre.report.pictures.canvas import Grid, Tile, draw_grid
from nacre.report.pictures.predict import colorize
from nacre.runs.records import Measured, read_record
from nacre.utils.io import save, save_json, save_text
from nacre.utils.packages import need
from nacre.utils.tensor_file import read_tensors, write_tensors
from nacre.version import __version__

CARD, PICTURES = "README.md", "seen.png"
FILES = ("config.json", "model.safetensors", "preprocessor_config.json", CARD, PICTURES)
_BILINEAR = 2
_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)


def publish(
    model: Path,
    out: Path,
    *,
    name: str | None = None,
    license: str | None = None,
    data: str | None = None,
    pictures: int = 4,
) -> list[Path]:
    """Write a model as a folder for the hub.

    Args:
        model: A run folder, a step folder or a model file.
        out: The folder.
        name: ``organisation/name`` of the model; the folder's name if not given.
        license: Of the weights, as the hub abbreviates it, such as ``cc-by-4.0``.
        data: Labelled pictures to show what the model sees: a folder, or `own`.
        pictures: How many of them.

    Returns:
        The files.
    """
    file = find_model(model)
    network, info, _ = load_model(file)
    if data is not None:
        _write_pictures(network, info, data, pictures, out / PICTURES)
    tensors, content = read_tensors(file, MODEL, "cpu")
    write_tensors(out / "model.safetensors", tensors, {"kind": MODEL, **without_paths(content)})
    save_json(out / "config.json", hub_config(info))
    save_json(out / "preprocessor_config.json", preprocessor_config(network, info))
    shown = PICTURES if data is not None else None
    card = Card(name or out.resolve().name, info, read_metrics(file), license, shown)
    save_text(out / CARD, write_card(card))
    return [out / one for one in FILES if (out / one).exists()]


def hub_config(info: ModelInfo) -> dict[str, Any]:
    """Return config.json: what transformers calls things, and the rest under our own name."""
    names = list(info.classes)
    return {
        "model_type": "nacre",
        "architectures": [str(info.model.get("kind", "network"))],
        "num_labels": len(names),
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "nacre": {
            "version": __version__,
            "colors": info.colors,
            "steps": info.steps,
            "lineage": without_paths(info.lineage),
            "model": without_paths(info.model),
            "crop": info.crop,
            "predict_mode": info.predict_mode,
            "method": without_paths(info.config.get("method")),
        },
    }


def preprocessor_config(network: nn.Module, info: ModelInfo) -> dict[str, Any]:
    """Return how pixels become what the network takes, in the words of transformers."""
    mean, std = _pixels(network)
    scaled = info.predict_mode == "crop"
    config: dict[str, Any] = {
        "do_resize": scaled,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }
    return config | (
        {"size": {"shortest_edge": info.crop}, "resample": _BILINEAR} if scaled else {}
    )


def _pixels(network: nn.Module) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of RGB in 0..1 that a network expects."""
    buffers = dict(network.named_buffers())
    own = "pixel_" if "pixel_scale" in buffers else ""  # an adapter has them without it
    scale, shift = (buffers[own + name].flatten() for name in ("scale", "shift"))
    mean, std = (-shift / scale / 255).tolist(), (1 / (255 * scale)).tolist()
    return [round(one, 6) for one in mean], [round(one, 6) for one in std]


def read_metrics(file: Path) -> dict[int, dict[str, Any]]:
    """Return the metrics of a model's step and of the steps before it, where they lie beside it."""
    folder = file.parent
    found: dict[int, dict[str, Any]] = {}
    number = folder.name.removeprefix("step-")
    if folder.name.startswith("step-") and number.isdecimal():
        for step in range(int(number) + 1):
            path = folder.parent / f"step-{step}" / "metrics.json"
            if path.is_file():
                found[step] = read_record(Measured, path)
    elif (folder / "metrics.json").is_file():
        metrics = read_record(Measured, folder / "metrics.json")
        found[metrics["step"]] = metrics
    return found


def without_paths(value: Any) -> Any:
    """Return plain data in which a path of this machine is its last part alone."""
    if isinstance(value, dict):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(one) for one in value]
    if isinstance(value, str | PurePath):
        text = str(value)
        if text.startswith(("/", "~", "\\")) or re.match(r"[A-Za-z]:[\\/]", text):
            return PureWindowsPath(text).name
        return text
    return value


def _write_pictures(network: nn.Module, info: ModelInfo, data: str, count: int, path: Path) -> None:
    """Draw pictures, what their labels say and what the model sees, side by side."""
    colors = [(red, green, blue) for red, green, blue in info.colors]
    rows = []
    for picture, truth in open_labeled(data, info, count).read():
        seen = torch_scores(network, picture).argmax(0).astype(np.uint8)
        shown = (picture, colorize(truth, colors, picture), colorize(seen, colors, picture))
        rows.append(tuple(Tile(one) for one in shown))
    grid = Grid(("picture", "labels", "seen"), tuple(rows), side=220)
    legend = list(zip(info.classes[1:], colors[1:], strict=True))
    save(path, lambda file: draw_grid(grid, legend).save(file, "PNG"))


def push(folder: Path, repository: str, *, private: bool = False) -> str:
    """Upload a published folder to the hub; return where it is to be seen.

    Args:
        folder: What `publish` wrote.
        repository: ``organisation/name``; made if it is not there.
        private: Whether a new repository is for its owners alone.
    """
    check_repository(repository)
    hub = need("huggingface_hub", "hub")
    api = hub.HfApi(library_name="nacre", library_version=__version__)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(FILES),
            commit_message=f"nacre {__version__}",
        )
    except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise NacreError(f"could not push to {repository}: {reason}") from error
    return str(done.repo_url if hasattr(done, "repo_url") else done)


def check_repository(repository: str) -> None:
    """Refuse what cannot be the name of a repository."""
    if not _REPOSITORY.fullmatch(repository):
        raise NacreError(f"{repository!r} is no repository: give organisation/name")
