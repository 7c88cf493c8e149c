"""Networks of Hugging Face's transformers that segment: SegFormer, BEiT, DPT, MobileViT, …

model: {kind: hf, name: nvidia/mit-b0}                            weights of the hub
model: {kind: hf, name: my-folder}                                a folder of `save_pretrained`
model: {kind: hf, name: segformer, weights: none, options: {hidden_sizes: [8, 16, 32, 64]}}
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import Field
from torch import nn

from nacre.errors import NacreError
from nacre.models.foreign.adapter import Adapter, Pixels, pixels_of
from nacre.models.hub import hub_file
from nacre.models.kinds.base import ForeignConfig, Kind, adapt, num_outputs
from nacre.utils.io import load_json
from nacre.utils.packages import need

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# What a config says of classes and of the program that wrote it; the rest is the architecture.
_NOT_ARCHITECTURE = (
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "model_type",
    "num_labels",
    "torch_dtype",
    "transformers_version",
)


class HfConfig(ForeignConfig):
    """A network of transformers."""

    kind: Literal["hf"] = Field(default="hf", description="a network of transformers")
    name: str = Field(
        description="a folder, a repository of the Hugging Face hub, or a model type of "
        "transformers, such as segformer"
    )
    weights: Literal["pretrained", "none"] = Field(
        default="pretrained", description="those of the folder or the repository, or none (random)"
    )


def build(
    config: HfConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Make a network of transformers."""
    transformers = need("transformers", "hf")
    settings, pixels = _settings(transformers, config)
    settings.num_labels = num_outputs(config, classes_per_step)
    auto = transformers.AutoModelForSemanticSegmentation
    with _in_one_sentence(config), _quiet(transformers):
        if load and config.weights == "pretrained":
            model: nn.Module = auto.from_pretrained(
                _folder(config.name, *_WEIGHTS), config=settings, ignore_mismatched_sizes=True
            )
        else:
            model = auto.from_config(settings)
    again = config.model_copy(
        update={
            "name": settings.model_type,
            "weights": "none",
            "options": _architecture(settings),
        }
    )
    return adapt(model, again, classes_per_step, pixels=pixels)


def describe_model(model: Any, **values: Any) -> HfConfig:
    """Return how to build a network of transformers again that is already there."""
    settings = model.config
    return HfConfig(
        name=settings.model_type, weights="none", options=_architecture(settings), **values
    )


def _settings(transformers: Any, config: HfConfig) -> tuple[Any, Pixels | None]:
    """Return transformers' config of the network, and what its processor does to pixels."""
    known = transformers.CONFIG_MAPPING
    # A folder of that name, such as one of runs, is meant only if it holds a network.
    if config.name in known and not (Path(config.name) / "config.json").is_file():
        if config.weights == "pretrained":
            raise NacreError(
                f"model.name={config.name!r} is a model type and has no weights: give a "
                "folder or a repository of the hub, or weights=none"
            )
        with _in_one_sentence(config):
            return known[config.name].from_dict(dict(config.options)), None
    folder = _folder(config.name, "config.json")
    if not (folder / "config.json").is_file():
        raise NacreError(f"model.name={config.name!r}: the folder has no config.json")
    with _in_one_sentence(config), _quiet(transformers):
        settings = transformers.AutoConfig.from_pretrained(folder, **config.options)
    return settings, _pixels(config.name)


def _folder(name: str, *files: str) -> Path:
    """Return the folder that has one of these files, fetched from the hub if need be."""
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    problem: NacreError | None = None
    for file in files:
        try:
            return hub_file(name, file).parent
        except NacreError as error:
            problem = problem or error
    assert problem is not None
    raise NacreError(f"model.name={name!r} is neither a model type nor a folder: {problem}")


def _pixels(name: str) -> Pixels | None:
    try:
        path = _folder(name, "preprocessor_config.json") / "preprocessor_config.json"
    except NacreError:
        return None  # many repositories have none
    if not path.is_file():
        return None
    content = load_json(path)
    if not isinstance(content, dict):
        raise NacreError(f"could not read {path}: it holds no mapping")
    return pixels_of(SimpleNamespace(**content))


def _architecture(settings: Any) -> dict[str, Any]:
    plain = json.loads(settings.to_json_string(use_diff=True))
    return {key: value for key, value in plain.items() if key not in _NOT_ARCHITECTURE}


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep warnings about a new head to oneself: a new head is what is wanted."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


@contextlib.contextmanager
def _in_one_sentence(config: HfConfig) -> Iterator[None]:
    """Say in one sentence what transformers does not take."""
    try:
        yield
    except NacreError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OSError, ImportError) as error:
        sentence = " ".join(str(error).split())[:300]
        raise NacreError(f"model.name={config.name!r}: {sentence}") from error


KIND = Kind(HfConfig, build, "transformers' networks for semantic segmentation: SegFormer, DPT, …")
