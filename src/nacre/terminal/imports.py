"""The progress and the outcome of an import, for the terminal."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nacre.importers import ImportReport
from nacre.importers.problems import counted
from nacre.importers.sheet import SHEET
from nacre.utils.progress import Progress, show_progress


class ImportDisplay:
    """A bar for each thing that an import does, one after another."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self.should_stop = should_stop
        self.what = ""
        self.show: Progress = lambda done, total: None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Begin with no bar."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the last bar away."""
        self._open.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far an import has come; end it here if the user wants that."""
        if self.should_stop():
            raise KeyboardInterrupt
        if what != self.what:
            self._open.close()
            self.what = what
            self.show = self._open.enter_context(show_progress(what))
        self.show(done, total)


def render(report: ImportReport) -> Group:
    """Return the report as something for rich to print."""
    # As text and not as markup: a file or a class may have brackets in its name.
    return Group(_classes_table(report), *(Text(sentence) for sentence in _sentences(report)))


def _classes_table(report: ImportReport) -> Table:
    title = f"{report.format}: {counted(report.num_images, 'image')} in {report.target.name}"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("label", justify="right")
    table.add_column("class", overflow="fold")
    table.add_column("images", justify="right")
    table.add_column("pixels", justify="right")
    for label, name in _rows(report):
        counts = f"{report.images[label]:,}", f"{report.share(label):.2%}"
        table.add_row(str(label), escape(name), *counts)
    return table


def _rows(report: ImportReport) -> Iterator[tuple[int, str]]:
    if report.images[0]:
        yield 0, "(background)"
    # Classes without a pixel stand in one line below the table.
    there = enumerate(report.classes, start=1)
    yield from ((label, name) for label, name in there if report.images[label])
    if report.images[report.ignored]:
        yield report.ignored, "(ignored)"


def _sentences(report: ImportReport) -> Iterator[str]:
    """Yield what people should know, and what to do next last."""
    yield from report.sentences()
    if report.splits:
        lists = (f"{name}.txt {count:,}" for name, count in report.splits.items())
        yield f"split lists: {', '.join(lists)}"
    yield f"look at {report.target / SHEET}; then: nacre data {report.target}"
