"""The application, and what all commands share: panels, errors, interruptions, the console."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperGroup

from nacre.errors import escape_control
from nacre.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

PANELS = {
    "Your images": (
        *("learn", "forget", "merge", "predict", "export", "serve"),
        *("import", "data", "history"),
    ),
    "Research": ("run", "plan", "eval", "grid", "tune", "table", "report"),
    "Look": ("methods", "config", "demo"),
}
"""All commands, in the order and under the headings of `nacre --help`."""


class Commands(TyperGroup):
    """The commands in the order of `PANELS`; each reports Ctrl-C from its first moment on."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of the panels."""
        return [name for names in PANELS.values() for name in names]

    def invoke(self, ctx: Any) -> Any:
        """Run a command; importing its modules may take seconds, in which Ctrl-C may come."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if is_main_process():
                echo("interrupted", err=True)
            sys.exit(130)


app = typer.Typer(
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


@app.callback()
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


def command(name: str, *examples: str, **settings: Any) -> Callable[[Command], Command]:
    """Register a command in its panel, with examples below its help."""
    panel = next(panel for panel, names in PANELS.items() if name in names)
    epilog = "\n\n".join(["Examples:" if examples[1:] else "Example:", *examples])
    return app.command(name, rich_help_panel=panel, epilog=epilog, **settings)


_ONLY_CONFIG: ContextVar[bool] = ContextVar("only_config", default=False)


@contextmanager
def only_config() -> Iterator[None]:
    """Make commands end at `show_config` instead of doing their work."""
    before = _ONLY_CONFIG.set(True)
    try:
        yield
    finally:
        _ONLY_CONFIG.reset(before)


def show_config(config: Mapping[str, Any]) -> None:
    """Print a command's resolved config and end the command, if `nacre config` runs it."""
    if _ONLY_CONFIG.get():
        import yaml

        echo(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).rstrip())
        raise typer.Exit


def resume_command(*arguments: str) -> str:
    """Return the command that resumes an interrupted one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return shlex.join(["nacre", *arguments])
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    each = os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"]
    start = f"torchrun --nproc-per-node {each}"
    if nodes > 1:
        start += f" --nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:PORT"
    command = f"{start} -m nacre {shlex.join(arguments)}"
    return command if nodes == 1 else f"{command}  on each of the {nodes} machines"


def until_interrupted(work: Callable[[], T], again: str) -> T:
    """Do the work; if the user stops it, print how to resume it."""
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
        echo(f"interrupted; {saved}. Resume with:  {again}", err=True)
    if saved == "saved":  # all processes stopped together; no traceback holds the trainer here
        leave_distributed()
    sys.exit(130)


def echo(text: str, err: bool = False) -> None:
    """Print a text as it is; control characters become visible."""
    typer.echo(escape_control(text), err=err)


def print_json(content: Any) -> None:
    """Print plain data as JSON."""
    echo(json.dumps(content, indent=1))


def is_main_process() -> bool:
    """Return True in the process that prints, where torchrun started several."""
    return os.environ.get("RANK", "0") == "0"


def make_console() -> "Console":
    """Return the console of the process that prints; the others' is silent."""
    from nacre.terminal import Output, PlainConsole

    return PlainConsole(file=cast(IO[str], Output(sys.stdout)), quiet=not is_main_process())


def finish_output() -> bool:
    """Flush the output; return True if all of it could be written."""
    from nacre.terminal import Output

    output = Output(sys.stdout)
    output.flush()
    return sys.stdout is None or not output.is_broken


def show_bars() -> None:
    """Show long passes over files as bars on the terminal."""
    from nacre.utils.progress import Progress, set_progress_bar

    def bar(title: str) -> AbstractContextManager[Progress]:
        from nacre.terminal import progress_bar

        return progress_bar(title)

    set_progress_bar(bar)
