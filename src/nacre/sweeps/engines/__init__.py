"""Where the runs of a grid are carried out: this machine, SLURM, Ray."""

from pathlib import Path
from typing import TYPE_CHECKING

from nacre.errors import unknown_name
from nacre.sweeps.engines.engine import Engine
from nacre.utils.claim import Claim

if TYPE_CHECKING:
    from nacre.sweeps.grid import GridConfig

ENGINES = ("local", "slurm", "ray")


def open_engine(name: str, grid: "GridConfig", mark: Claim, out: Path) -> Engine:
    """Open the engine of a name for a grid.

    Args:
        name: One of `ENGINES`.
        grid: What it is to carry out, and with which means.
        mark: The grid's claim, with which runs elsewhere end.
        out: The grid's folder.
    """
    if name == "ray":
        from nacre.sweeps.engines.ray import Ray

        return Ray(grid, mark)
    if name == "slurm":
        from nacre.sweeps.engines.slurm import Slurm

        return Slurm(grid, mark, out)
    if name == "local":
        from nacre.sweeps.engines.local import Local

        return Local(grid.jobs)
    raise unknown_name("engine", name, ENGINES)
