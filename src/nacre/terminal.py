"""The console of commands, and progress with the time left.

Classes, files and folders may have any name: the console interprets no markup or emoji codes and
prints control characters as numbers. Lost output (`nacre run | head`, a full disk) does not end a
run. Progress is shown as bars on terminals and in notebooks, and as lines elsewhere.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from nacre.errors import escape_control
from nacre.utils import progress as passes

if TYPE_CHECKING:
    from nacre.training import events

LINE_SECONDS = 30
"""Time between two lines of progress where bars cannot be drawn."""
_DRAW_SECONDS = 0.1


class Output:
    """A stream that survives the loss of its output: later writes are discarded.

    Args:
        stream: The real stream; None if the command has no output (``>&-``).
    """

    def __init__(self, stream: IO[str] | None) -> None:
        self.stream, self.is_broken = stream, stream is None

    def write(self, text: str) -> int:
        """Write a text."""
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._try("flush")

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        return self.stream is not None and self.stream.isatty()

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self.stream, name)

    def _try(self, name: str, *values: str) -> None:
        if self.is_broken:
            return
        try:
            getattr(self.stream, name)(*values)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self.is_broken = True
            self._discard(error)

    def _discard(self, error: Exception) -> None:
        """Report the loss, and redirect the stream so that it does not fail when Python exits."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            reason = getattr(error, "strerror", None) or str(error)
            print(f"the output is lost ({reason}); the work continues", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())  # type: ignore[union-attr]
            os.close(null)


class PlainConsole(Console):
    """A console that prints texts without interpreting them."""

    def __init__(self, file: IO[str] | None = None, **options: Any) -> None:
        super().__init__(file=file, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object; replace control characters by their codes."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(escape_control(segment.text), segment.style)


def accept_any_character() -> None:
    """Print a question mark for each character that the output's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def can_draw(console: Console) -> bool:
    """Return True if bars can be drawn: on a terminal, or in a notebook with widgets."""
    has_widgets = console.is_jupyter and find_spec("ipywidgets") is not None
    return console.is_terminal or has_widgets


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[passes.Progress]:
    """Show a bar with the time left for a pass over many items, if bars can be drawn."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = PlainConsole(stderr=True)
    bar = Progress(*columns, console=console, transient=True, disable=not can_draw(console))
    with bar:
        task = bar.add_task(title, total=None)
        last = 0.0

        def show(done: int, total: int) -> None:
            # Updating the bar takes a tenth of the time that reading a mask takes.
            nonlocal last
            now = time.monotonic()
            if now - last > _DRAW_SECONDS or done == total:
                last = now
                bar.update(task, completed=done, total=total)

        yield show


class Display:
    """Base class of live displays; subclasses print lines where nothing can be drawn."""

    def __init__(self, console: Console, drawing: Live | Progress) -> None:
        self.console, self._drawing = console, drawing
        self._draws = can_draw(console)

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._draws:
            self._drawing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing: bars disappear, a table remains."""
        if self._draws:
            self._drawing.stop()


class RunDisplay(Display):
    """Shows the progress of a run; it is an observer of the run's events."""

    def __init__(self, console: Console) -> None:
        self.total = 0
        self.progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            # The speed is averaged for long enough to include testing.
            speed_estimate_period=60,
        )
        super().__init__(console, self.progress)
        self.run_bar: TaskID | None = None
        self.step_bar: TaskID | None = None
        self.label = ""
        self.judged: events.StepJudged | None = None
        self.start_time = self.last_line = time.monotonic()
        self.done = 0

    def __call__(self, event: "events.Event") -> None:
        """Show an event."""
        from nacre.training import events  # slow to import, and not needed by `nacre --help`

        match event:
            case events.RunBegan():
                self._begin_run(event)
            case events.StepSkipped():
                self._skip(event.iterations)
                source = event.taken_from
                how = f"taken from {source}, not learned again" if source else "done before"
                self._print(f"  step {event.step}: {how}", "dim")
            case events.StepAwaited():
                self._print(f"  step {event.step}: waiting for another run that learns it", "dim")
            case events.StepBegan():
                self._begin_step(event)
            case events.Iterated():
                self._advance(event)
            case events.Trained() if self.step_bar is not None:
                losses = "  ".join(f"{name} {value:.3f}" for name, value in event.losses.items())
                self.progress.update(self.step_bar, note=losses)
            case events.StepUsable():
                text = f"  step {event.step}: first model after {event.seconds:.0f} s: {event.path}"
                text += "; now the decoder is trained"
                self.console.print(Text(text), soft_wrap=True)
            case events.StepJudged():
                self.judged = event
                self._print(f"  step {event.step}: {judged_line(event)}")
            case events.OptionsChosen():
                self._print(f"  step {event.step}: {chosen_line(event, self.judged)}")
            case events.StepLearned():
                self._replace(f"{self.label} step {event.step}: testing", 1, 0)
            case events.ImagesTested() if self.step_bar is not None:
                self.progress.update(self.step_bar, total=event.of, advance=event.images)
            case events.StepTested():
                self.console.print(f"  step {event.step}: {format_means(event.mean_iou)}")
                self._remove(self.step_bar)
                self.step_bar = None
            case events.Saved():
                self._print(f"  saved in step {event.step} at iteration {event.iteration}", "dim")

    def _begin_run(self, event: "events.RunBegan") -> None:
        self.label = event.method
        processes = "1 process" if event.processes == 1 else f"{event.processes} processes"
        where = f"{event.device}, {processes}; {event.precision}"
        what = f" on {event.scenario}, seed {event.seed}, {where}"
        self.console.print(Text.assemble((event.method, "bold"), what), highlight=False)
        if event.weights.startswith("random"):
            self._print(f"  weights: {event.weights}", "yellow")
        self._remove(self.run_bar)  # `nacre tune` has many runs
        self.total, self.done = sum(event.iterations), 0
        self.start_time = time.monotonic()
        self.run_bar = self.progress.add_task("all steps", total=self.total, note="")

    def _begin_step(self, event: "events.StepBegan") -> None:
        resumed = f", resuming at iteration {event.first}" if event.first else ""
        names = abbreviate(event.classes, 6)
        images = "1 image" if event.images == 1 else f"{event.images:,} images"
        self._print(f"  step {event.step}: {names} ({images}){resumed}")
        self._skip(event.first)
        self._replace(f"{self.label} step {event.step}", event.iterations, event.first)

    def _advance(self, event: "events.Iterated") -> None:
        self.done += 1
        if self.run_bar is not None:
            self.progress.advance(self.run_bar)
        if self.step_bar is not None:
            self.progress.update(self.step_bar, completed=event.iteration)
        if self._draws or time.monotonic() - self.last_line <= LINE_SECONDS:
            return
        self.last_line = time.monotonic()
        fraction = self.done / max(self.total, 1)
        left = (self.last_line - self.start_time) * (1 - fraction) / max(fraction, 1e-9)
        self._print(
            f"  {self.label} step {event.step}: iteration {event.iteration}, "
            f"{fraction:.0%} of everything, about {left / 60:.1f} min left"
        )

    def _print(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, highlight=False)

    def _remove(self, task: TaskID | None) -> None:
        if task is not None:
            self.progress.remove_task(task)

    def _replace(self, description: str, total: int, completed: int) -> None:
        self._remove(self.step_bar)
        self.step_bar = self.progress.add_task(
            description, total=total, completed=completed, note=""
        )

    def _skip(self, count: int) -> None:
        """Subtract updates that are not made, so that they do not change the time left."""
        self.total -= count
        if self.run_bar is not None:
            self.progress.update(self.run_bar, total=self.total)


