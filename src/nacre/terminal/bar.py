"""A bar with the time left, for one pass over many files."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from nacre.terminal.console import PlainConsole
from nacre.utils.progress import Progress

_SECONDS = 0.1


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Show a bar with the time left on the terminal; nothing where there is no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = PlainConsole(stderr=True)
    bar = RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task(title, total=None)
        last = 0.0

        def show(done: int, total: int) -> None:
            # Telling the bar takes a tenth of the time of reading a mask.
            nonlocal last
            now = time.monotonic()
            if now - last > _SECONDS or done == total:
                last = now
                bar.update(task, completed=done, total=total)

        yield show
