"""Model files: a network with its classes, its history and how to build it.

A model file is a safetensors file whose header has plain JSON under the key ``nacre``, so opening
it runs no code (`nacre.models.build.rebuild`). A copy of this JSON is beside it for people to read.
"""

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from torch import nn

from nacre.errors import NacreError, check, describe_errors, shown
from nacre.labels.channels import Channels, distinct_colors
from nacre.labels.space import BACKGROUND
from nacre.models.build import read_model_config, rebuild
from nacre.models.external import adapt, describe_given, is_given
from nacre.models.network import Network
from nacre.models.weights import ADDRESS, hub_model
from nacre.models.widen import check_type
from nacre.utils.io import save_json
from nacre.utils.tensor_file import Tensors, read_tensors, write_tensors

MODEL = "model"

FIRST_MODEL = "first.safetensors"
"""A model that can be used while its decoder still learns."""

MAX_CLASSES = 65_536

Name = Annotated[str, Field(min_length=1, max_length=4096)]
Level = Annotated[int, Field(strict=True, ge=0, le=255)]
NumChannels = Annotated[int, Field(strict=True, ge=1, le=MAX_CLASSES)]


class HistoryEntry(BaseModel):
    """A step in the history of a model file; more keys are allowed."""

    model_config = ConfigDict(extra="allow")

    step: Annotated[int, Field(strict=True, ge=0, le=MAX_CLASSES)]
    classes: list[Name]
    images: Annotated[int, Field(strict=True, ge=0, le=2**62)]
    data: list[Name] = []
    hidden: dict[Name, list[Name]] = {}
    method: Name = "?"
    chosen: dict[Name, bool] = {}
    when: Annotated[str, Field(max_length=100)] = ""


