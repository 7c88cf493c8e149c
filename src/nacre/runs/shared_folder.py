"""Several processes, perhaps on several machines, must see one run folder and the same data."""

import time
from typing import Any

from nacre.errors import NacreError
from nacre.runs.folder import RunFolder
from nacre.utils.distributed import Distributed

# Network file systems show another machine's new files after a while.
PATIENCE_SECONDS = 60.0


def check_shared(folder: RunFolder, fingerprint: dict[str, Any], dist: Distributed) -> None:
    """Refuse processes that do not see what the main one has just written, or see other data.

    Otherwise one of them would go on where another begins anew, and their gradients would mix.
    """
    if dist.world_size == 1:
        return
    written, wanted = dist.from_main((folder.sight(), fingerprint))
    sees_data, sees_folder = fingerprint == wanted, _sees(folder, written)
    found = dist.all((sees_data, sees_folder))
    dist.on_main(lambda: _refuse(folder, found))


def _sees(folder: RunFolder, written: str) -> bool:
    """Wait until this process sees what the main one wrote, with patience."""
    until = time.monotonic() + PATIENCE_SECONDS
    while folder.sight() != written:
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def _refuse(folder: RunFolder, found: list[tuple[bool, bool]]) -> None:
    other_data = [rank for rank, (sees_data, _) in enumerate(found) if not sees_data]
    if other_data:
        raise NacreError(
            f"the data differ between the processes: {_ranks(other_data)} other classes or images "
            "than the main one; --root must hold the same data on every machine"
        )
    blind = [rank for rank, (_, sees_folder) in enumerate(found) if not sees_folder]
    if blind:
        raise NacreError(
            f"the run folder {folder.path} is not shared: {_ranks(blind)} nothing of what the main "
            "one wrote there; with several machines --out must lie on a file system that they "
            "share"
        )


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"process {shown} sees" if len(ranks) == 1 else f"the processes {shown} see"
