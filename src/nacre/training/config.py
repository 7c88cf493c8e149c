"""The config of a run: typed, frozen, and checked as a whole before anything is done.

It comes from, later over earlier: defaults, a preset, a YAML file, ``--set a.b=value``. The
scenario says which data set's config belongs in ``data`` and ``method.name`` which method's in
``method``. All mistakes are reported at once, each with its place and the nearest known name.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import Field, create_model

from nacre.data import find_dataset
from nacre.data.source import DataConfig
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError, check, shown
from nacre.labels.mapping import LabelPolicy
from nacre.methods import Method, MethodConfig, find_method
from nacre.models.build import model_config_type
from nacre.models.config import DeepLabConfig, ModelConfig
from nacre.scenarios.scenario import read_scenario
from nacre.training.optim import OptimConfig
from nacre.training.presets import check_weights, preset_values
from nacre.utils.config import (
    AFTER_STEP_0,
    MAX_YAML_DEPTH,
    NO_EFFECT,
    Config,
    parse_yaml,
    read_yaml,
)

ConfigValues = dict[str, Any]
PrecisionName = Literal["auto", "float32", "tf32", "bfloat16", "float16"]
PRECISIONS: tuple[str, ...] = get_args(PrecisionName)


class TrainConfig(OptimConfig):
    """The training of a step; the preset `paper` has the paper's values, the defaults not all."""

    epochs: int = Field(30, ge=1, le=100_000, description="passes over a step's images")
    incremental_epochs: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="passes in the steps after step 0, if other than `epochs`",
        json_schema_extra=AFTER_STEP_0,
    )
    iterations: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="updates of a step, instead of passes over its images",
    )
    incremental_iterations: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="updates in the steps after step 0, if other than `iterations`",
        json_schema_extra=AFTER_STEP_0,
    )
    batch_size: int = Field(
        24, ge=1, le=65_536, description="images per update, over all processes together"
    )
    micro_batch: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="images a process holds at once; gradients add up to `batch_size`",
    )
    lr: float = Field(0.01, gt=0, le=1e6, description="learning rate of step 0")
    incremental_lr: float = Field(
        0.001,
        gt=0,
        le=1e6,
        description="learning rate of the later steps",
        json_schema_extra=AFTER_STEP_0,
    )
    grad_clip_norm: float | None = Field(
        None, gt=0, le=1e9, description="largest gradient norm; none by default"
    )
    precision: PrecisionName = Field(
        "auto",
        description="auto: bfloat16 or float16 on CUDA, float32 elsewhere; tf32: float32 with "
        "convolutions in TF32 on CUDA; float32: no TF32 either",
    )
    device: str = Field(
        "auto", description="auto, cpu, cuda, cuda:1, mps", json_schema_extra=NO_EFFECT
    )
    num_workers: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = Field(
        "auto",
        description="processes that load images, per process; auto: by the cores for a GPU, else 0",
        json_schema_extra=NO_EFFECT,
    )
    passes_on: Literal["here", "ray"] = Field(
        "here",
        description="who carries out the passes of a method without gradients: the processes of "
        "this run, or the machines of a Ray cluster",
        json_schema_extra=NO_EFFECT,
    )

    def test_batch(self, world_size: int) -> int:
        """Return how many images a process tests at once, which takes less memory than learning."""
        return self.micro_batch or max(1, self.batch_size // world_size)


class Recipe(Config):
    """The training and testing of steps, whatever their data."""

    seed: int = Field(
        1, ge=0, lt=2**31, description="of the weights, the order and the augmentation"
    )
    method: MethodConfig = Field(json_schema_extra=AFTER_STEP_0)
    model: ModelConfig = Field(default_factory=DeepLabConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    images: ImagesConfig = Field(default_factory=ImagesConfig)
    labels: LabelPolicy = Field(default_factory=LabelPolicy)

    def measured_under(self) -> ConfigValues:
        """Return every convention that a figure depends on, for the metrics files."""
        images = {"crop_size", "crop", "eval_mode", "mirror", "edges"}
        labels = self.labels.model_dump(include={"border", "unseen"})
        return labels | self.images.model_dump(include=images)

    def to_dict(self) -> ConfigValues:
        """Return the config as plain data, as it is saved and compared."""
        return self.model_dump(mode="json")


R = TypeVar("R", bound=Recipe)


class RunConfig(Recipe):
    """Everything that decides what a run computes: a recipe, a scenario and its data."""

    scenario: str = Field(
        description="data/task/setup, a shipped scenario or a .yaml file",
        json_schema_extra=AFTER_STEP_0,
    )
    memory: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="images kept for later steps, each with the labels of its own step",
        json_schema_extra=AFTER_STEP_0,
    )
    data: DataConfig


def resolve_config(raw: Mapping[str, Any]) -> RunConfig:
    """Check plain data as a whole and return the typed config."""
    data_name, method = _chosen(raw)
    dataset = find_dataset(data_name)
    content = {**raw, "data": {"name": data_name, **read_section(raw, "data")}}
    content["method"] = {"name": method, **read_section(raw, "method")}
    labels = raw.get("labels") or {}
    if isinstance(labels, Mapping):
        content["labels"] = {"border": dataset.border, **labels}
    return check(config_type(RunConfig, find_method(method), raw, dataset.config), content)


def config_type(
    base: type[R],
    method: type[Method],
    raw: Mapping[str, Any],
    data: type[DataConfig] | None = None,
) -> type[R]:
    """Return a config whose sections have the keys of what plain data choose.

    Args:
        base: Of what: a run or a step.
        method: How it is learned.
        raw: The data; what their section `model` names decides which keys that has.
        data: The config of the data set, where there is one.
    """
    section = raw.get("model") or {}
    if not isinstance(section, Mapping):
        raise NacreError(f"model: {shown(section)} is not a mapping such as {{kind: …}}")
    return _config_type(base, method.Config, model_config_type(section), data)


@lru_cache
def _config_type(
    base: type[R],
    method: type[MethodConfig],
    model: type[ModelConfig],
    data: type[DataConfig] | None,
) -> type[R]:
    fields: dict[str, Any] = {
        "method": (method, Field(json_schema_extra=AFTER_STEP_0)),
        "model": (model, Field(default_factory=model) if model is DeepLabConfig else Field()),
    }
    if data is not None:
        fields["data"] = (data, ...)
    return create_model(base.__name__, __base__=base, **fields)


def _chosen(raw: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of the data set and the method: they decide which config is read."""
    scenario = raw.get("scenario")
    if not isinstance(scenario, str):
        raise NacreError("no scenario: give data/task/setup, such as scenes/4-2-2/overlapped")
    data = read_scenario(scenario).data
    find_dataset(data, f"data set in scenario {scenario!r}:")
    method = read_section(raw, "method").get("name", "mib")
    return data, find_method(str(method)).name


def read_section(raw: Mapping[str, Any], key: str) -> ConfigValues:
    """Return a section as a mapping; ``method: mib`` is short for ``method: {name: mib}``."""
    section = raw.get(key) or {}
    if isinstance(section, str):
        return {"name": section}
    if not isinstance(section, Mapping):
        raise NacreError(f"{key}: {shown(section)} is not a mapping such as {{name: …}}")
    return dict(section)


def build_config(
    *,
    preset: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Put a config together from a preset, a file, ``a.b=value`` strings and plain values."""
    overrides = overrides or {}
    written = read_written(file, assignments, overrides, _check_one_scenario)
    if preset is not None:
        scenario = written.get("scenario")
        known = read_scenario(scenario) if isinstance(scenario, str) else None
        chosen = read_section(written, "method")
        method = str(chosen.get("name", "mib"))
        check_weights(preset, read_section(written, "model"))
        written = deep_merge(preset_values(preset, known, method, chosen), written)
    return resolve_config(written)


def read_written(
    file: Path | None,
    assignments: Iterable[str],
    options: Mapping[str, Any],
    check_one: Callable[[Mapping[str, Any], Mapping[str, Any]], None],
) -> ConfigValues:
    """Return what a user says, later over earlier: a file, ``a.b=value`` strings, options.

    Args:
        file: A YAML file.
        assignments: Of the option --set.
        options: What the command's other options say, or plain values from Python.
        check_one: Refuses what a file or an assignment may not say beside the options.
    """
    written: ConfigValues = (
        read_yaml(file, "config file", "sections, such as `train:`") if file else {}
    )
    check_one(written, options)
    # Twice: a method named here is the one that the assignments speak of, and has the last word.
    written = deep_merge(written, options)
    for text in assignments:
        assigned = parse_assignment(text)
        check_one(assigned, options)
        written = deep_merge(written, assigned)
    return deep_merge(written, options)


def _check_one_scenario(assigned: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a scenario that is set beside another one that would win without a word."""
    wanted, other = assigned.get("scenario"), given.get("scenario")
    if None not in (wanted, other) and wanted != other:
        raise NacreError(f"two scenarios: --set says {shown(wanted)}, and {shown(other)} is given")


def deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> ConfigValues:
    """Lay one plain config over another, section by section.

    A section that names another method, data set or kind of network replaces the one below
    entirely: values of the other one must not stay behind. Likewise `train.epochs` replaces the
    keys that count iterations, which would win, and `train.iterations` that of the later steps.
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if key in ("method", "data"):
            value = {"name": value} if isinstance(value, str) else value
            old = {"name": old} if isinstance(old, str) else old
        if key in _CHOSEN_BY and isinstance(old, Mapping) and isinstance(value, Mapping):
            old = None if _renames(old, value, key) else old
        if key == "train" and isinstance(value, Mapping):
            old = _without_iterations(old, value)
        if isinstance(value, Mapping) and old is not None:
            if not isinstance(old, Mapping):
                raise NacreError(f"{key}: {shown(old)} is not a mapping of keys to values")
            value = deep_merge(old, value)
        result[key] = value
    return result


def _without_iterations(below: Any, above: Mapping[str, Any]) -> Any:
    """Leave out how long steps are in values below, where those above say it another way."""
    replaced = {"incremental_iterations"} if {"epochs", "iterations"} & above.keys() else set()
    if "epochs" in above and "iterations" not in above:
        replaced.add("iterations")
    if not replaced or not isinstance(below, Mapping):
        return below
    return {key: value for key, value in below.items() if key not in replaced}


# The key of a section that decides what its other keys may be, and what stands there by default
_CHOSEN_BY = {"method": ("name", None), "data": ("name", None), "model": ("kind", "deeplab")}


def _renames(below: Mapping[str, Any], above: Mapping[str, Any], section: str) -> bool:
    key, default = _CHOSEN_BY[section]
    if key not in above:
        return False
    return below.get(key, default) not in (None, above[key])


def parse_assignment(text: str) -> ConfigValues:
    """Read ``a.b=value`` as ``{"a": {"b": value}}``, the value being YAML."""
    path, sign, value = text.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise NacreError(f"--set {shown(text)} is not of the form section.key=value")
    if len(keys) > MAX_YAML_DEPTH:
        raise NacreError(
            f"--set {shown(text)} names a key within more than {MAX_YAML_DEPTH} others"
        )
    content: Any = parse_yaml(value, f"the value of --set {shown(text)}")
    for key in reversed(keys):
        content = {key: content}
    assert isinstance(content, dict)
    return content


def differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List where two plain configs differ, as ``a.b: 1 -> 2``."""
    found: list[str] = []
    for key in sorted({*one, *other}):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {a!r} -> {b!r}")
    return found
