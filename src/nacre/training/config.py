"""The config of a run or of a step: typed, frozen, checked as a whole before anything is done.

There is one builder (`build`) with one order, later over earlier:

    a preset                     or what fits the machine (`nacre learn` without a preset)
    the method's values under it
    the start model              its network and crop, where a model is continued
    a file                       YAML, or `config=` in Python
    named options                --method, --seed … and their like in Python
    --set a.b=value

Which keys the sections `method`, `model` and `data` have depends on the names in them. They are
looked up by name and not in a union of all types: a method or network of another package is
imported when somebody names it, so that a broken one breaks only itself.
All mistakes are reported at once, each with its place and the nearest known name.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, create_model

from nacre.data import find_dataset
from nacre.data.source import DataConfig
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError, check, shown, unknown_name
from nacre.labels.mapping import LabelPolicy
from nacre.methods import MethodConfig, find_method
from nacre.models.build import is_own_network, model_config_type
from nacre.models.config import DeepLabConfig, ModelConfig
from nacre.models.io import ModelInfo
from nacre.scenarios.scenario import read_scenario
from nacre.training.optim import OptimConfig
from nacre.training.presets import (
    LEARN,
    PAPER_PRESETS,
    PRESETS,
    RIDGE_WITHOUT_BACKGROUND,
    Fit,
    Ground,
    check_weights,
    fitted_values,
    preset_values,
)
from nacre.utils.config import (
    AFTER_STEP_0,
    MAX_YAML_DEPTH,
    NO_EFFECT,
    Config,
    parse_yaml,
    read_yaml,
    result_values,
)

ConfigValues = dict[str, Any]
PrecisionName = Literal["auto", "float32", "tf32", "bfloat16", "float16"]


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
    usual_labels: ClassVar[Mapping[str, str]] = {"border": "ignored", "unseen": "background"}
    """How labels are seen unless somebody says otherwise; a scenario has its data set's way."""

    method: MethodConfig = Field(json_schema_extra=AFTER_STEP_0)
    model: ModelConfig
    train: TrainConfig = Field(default_factory=TrainConfig)
    images: ImagesConfig = Field(default_factory=ImagesConfig)
    labels: LabelPolicy = Field(default_factory=LabelPolicy)

    def conventions(self) -> ConfigValues:
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


class LearnConfig(Recipe):
    """Everything that decides what one step of `nacre learn` computes.

    Where the data and the start model lie is not part of it: what they hold is in the folder's
    fingerprint.
    """

    data: tuple[Path, ...] = Field(
        min_length=1,
        description="folders with images/, masks/ and classes.yaml",
        json_schema_extra=NO_EFFECT,
    )
    start: Path | None = Field(
        None, description="the model that is continued", json_schema_extra=NO_EFFECT
    )
    tests: tuple[Path, ...] = Field(
        (),
        description="more folders to test on, each on the classes it labels",
        json_schema_extra=NO_EFFECT,
    )
    classes: tuple[str, ...] = Field((), description="learn only these of the data's classes")
    new: tuple[str, ...] = Field(
        (), description="names that are new although they look like known ones"
    )
    rename: dict[str, str] = Field(
        default_factory=dict, description="the model's name of a class, by the data's name of it"
    )


