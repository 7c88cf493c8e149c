"""Options shared by several commands."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nacre.errors import NacreError

Scenario = Annotated[
    str | None,
    typer.Argument(help="data/task/setup, a name from `nacre plan`, or a .yaml file."),
]

Root = Annotated[Path | None, typer.Option(help="Folder of the data set.")]

MethodName = Annotated[
    str | None, typer.Option(help="Training method (see `nacre methods`). Default: mib.")
]

Preset = Annotated[
    str | None,
    typer.Option(help="Named values under your own: paper, text, small or demo."),
]

Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Random seed for weights, order and augmentation. Default: 1."),
]

Cache = Annotated[
    Path | None,
    typer.Option(help="Folder of learned steps; a step that is there is not trained again."),
]

Config = Annotated[Path | None, typer.Option(help="YAML file with config values.")]

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one config value, e.g. train.batch_size=8. Repeatable.",
    ),
]

Track = Annotated[
    list[str] | None,
    typer.Option(help="Log to tensorboard, wandb or trackio. Repeatable."),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

ModelPath = Annotated[Path, typer.Argument(help="A run folder, a step folder or a model file.")]

OutModel = Annotated[Path, typer.Option(help="Folder for the new model.")]


def split_names(text: str) -> list[str]:
    """Return comma-separated names without blanks around them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def split_pairs(texts: list[str] | None, option: str, example: str) -> dict[str, str]:
    """Return a repeatable ``KEY=VALUE`` option as a mapping; the last sign separates."""
    pairs = {}
    for text in texts or ():
        key, sign, value = text.rpartition("=")
        if not sign or not key or not value.strip():
            raise NacreError(f"{option} {text!r} is not of the form {example}")
        pairs[key] = value
    return pairs


def config_values(**given: Any) -> dict[str, Any]:
    """Return config values from options; those not given are left out."""
    values = {key: value for key, value in given.items() if value is not None and key != "root"}
    if "method" in values:
        values["method"] = {"name": values["method"]}
    if given.get("root") is not None:
        values["data"] = {"root": str(given["root"])}
    return values
