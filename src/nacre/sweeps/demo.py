"""``nacre demo``: the whole of nacre on a generated world, in minutes and without any files.

Three steps are learnt with fine-tuning, LwF and MiB, which share their step 0, and once with all
classes together. The result is a table in the form of the paper's and a page to look at.
"""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from nacre.errors import NacreError
from nacre.report.page.page import write_report
from nacre.report.results.aggregate import load_results
from nacre.report.tables.cells import steps_table
from nacre.sweeps.grid import GridConfig, last_words, make_jobs, run_grid
from nacre.terminal.grid import GridDisplay
from nacre.terminal.tables import to_rich
from nacre.training.step import Interrupted
from nacre.utils.system import usable_cores

METHODS = ("ft", "lwf", "mib", "joint")


def demo_grid(seed: int) -> GridConfig:
    """Return the demo's runs; a seed changes the world as well as the weights."""
    return GridConfig(
        scenarios=("scenes/4-2-2/overlapped",),
        methods=METHODS,
        seeds=(seed,),
        preset="demo",
        config={"data": {"seed": seed}},
        # Side by side with a core each is faster than one after another with all of them.
        jobs=min(len(METHODS), usable_cores()),
    )


def run_demo(
    out: Path, seed: int, console: Console, should_stop: Callable[[], bool] = lambda: False
) -> Path:
    """Learn, print the table, write the page; return the page's path."""
    console.print(
        "Eight classes of generated things are learnt in three steps: four, then two, then two.\n"
        "In each step only the new classes are labelled; all else is marked background.\n"
        "ft forgets, lwf distils, mib models the background, joint sees every label at once."
    )
    grid = demo_grid(seed)
    jobs = make_jobs(grid, out / "runs")
    with GridDisplay(console) as display:
        if not run_grid(jobs, grid.jobs, should_stop=should_stop, show=display):
            raise Interrupted
    for job in jobs:
        if job.state == "failed":
            raise NacreError(f"{job.name} failed: {last_words(job)} (see {job.log})")
    runs = [job.folder.path for job in jobs]
    for results in load_results(runs):
        console.print(to_rich(steps_table(results)))
    return write_report(runs, out, title="nacre demo: three steps in a generated world")
