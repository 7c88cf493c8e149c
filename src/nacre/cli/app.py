"""The application, and what all commands share: the console, errors, interruptions."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import typer
from typer.core import TyperGroup

from nacre.errors import escape_control

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


class Commands(TyperGroup):
    """The commands, which say so when they are interrupted before they can say it themselves."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; importing what it needs may take seconds, in which Ctrl-C comes, too."""
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
    help="""Teach a segmentation network new classes, step by step, and keep what it knew.

    Begin with:  nacre demo""",
    epilog="A scenario is data/task/setup: voc/15-5/overlapped learns 15 classes, then 5 more.",
)


def command_to_go_on(*arguments: str) -> str:
    """Return the command that goes on with what was interrupted."""
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
    """Do the work; if the user stops it, say how to go on."""
    from nacre.training.step import Interrupted
    from nacre.utils.distributed import leave_distributed

    try:
        result = work()
    except (Interrupted, KeyboardInterrupt) as error:
        saved = "saved" if isinstance(error, Interrupted) else "the last save is kept"
    else:
        leave_distributed()
        return result
    if is_main_process():
        echo(f"interrupted; {saved}. Go on with:  {again}", err=True)
    if saved == "saved":  # all processes stopped together; no traceback holds the trainer here
        leave_distributed()
    sys.exit(130)


def echo(text: str, err: bool = False) -> None:
    """Print a text as it is, but for control characters, which are shown."""
    typer.echo(escape_control(text), err=err)


def print_json(content: Any) -> None:
    """Print plain data as JSON."""
    echo(json.dumps(content, indent=1))


def make_output_safe() -> None:
    """Let nothing that is printed fail for its characters, whatever the output's encoding."""
    from nacre.terminal.console import accept_any_character

    accept_any_character()


def finish_output() -> bool:
    """Write what is still to be written; return whether all of it could be."""
    from nacre.terminal.console import Output

    output = Output(sys.stdout)
    output.flush()
    return sys.stdout is None or not output.is_broken


def is_main_process() -> bool:
    """Whether this is the process that talks, where torchrun started several."""
    return os.environ.get("RANK", "0") == "0"


def make_console() -> "Console":
    """Return the console of the process that talks; the others' is silent."""
    from nacre.terminal.console import Output, PlainConsole

    return PlainConsole(file=cast(IO[str], Output(sys.stdout)), quiet=not is_main_process())


def show_bars() -> None:
    """Show long passes over files as bars on the terminal."""
    from nacre.utils.progress import Progress, set_progress_bar

    def bar(title: str) -> AbstractContextManager[Progress]:
        from nacre.terminal.bar import progress_bar

        return progress_bar(title)

    set_progress_bar(bar)