def build(
    kind: type[R],
    written: Mapping[str, Any],
    *,
    preset: str | None = None,
    start: ModelInfo | None = None,
    fit: Fit | None = None,
) -> R:
    """Put a config together and check it: the one way for every command and for Python.

    Args:
        kind: Of a run, of a step of `nacre learn`, or a recipe alone.
        written: What a user says (`read_written`).
        preset: Lies under it.
        start: The model that is continued: its network and crop stay.
        fit: The machine and data that a step is fitted to where no preset is named.
    """
    if preset is not None and preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    model, chosen = read_section(written, "model"), read_section(written, "method")
    if start is not None:
        model = start.model
    elif preset is not None:
        check_weights(preset, model)
        model = deep_merge(PRESETS[preset], {"model": model})["model"]
    elif fit is not None and not {"backbone", "kind"} & model.keys():
        model = {"weights": "imagenet", **model}
    ground = find_ground(model, is_start=start is not None)
    method = str(chosen.get("name") or default_method(model, ground, preset))
    is_fitted = preset is None and fit is not None
    if is_fitted:
        preset = "small" if ground in ("weights", "own") else LEARN
    below: ConfigValues = {}
    if preset is not None:
        name = written.get("scenario")
        scenario = read_scenario(name) if isinstance(name, str) else None
        below = preset_values(preset, scenario, method, chosen)
    if is_fitted and fit is not None:
        below = deep_merge(below, fitted_values(fit, ground, method))
    if method == "ledger" and ground == "other" and model.get("background", 0) is None:
        below = deep_merge(below, {"method": {"name": method, "ridge": RIDGE_WITHOUT_BACKGROUND}})
    if start is not None:
        below = deep_merge({**below, "model": start.model}, {"images": {"crop_size": start.crop}})
    values = deep_merge(below, written)
    values["method"] = {**read_section(values, "method"), "name": method}
    try:
        config = resolve(kind, values)
    except NacreError as error:
        if "name" in chosen or "method." not in str(error):
            raise
        raise NacreError(f"{error} (of {method}, as no method is named)") from error
    if start is not None:
        _check_start(config, start)
    return config