def abbreviate(names: Sequence[str], limit: int = 8) -> str:
    """Join names with commas; replace those beyond a limit by their number."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def judged_line(event: "events.StepJudged") -> str:
    """Return a line about the test of a decoder's updates."""
    from nacre.methods.duo import MIN_GAIN

    means = f"mean IoU {100 * event.after:.1f} with them, {100 * event.before:.1f} without"
    if not event.kept:
        rule = "they must raise it"
        if event.step:
            rule = f"after step 0 they must gain more than {100 * MIN_GAIN:g} points, "
            rule += "as the images do not show the old classes"
        return f"the decoder's updates are not kept: {means}; {rule}"
    names = ", ".join(event.classes) or "no class"
    return f"the decoder's updates are kept: {means}; it scores {names}, the ledger all classes"


def chosen_line(event: "events.OptionsChosen", judged: "events.StepJudged | None" = None) -> str:
    """Return a line about the prediction options that were chosen on held-out images.

    Args:
        event: The choice.
        judged: The test of a decoder's updates that was printed before.
    """
    options = [("the mirrored image", event.mirror), ("edges", event.edges)]
    names = " and ".join(name for name, is_chosen in options if is_chosen)
    if not names:
        return "predictions use neither the mirrored image nor edges: no gain on held-out images"
    means = f"mean IoU {100 * event.after:.1f} on held-out images, {100 * event.before:.1f} without"
    if judged is not None and judged.step == event.step:
        shown = judged.after if judged.kept else judged.before
        if event.before > shown:
            means += " (higher than above: the ledger has counted these images by now)"
    return f"predictions use {names}: {means}"


def format_means(means: dict[str, Any]) -> str:
    """Return the mean IoUs of old, new and all classes as one line."""
    parts = []
    for group in ("old", "new", "all"):
        value = means.get(f"{group}_without_background")
        if value is not None:
            parts.append(f"{group} {100 * value:.1f}")
    if not parts:
        return "not tested: no test image has a known class"
    return "mIoU without background: " + ", ".join(parts)
