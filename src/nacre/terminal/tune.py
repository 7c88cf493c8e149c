"""The live table of a search for a weight."""

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nacre.report.numbers import percent
from nacre.sweeps.tune.result import TOLERATED, Trial, Tuning, verdict
from nacre.terminal.progress import Display
from nacre.training.events import Event, Iterated, StepBegan, StepLearned

STYLES = {"learning": "bold", "chosen": "green", "too low": "dim", "diverged": "red"}


class TuneDisplay(Display):
    """Shows a search: a table on a terminal, a line a trial elsewhere.

    It is called with the search after every change, and observes the runs by `observe`.
    """

    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, refresh_per_second=2)
        super().__init__(console, self.live)
        self.tuning: Tuning | None = None
        self.now = ""
        self.said = 0

    def __call__(self, tuning: Tuning) -> None:
        """Show what was found so far."""
        self.tuning, self.now = tuning, ""
        if self.console.is_terminal:
            self.live.update(trials_table(tuning))
            return
        known = [one for one in tuning.trials if one.accuracy is not None]
        for trial in known[self.said :]:
            self.console.print(f"{trial.name}: {percent(trial.accuracy)}", highlight=False)
        self.said = len(known)

    def observe(self, event: Event) -> None:
        """Show how far the present run is."""
        if isinstance(event, StepBegan):
            self.of = event.iterations
        elif isinstance(event, Iterated | StepLearned):
            progress = "testing"
            if isinstance(event, Iterated):
                progress = f"{event.iteration:,}/{self.of:,}"
            self.now = f"step {event.step}: {progress}"
            if self.console.is_terminal:
                self.live.update(trials_table(self.tuning, self.now))


def trials_table(tuning: Tuning | None, now: str = "") -> Table:
    """Return the trials as a table; ``now`` says how far the present run is."""
    table = Table(title=_title(tuning), title_justify="left")
    table.add_column("trial")
    for column in ("learning rate", "mIoU of new classes", "of fine-tuning"):
        table.add_column(column, justify="right")
    table.add_column("")
    if tuning is None:
        table.add_row("step 0", "", "", "", now)
        return table
    for trial in tuning.trials:
        said = verdict(tuning, trial)
        state = now or said if said == "learning" else said
        table.add_row(*_cells(tuning, trial), state, style=STYLES.get(said, ""))
    return table


def _title(tuning: Tuning | None) -> str:
    if tuning is None:
        return "step 0, shared by all trials"
    wanted = f"the highest weight of {tuning.method} with {1 - TOLERATED:.0%} of fine-tuning's mIoU"
    if tuning.weight is not None:
        return f"{wanted}: {tuning.weight:g}"
    return wanted if tuning.least is None else f"{wanted}, {percent(tuning.least)}"


def _cells(tuning: Tuning, trial: Trial) -> tuple[str, str, str, str]:
    name = "fine-tuning" if trial.weight is None else f"weight {trial.weight:g}"
    share = ""
    if trial.accuracy is not None and tuning.fine_tuning:
        share = f"{trial.accuracy / tuning.fine_tuning:.0%}"
    return name, f"{trial.rate:g}", percent(trial.accuracy), share