def build_config(
    *,
    preset: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Build the config of a run from a preset, a file, plain values and ``a.b=value`` strings."""
    return build(RunConfig, read_written(file, overrides or {}, assignments), preset=preset)


def read_written(
    file: Path | None, options: Mapping[str, Any], assignments: Iterable[str] = ()
) -> ConfigValues:
    """Return what a user says, later over earlier: a file, named options, ``a.b=value`` strings."""
    written: ConfigValues = (
        read_yaml(file, "config file", "sections, such as `train:`") if file else {}
    )
    for one in (options, *map(parse_assignment, assignments)):
        written = deep_merge(written, one)
    return written


def find_ground(model: Mapping[str, Any], *, is_start: bool) -> Ground:
    """Return what a step builds on.

    Args:
        model: Values of a network.
        is_start: Whether it is the network of a model that is continued.
    """
    if is_start:
        return "own" if is_own_network(model) else "other"
    kind = model_config_type(model)
    usual = kind.model_fields["weights"].default
    has_weights = issubclass(kind, DeepLabConfig) and model.get("weights", usual) != "none"
    return "weights" if has_weights else "nothing"


def default_method(model: Mapping[str, Any], ground: Ground, preset: str | None = None) -> str:
    """Return the method of a step or a run where none is named, by one rule for all commands.

        under the presets of the paper                          mib
        a model with sums                                       ledger or duo, as it was learned
        beside a network of another library                     ledger
        a new network of ours on pretrained weights             duo
        anything else                                           mib

    Args:
        model: Values of the network.
        ground: What the step builds on.
        preset: The preset, if one is named.
    """
    if preset in PAPER_PRESETS:
        return "mib"
    if model.get("decoder") == "stages" or ground == "other":
        return "ledger"
    if model.get("grid_stride") is not None or ground == "weights":
        return "duo"
    return "mib"


def _check_start(config: Recipe, start: ModelInfo) -> None:
    """Refuse a network or a crop that is not the start model's: what it knows is bound to both."""
    keys = set(result_values(config.model)) - {"weights"}
    wanted = config.model.model_dump(mode="json")
    for key in sorted(keys & set(start.model)):
        if wanted[key] != start.model[key]:
            raise NacreError(
                f"model.{key}: {wanted[key]!r}, but the start model's is {start.model[key]!r}; "
                "leave it out, the network of the start model is continued"
            )
    if config.images.crop_size != start.crop:
        raise NacreError(
            f"images.crop_size: {config.images.crop_size}, but the start model learned from crops "
            f"of {start.crop} pixels, and sees things at that scale; leave it out"
        )


def resolve(kind: type[R], raw: Mapping[str, Any]) -> R:
    """Check plain data as a whole and return the typed config."""
    method, model = read_section(raw, "method"), read_section(raw, "model")
    method.setdefault("name", default_method(model, find_ground(model, is_start=False)))
    own = find_method(str(method["name"]))
    if own.is_joint and not issubclass(kind, RunConfig):
        raise NacreError(f"{own.name!r} learns all classes at once, not a step; `ft` is its like")
    method["name"] = own.name
    content: ConfigValues = {**raw, "method": method, "model": model}
    sections: list[tuple[str, type[Config]]] = [
        ("method", own.Config),
        ("model", model_config_type(model)),
    ]
    usual = kind.usual_labels
    if issubclass(kind, RunConfig):
        name = _data_of(raw)
        dataset = find_dataset(name)
        content["data"] = {"name": name, **read_section(raw, "data")}
        sections.append(("data", dataset.config))
        usual = {"border": dataset.border}
    labels = raw.get("labels") or {}
    if isinstance(labels, Mapping):
        content["labels"] = {**usual, **labels}
    return check(_typed(kind, tuple(sections)), content)


@lru_cache
def _typed(kind: type[R], sections: tuple[tuple[str, type[Config]], ...]) -> type[R]:
    """Return a config whose sections are of these types."""
    fields: dict[str, Any] = {key: (own, copy(kind.model_fields[key])) for key, own in sections}
    return create_model(kind.__name__, __base__=kind, **fields)


def _data_of(raw: Mapping[str, Any]) -> str:
    """Return the name of the data set of a scenario."""
    scenario = raw.get("scenario")
    if not isinstance(scenario, str):
        raise NacreError("no scenario: give data/task/setup, such as scenes/4-2-2/overlapped")
    data = read_scenario(scenario).data
    find_dataset(data, f"data set in scenario {scenario!r}:")
    return data


# The key of a section that decides what its other keys may be, and what stands there by default
_CHOSEN_BY = {"method": ("name", None), "data": ("name", None), "model": ("kind", "deeplab")}


def read_section(raw: Mapping[str, Any], key: str) -> ConfigValues:
    """Return a section as a mapping; ``method: mib`` is short for ``method: {name: mib}``."""
    section, chooser = raw.get(key) or {}, _CHOSEN_BY[key][0]
    if isinstance(section, str):
        return {chooser: section}
    if not isinstance(section, Mapping):
        raise NacreError(f"{key}: {shown(section)} is not a mapping such as {{{chooser}: …}}")
    return dict(section)


def deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> ConfigValues:
    """Lay one plain config over another, section by section.

    A section that names another method, data set or kind of network replaces the one below
    entirely: values of the other one must not stay behind. Likewise `train.epochs` replaces the
    keys that count iterations, which would win, and `train.iterations` that of the later steps.
    """
    if not isinstance(below, Mapping):
        raise NacreError(f"config: {shown(below)} is not a mapping such as {{'train': …}}")
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if key in _CHOSEN_BY:
            chooser = _CHOSEN_BY[key][0]
            value = {chooser: value} if isinstance(value, str) else value
            old = {chooser: old} if isinstance(old, str) else old
            if isinstance(old, Mapping) and isinstance(value, Mapping):
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
        inside = _by_key(a), _by_key(b)
        if inside[0] is not None and inside[1] is not None:
            found += differences(inside[0], inside[1], f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {_brief(a)} -> {_brief(b)}")
    return found


def _by_key(value: Any) -> Mapping[str, Any] | None:
    """Return what a mapping holds by key, or a list of mappings by place."""
    if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        return {str(place): one for place, one in enumerate(value)}
    return value if isinstance(value, Mapping) else None


def _brief(value: Any) -> str:
    """Return a value as a sentence shows it: the name of what has one, the start of a digest."""
    if isinstance(value, Mapping) and "name" in value:
        value = value["name"]
    is_digest = isinstance(value, str) and len(value) == 64
    return f"{value[:10]}…" if is_digest else shown(value)
