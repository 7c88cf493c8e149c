"""How far a long pass has come, told to whoever shows it.

The rooms that do the work know nothing of terminals: they open a bar here by its title. It is
silent until a program says how bars are shown (`show_with`), as the command line does.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""

Bar = Callable[[str], AbstractContextManager[Progress]]


def _silent(title: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


_bar: Bar = _silent


def show_with(bar: Bar) -> None:
    """Show every bar of this process in this way from now on."""
    global _bar
    _bar = bar


def show_progress(title: str, instead: Progress | None = None) -> AbstractContextManager[Progress]:
    """Open a bar with a title, or give what the caller shows instead; it takes how much is done."""
    return _bar(title) if instead is None else nullcontext(instead)
