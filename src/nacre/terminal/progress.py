"""What a person sees while something runs: bars with the time left, or lines in a log."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
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
from rich.text import Text

from nacre.training.events import (
    Event,
    ImagesTested,
    Iterated,
    RunBegan,
    Saved,
    StepAwaited,
    StepBegan,
    StepJudged,
    StepLearned,
    StepSkipped,
    StepTested,
    StepUsable,
    Trained,
)

LINE_SECONDS = 30
"""Time between two lines where the output is not a terminal."""


class Display:
    """What is drawn on a terminal while it is open; elsewhere its owner prints lines."""

    def __init__(self, console: Console, drawing: Live | Progress) -> None:
        self.console, self._drawing = console, drawing

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self.console.is_terminal:
            self._drawing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Draw no more: bars go away, a table stays as it was last."""
        if self.console.is_terminal:
            self._drawing.stop()


class RunDisplay(Display):
    """Follows a run by its events."""

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
            # The speed is taken over long enough to see testing and the change of methods.
            speed_estimate_period=60,
        )
        super().__init__(console, self.progress)
        self.whole: TaskID | None = None
        self.now: TaskID | None = None
        self.label = ""
        self.began = self.last_line = time.monotonic()
        self.done = 0

    def __call__(self, event: Event) -> None:
        """Show an event."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    @property
    def _handlers(self) -> dict[type[Event], Callable[[Any], None]]:
        return {
            RunBegan: self._on_run,
            StepSkipped: self._on_skipped,
            StepAwaited: self._on_awaited,
            StepBegan: self._on_begin,
            Iterated: self._on_iteration,
            Trained: self._on_train,
            StepUsable: self._on_usable,
            StepJudged: self._on_judged,
            StepLearned: self._on_learned,
            ImagesTested: self._on_tested,
            StepTested: self._on_end,
            Saved: self._on_saved,
        }

    def _on_run(self, event: RunBegan) -> None:
        self.label = event.method
        place = f"{event.device}, {event.processes} process(es)"
        self.console.print(
            Text.assemble(
                (event.method, "bold"),
                f" on {event.scenario}, seed {event.seed}, {place}; {event.precision}",
            ),
            highlight=False,
        )
        if event.weights.startswith("random"):
            self.console.print(f"  weights: {event.weights}", style="yellow", highlight=False)
        self.total = sum(event.iterations)
        self.whole = self.progress.add_task("all steps", total=self.total, note="")

    def _on_skipped(self, event: StepSkipped) -> None:
        self._leave_out(event.iterations)
        taken = event.taken_from
        how = f"taken from {taken}, not learned again" if taken else "done before"
        self.console.print(f"  step {event.step}: {how}", style="dim", highlight=False)

    def _on_awaited(self, event: StepAwaited) -> None:
        text = f"  step {event.step}: another run is learning it; waiting"
        self.console.print(text, style="dim", highlight=False)

    def _on_begin(self, event: StepBegan) -> None:
        shown = ", ".join(event.classes[:6])
        more = f" and {len(event.classes) - 6} more" if len(event.classes) > 6 else ""
        again = f", going on at iteration {event.first}" if event.first else ""
        self.console.print(
            f"  step {event.step}: {shown}{more} ({event.images:,} images){again}",
            highlight=False,
        )
        self._leave_out(event.first)
        self._replace(f"{self.label} step {event.step}", event.iterations, event.first)

    def _on_iteration(self, event: Iterated) -> None:
        self.done += 1
        if self.whole is not None:
            self.progress.advance(self.whole)
        if self.now is not None:
            self.progress.update(self.now, completed=event.iteration)
        if not self.console.is_terminal and time.monotonic() - self.last_line > LINE_SECONDS:
            self._line(event)

    def _on_train(self, event: Trained) -> None:
        losses = "  ".join(f"{name} {value:.3f}" for name, value in event.losses.items())
        if self.now is not None:
            self.progress.update(self.now, note=losses)

    def _on_usable(self, event: StepUsable) -> None:
        self.console.print(
            Text(
                f"  step {event.step}: a first model after {event.seconds:.0f} s, in closed form: "
                f"{event.path}; its decoder learns now"
            ),
            soft_wrap=True,
        )

    def _on_judged(self, event: StepJudged) -> None:
        self.console.print(Text(f"  step {event.step}: {judged_line(event)}"))

    def _on_learned(self, event: StepLearned) -> None:
        self._replace(f"{self.label} step {event.step}: testing", 1, 0)

    def _on_tested(self, event: ImagesTested) -> None:
        if self.now is not None:
            self.progress.update(self.now, total=event.of, advance=event.images)

    def _on_end(self, event: StepTested) -> None:
        self.console.print(f"  step {event.step}: {one_line(event.mean_iou)}")
        if self.now is not None:
            self.progress.remove_task(self.now)
            self.now = None

    def _on_saved(self, event: Saved) -> None:
        self.console.print(
            f"  saved in step {event.step} at iteration {event.iteration}", style="dim"
        )

    def _replace(self, description: str, total: int, completed: int) -> None:
        if self.now is not None:
            self.progress.remove_task(self.now)
        self.now = self.progress.add_task(description, total=total, completed=completed, note="")

    def _leave_out(self, count: int) -> None:
        """Count what need not be learnt as nothing: it says nothing about the time left."""
        self.total -= count
        if self.whole is not None:
            self.progress.update(self.whole, total=self.total)

    def _line(self, event: Iterated) -> None:
        self.last_line = time.monotonic()
        share = self.done / max(self.total, 1)
        left = (self.last_line - self.began) * (1 - share) / max(share, 1e-9)
        self.console.print(
            f"  {self.label} step {event.step}: iteration {event.iteration}, "
            f"{share:.0%} of everything, about {left / 60:.1f} min left",
            highlight=False,
        )


def judged_line(event: StepJudged) -> str:
    """Return what images found the updates of a step to be worth, as a line."""
    means = f"mean IoU {100 * event.after:.1f} with its updates, {100 * event.before:.1f} without"
    if event.after <= event.before:
        return f"the decoder's updates are not kept: {means}"
    named = ", ".join(event.classes) or "no class"
    return f"the decoder is kept: {means}; it has a say in {named}, the ledger in all classes"


def one_line(means: dict[str, Any]) -> str:
    """Return old / new / all means as a line."""
    parts = []
    for group in ("old", "new", "all"):
        value = means.get(f"{group}_without_background")
        if value is not None:
            parts.append(f"{group} {100 * value:.1f}")
    return "mIoU without background: " + ", ".join(parts)
