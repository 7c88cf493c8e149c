"""``nacre demo``: generated scenes in three steps, in minutes and without any files.

Fine-tuning, LwF and MiB share their step 0; joint training learns all classes together. The result
is a table in the paper's form and a page.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from nacre.errors import NacreError
from nacre.sweeps.engines import Local
from nacre.sweeps.grid import GridConfig, Job, make_jobs
from nacre.sweeps.launch import run_grid
from nacre.utils.io import locked
from nacre.utils.signals import Interrupted
from nacre.utils.system import usable_cores

METHODS = ("ft", "lwf", "mib", "joint")

SCENES = 800
"""Number of training images."""

TITLE = "nacre demo: three steps on generated scenes"
ABOUT = """\
Eight classes of generated things are learned in three steps: four, then two, then two.
In each step only the new classes are labeled; all else is marked background.
ft forgets, lwf distills, mib models the background, joint has all labels at once."""


def demo_grid(seed: int) -> GridConfig:
    """Return the demo's grid; the seed changes the scenes as well as the weights."""
    return GridConfig(
        scenarios=("scenes/4-2-2/overlapped",),
        methods=METHODS,
        seeds=(seed,),
        preset="demo",
        config={"data": {"seed": seed, "train": SCENES}},
        # Side by side with a core each is faster than one after another with all of them.
        jobs=min(len(METHODS), usable_cores()),
    )


def run_demo(
    out: Path,
    seed: int,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    show: Callable[[Sequence[Job]], None] = lambda jobs: None,
) -> list[Path]:
    """Learn all runs of the demo; return their folders."""
    grid = demo_grid(seed)
    jobs = make_jobs(grid, out / "runs")
    with locked(out, "demo"):
        if not run_grid(jobs, Local(grid.jobs), should_stop=should_stop, show=show):
            raise Interrupted
    for job in jobs:
        if job.state == "failed":
            raise NacreError(f"failed: {job.name}: {job.problem}")
    return [job.folder.path for job in jobs]
