"""``nacre demo``: the whole of nacre on a generated world, in minutes and without any files.

Three steps are learnt with fine-tuning, LwF and MiB, which share their step 0, and once with all
classes together. The result is a table in the form of the paper's and a page to look at.
"""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from nacre.display import RunDisplay
from nacre.report.page import write_report
from nacre.report.render import to_rich
from nacre.report.results import load_results
from nacre.report.table import steps_table
from nacre.training.config import RunConfig, gather
from nacre.training.prepare import prepare
from nacre.training.run import run_scenario

SCENARIO = "scenes/4-2-2/overlapped"
METHODS = ("ft", "lwf", "mib", "joint")


def demo_config(method: str, seed: int) -> RunConfig:
    """Return the config of one of the demo's runs."""
    world = {"scenario": SCENARIO, "method": method, "seed": seed, "data": {"seed": seed}}
    return gather(preset="demo", overrides=world)


def run_demo(
    out: Path, seed: int, console: Console, should_stop: Callable[[], bool] = lambda: False
) -> Path:
    """Learn, print the table, write the page; return the page's path."""
    configs = {method: demo_config(method, seed) for method in METHODS}
    folders = {method: out / "runs" / method for method in METHODS}
    with RunDisplay(console, total=_iterations(configs)) as display:
        for method, config in configs.items():
            base = folders["ft"] if method in ("lwf", "mib") else None
            run_scenario(
                config, folders[method], base=base, observers=[display], should_stop=should_stop
            )
    runs = list(folders.values())
    for results in load_results(runs):
        console.print(to_rich(steps_table(results)))
    return write_report(runs, out, title="nacre demo: three steps in a generated world")


def _iterations(configs: dict[str, RunConfig]) -> int:
    """Return the iterations of all runs; a step 0 taken over counts, as done at once."""
    total = 0
    for config in configs.values():
        prepared = prepare(config)
        total += sum(prepared.order(step).iterations for step in range(prepared.steps))
    return total