def check_history(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check and return the entries of a history."""
    for entry in entries:
        check(HistoryEntry, entry)
    return entries


History = Annotated[
    list[dict[str, Any]], Field(max_length=MAX_CLASSES), AfterValidator(check_history)
]


@dataclass(frozen=True)
class ModelInfo:
    """The description of the network in a model file.

    Attributes:
        classes: class names, by channel.
        colors: RGB, by channel.
        steps: number of channels of each step; step 0's include the background.
        history: classes, images, data, method and time of each step.
        model: the config of the network.
        crop: side of the training crops.
        predict_mode: how a new image is predicted: ``crop`` (its shorter side scaled to the crop),
            ``full`` (at its own size) or ``sliding`` (at its own size in windows of the crop).
        config: the config of the whole run.
        mirror: True if scores are averaged with those of the mirror image
            (`nacre.evaluation.predictor.Predictor`).
        edges: True if class borders follow the edges of the image.
    """

    classes: Annotated[list[Name], Field(min_length=1, max_length=MAX_CLASSES)]
    colors: list[tuple[Level, Level, Level]]
    steps: Annotated[list[NumChannels], Field(min_length=1, max_length=MAX_CLASSES)]
    history: History
    model: dict[str, Any]
    crop: Annotated[int, Field(strict=True, ge=1, le=8192)]
    predict_mode: Literal["crop", "full", "sliding"]
    config: dict[str, Any]
    mirror: Annotated[bool, Field(strict=True)] = False
    edges: Annotated[bool, Field(strict=True)] = False

    @property
    def channels(self) -> Channels:
        """The channels: names, colors, and the step in which each was learned."""
        step_of = [step for step, count in enumerate(self.steps) for _ in range(count)]
        colors = [(r, g, b) for r, g, b in self.colors]
        return Channels(tuple(self.classes), tuple(colors), tuple(step_of))


def save_model(path: Path, network: Network, info: ModelInfo, method_state: Tensors) -> None:
    """Write a model file, and a copy of its JSON for people to read."""
    # The file has its own weights, and should not name a folder of this machine.
    config = network.config.model_copy(update={"weights": "none"})
    info = replace(info, model=config.model_dump(mode="json"))
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"method.{name}": value for name, value in method_state.items()}
    # The copy comes first: once the model file exists, its step is never written again.
    save_json(path.with_suffix(".json"), {"kind": MODEL, **info.__dict__})
    write_tensors(path, tensors, {"kind": MODEL, **info.__dict__})


def load_model(
    path: Path, device: torch.device | str = "cpu", network: nn.Module | None = None
) -> tuple[Network, ModelInfo, Tensors]:
    """Read a model file; return its network, its description, and the method's state.

    If the network was passed by a Python program, `network` must be one of the same class.
    """
    tensors, content = read_tensors(path, MODEL, device)
    with _in_one_sentence(path):
        info = _read_info(content)
        state = _under("network.", tensors)
        loaded = rebuild(info.model, info.steps, info.crop, state, network)
    _check_finite(path, tensors)
    return loaded.to(device).eval(), info, _under("method.", tensors)


def read_info(path: Path) -> ModelInfo:
    """Return the description in a model file, without building the network."""
    _, content = read_tensors(path, MODEL, "cpu")
    with _in_one_sentence(path):
        info = _read_info(content)
        read_model_config(info.model)
    return info


@contextlib.contextmanager
def _in_one_sentence(path: Path) -> Iterator[None]:
    """Turn any error into one sentence about a file that cannot be opened."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise NacreError(f"model file {path} cannot be opened: {reason}") from error


def _read_info(content: dict[str, Any]) -> ModelInfo:
    """Check the types, limits and consistency of a header."""
    try:
        info = TypeAdapter(ModelInfo).validate_python(content)
    except ValidationError as error:
        raise NacreError(describe_errors(error, Any)) from error
    check_channels(info.classes, {"colors": len(info.colors), "channels": sum(info.steps)})
    return info


def check_channels(classes: Sequence[str], counts: Mapping[str, int]) -> None:
    """Refuse class names that are not valid, or whose number differs from one of the `counts`."""
    if set(counts.values()) != {len(classes)}:
        *first, last = (f"{count} {noun}" for noun, count in counts.items())
        raise NacreError(f"it has {', '.join([f'{len(classes)} classes', *first])} and {last}")
    if classes[0] != BACKGROUND:
        raise NacreError(f"its first channel is {shown(classes[0])}, not {BACKGROUND!r}")
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise NacreError(f"two of its channels are the class {twice[0]!r}")


def _check_finite(path: Path, tensors: Tensors) -> None:
    """Refuse weights that are not finite, with which no prediction is possible."""
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NacreError(
                f"model file {path} cannot be used: {name} has values that are not finite, because "
                "training diverged; a smaller learning rate may help"
            )


def find_model(path: Path) -> Path:
    """Return the model file for a path of a user.

    The path is a file, a step's folder, a run's folder (its last step), or a model of the Hugging
    Face hub as ``hf://organization/name``, which is downloaded once.
    """
    if str(path).startswith(ADDRESS):
        return hub_model(str(path))
    if path.is_dir():
        file = path / "model.safetensors"
        if not file.exists() and (path / FIRST_MODEL).exists():
            return path / FIRST_MODEL
        steps = {
            int(model.parent.name.removeprefix("step-")): model
            for model in path.glob("step-*/model.safetensors")
            # A person may have made others, such as ``step-1-backup``.
            if model.parent.name.removeprefix("step-").isdecimal()
        }
        path = file if file.exists() or not steps else steps[max(steps)]
    if not path.is_file():
        raise NacreError(
            f"no model at {path}; give a run folder, a step folder or a .safetensors file"
        )
    return path


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


# A network of a Python program as the start of a step


def save_start(
    path: Path,
    model: nn.Module,
    *,
    old: Sequence[str] | None = None,
    background: int | None = 0,
    crop: int = 512,
    **options: Any,
) -> nn.Module | None:
    """Write a network as a model file that `learn_step` can start from.

    Args:
        path: the file.
        model: any module from images to class scores; it does not change.
        old: names of its classes in the order of its channels, without the background; None uses
            those in a transformers config.
        background: the channel of the background; None if there is none.
        crop: side of the training crops.
        options: `scoring_layers`, `stages` and `pixels`, as in `nacre.models.config.AdapterConfig`.

    Returns:
        The network that `load_model` needs to open the file; None if it needs none.

    Raises:
        NacreError: the names do not fit the network.
    """
    check_type(model)
    config = describe_given(model).model_copy(update={"background": background})
    config = type(config).model_validate({**config.model_dump(), **options})
    network = adapt(copy.deepcopy(model), config, [0])
    names = _own_names(model, background) if old is None else list(old)
    count = network.num_classes
    _check_names(names, count - 1)
    info = ModelInfo(
        classes=[BACKGROUND, *names],
        colors=list(distinct_colors(count)),
        steps=[count],
        history=[{"step": 0, "classes": names, "images": 0, "data": [], "method": "given"}],
        model={},
        crop=crop,
        predict_mode="crop",
        config={},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(path, network, info, {})
    return model if is_given(config) else None


def _check_names(names: list[str], num_old: int) -> None:
    if len(names) != num_old or len({*names, BACKGROUND}) != num_old + 1:
        raise NacreError(
            f"old: the network scores {num_old} classes beside the background, and {len(names)} "
            f"names were given ({', '.join(names)}): give one per channel, all different"
        )


def _own_names(model: nn.Module, background: int | None) -> list[str]:
    names = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(names, dict):
        raise NacreError("old: name the classes of the network in the order of its channels")
    return [str(name) for i, name in sorted(names.items()) if i != background]
