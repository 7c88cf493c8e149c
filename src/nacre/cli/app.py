"""The command-line application, and the options, console and interruptions of its commands."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from nacre.errors import NacreError, escape_control
from nacre.terminal import Output, PlainConsole
from nacre.version import __version__

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

PANELS = {
    "Your images": (
        *("learn", "forget", "merge", "predict", "export", "serve"),
        *("import", "data", "history"),
    ),
    "Research": ("run", "plan", "eval", "grid", "tune", "table", "report"),
    "Look": ("methods", "config", "demo"),
}
"""All commands, in the order and under the headings of `nacre --help`."""


class Command(TyperCommand):
    """A command whose help shows placeholders instead of Python types."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; arguments and flags show no type."""
        return _without_types(super().get_params(ctx))


class Commands(TyperGroup):
    """Lists the commands in the order of `PANELS`, and reports Ctrl-C while they start."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; flags show no type."""
        return _without_types(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of the panels."""
        return [name for names in PANELS.values() for name in names]

    def invoke(self, ctx: Any) -> Any:
        """Run a command; report Ctrl-C even while its modules are being imported."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if is_main_process():
                echo("interrupted", err=True)
            sys.exit(130)


def _without_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if isinstance(parameter, TyperArgument) or parameter.is_flag:
            parameter.display_type_rich = lambda ctx: None
    return parameters


program = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A scenario is data/task/setup: voc/15-5/overlapped learns 15 classes, then 5 more.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"nacre {__version__}")
        raise typer.Exit


@program.callback()
def nacre(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Teach a segmentation network new classes, step by step, and keep what it knew.

    Begin with:  nacre demo
    """


def command(name: str, *examples: str, **settings: Any) -> Callable[[Function], Function]:
    """Register a command in its panel, with examples below its help."""
    panel = next(panel for panel, names in PANELS.items() if name in names)
    epilog = "\n\n".join(["Examples:" if examples[1:] else "Example:", *examples])
    return program.command(name, cls=Command, rich_help_panel=panel, epilog=epilog, **settings)


def argument(placeholder: str, help: str) -> Any:
    """Declare an argument."""
    return typer.Argument(metavar=placeholder, help=help)


def option(placeholder: str, help: str, *names: str, **settings: Any) -> Any:
    """Declare an option with a value; its name is that of the parameter by default."""
    return typer.Option(*names, metavar=placeholder, help=help, **settings)


def flag(name: str, help: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(name, help=help)


Preset = Annotated[
    str | None,
    option("NAME", "Preset config values, which yours override: paper, text, small or demo."),
]
ConfigFile = Annotated[Path | None, option("FILE", "YAML file with config values.", "--config")]
Set = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Override one config value, such as train.batch_size=8. Repeatable.",
        "--set",
    ),
]
Seed = Annotated[
    int | None,
    option("NUMBER", "Random seed for weights, order and augmentation. Default: 1.", min=0),
]
Root = Annotated[Path | None, option("FOLDER", "Folder of the data set.")]
Cache = Annotated[
    Path | None,
    option("FOLDER", "Folder of learned steps that runs share; a step in it is not trained again."),
]
Json = Annotated[bool, flag("--json", "Print JSON instead of a table.")]
ModelPath = Annotated[Path, argument("MODEL", "A run folder, a step folder or a model file.")]


def config_sources(
    values: Mapping[str, Any],
    preset: str | None,
    file: Path | None,
    assignments: list[str] | None,
    resumed: Path | None = None,
) -> dict[str, Any]:
    """Return the sources of a config: preset, file, assignments and overrides.

    Args:
        values: Values of the command's own options, such as --seed.
        preset: Value of --preset.
        file: Value of --config.
        assignments: Values of --set.
        resumed: Folder to resume. Its stored config is used unless a preset or a file is given.
    """
    if file is None and preset is None and resumed is not None:
        stored = resumed / "config.yaml"
        file = stored if stored.is_file() else None
    overrides = {key: value for key, value in values.items() if value not in (None, {}, [])}
    return {
        "preset": preset,
        "file": file,
        "assignments": assignments or (),
        "overrides": overrides,
    }


def data_section(root: Path | None) -> dict[str, Any]:
    """Return the config values that --root sets."""
    return {} if root is None else {"data": {"root": str(root)}}


def split_names(text: str | None) -> list[str]:
    """Split comma-separated names and strip the blanks around them."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def split_pairs(texts: list[str] | None, name: str, example: str) -> dict[str, str]:
    """Return the values of a repeatable ``KEY=VALUE`` option; split each at its last ``=``."""
    pairs = {}
    for text in texts or ():
        key, sign, value = text.rpartition("=")
        if not sign or not key or not value.strip():
            raise NacreError(f"{name} {text!r} is not of the form {example}")
        pairs[key] = value
    return pairs


_ONLY_CONFIG: ContextVar[bool] = ContextVar("only_config", default=False)


@contextmanager
def only_config() -> Iterator[None]:
    """Make commands print their config and exit in `show_config`."""
    before = _ONLY_CONFIG.set(True)
    try:
        yield
    finally:
        _ONLY_CONFIG.reset(before)


def show_config(config: Mapping[str, Any]) -> None:
    """Print a command's resolved config and exit, if `nacre config` runs the command."""
    if _ONLY_CONFIG.get():
        import yaml

        echo(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).rstrip())
        raise typer.Exit


def resume_command(*arguments: str) -> str:
    """Return the command line that resumes an interrupted command."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return shlex.join(["nacre", *arguments])
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    each = os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"]
    start = f"torchrun --nproc-per-node {each}"
    if nodes > 1:
        start += f" --nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:PORT"
    command = f"{start} -m nacre {shlex.join(arguments)}"
    return command if nodes == 1 else f"{command}  on each of the {nodes} machines"


def until_interrupted(work: Callable[[], T], resume: str) -> T:
    """Call a function; if the user interrupts it, print how to resume it and exit."""
    from nacre.utils.distributed import leave_distributed
    from nacre.utils.signals import Interrupted

    try:
        result = work()
    except (Interrupted, KeyboardInterrupt) as error:
        saved = "saved" if isinstance(error, Interrupted) else "the last save is kept"
    else:
        leave_distributed()
        return result
    if is_main_process():
        echo(f"interrupted; {saved}. Resume with:  {resume}", err=True)
    if saved == "saved":  # all processes stopped together, and no traceback refers to the trainer
        leave_distributed()
    sys.exit(130)


def echo(text: str, err: bool = False) -> None:
    """Print a text with its control characters made visible."""
    typer.echo(escape_control(text), err=err)


def print_json(content: Any) -> None:
    """Print plain data as JSON."""
    echo(json.dumps(content, indent=1))


def is_main_process() -> bool:
    """Return True in the process that prints, if torchrun started several."""
    return os.environ.get("RANK", "0") == "0"


def make_console() -> PlainConsole:
    """Return the console of the main process; those of other processes are silent."""
    return PlainConsole(file=cast(IO[str], Output(sys.stdout)), quiet=not is_main_process())


def finish_output() -> bool:
    """Flush the output; return True if all of it could be written."""
    output = Output(sys.stdout)
    output.flush()
    return sys.stdout is None or not output.is_broken
