"""Options that several commands have in common."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nacre.training.config import RunConfig

Scenario = Annotated[
    str | None,
    typer.Argument(help="data/task/setup, a name from `nacre plan`, or a .yaml file"),
]

Root = Annotated[Path | None, typer.Option(help="Folder of the data set.")]

MethodName = Annotated[str | None, typer.Option(help="See `nacre methods`.")]

Preset = Annotated[str | None, typer.Option(help="paper, text, small or demo.")]

Seed = Annotated[int | None, typer.Option(min=0, help="1 unless given.")]

Cache = Annotated[
    Path | None, typer.Option(help="Folder of learned steps: what is there is not learned again.")
]

Config = Annotated[Path | None, typer.Option(help="YAML file with config values.")]

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One config value, such as train.batch_size=8."
    ),
]

Track = Annotated[
    list[str] | None,
    typer.Option(help="Show it in tensorboard, wandb or trackio; may be repeated."),
]


@dataclass(frozen=True)
class ConfigOptions:
    """What a command that learns a scenario is told of the config, and where learned steps are."""

    scenario: Scenario = None
    method: MethodName = None
    preset: Preset = None
    config: Config = None
    set_: Set = None
    root: Root = None
    seed: Seed = None
    cache: Cache = None

    def resolve(self, saved: Path | None = None) -> "RunConfig":
        """Put the config together; ``saved`` stands for a file where none is given."""
        from nacre.training.config import build_config

        values = config_values(
            scenario=self.scenario,
            method=self.method,
            seed=self.seed,
            root=self.root,
        )
        return build_config(
            preset=self.preset,
            file=self.config or saved,
            assignments=self.set_ or (),
            overrides=values,
        )


def takes_config(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `ConfigOptions`, which it receives as its first argument."""
    shared = inspect.signature(ConfigOptions).parameters
    own = list(inspect.signature(command).parameters.values())[1:]

    def with_options(**given: Any) -> None:
        options = ConfigOptions(**{name: given.pop(name) for name in shared})
        command(options, **given)

    # Typer reads names, types and defaults of the options from the signature.
    parameters = [*shared.values(), *own]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    return with_options


def split_names(text: str) -> list[str]:
    """Return names that commas separate, without blanks around them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def config_values(**given: Any) -> dict[str, Any]:
    """Return config values from options; those not given are left out."""
    values = {key: value for key, value in given.items() if value is not None and key != "root"}
    if "method" in values:
        values["method"] = {"name": values["method"]}
    if given.get("root") is not None:
        values["data"] = {"root": str(given["root"])}
    return values
