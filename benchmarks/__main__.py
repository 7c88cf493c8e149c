"""All benchmarks as one table: `make bench`, or `python benchmarks`.

    python benchmarks --tiny        # takes seconds, for correctness only
    python benchmarks --rounds 5    # more precise than the default of 2 rounds

All numbers are ratios within one run, except the seconds until a command responds. Each benchmark
is a file in this folder: `python benchmarks/loss_head.py --help`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from rich.console import Console

import abn
import data_path
import evaluation
import importing
import ledger
import loss_head
import maps
import methods
import networks
import start
from measuring import Row, run, save, show

BENCHMARKS = {
    "the losses": loss_head.measure,
    "the methods' updates": methods.measure,
    "the ledger's sums": ledger.measure,
    "others' networks": networks.measure,
    "in-place normalization": abn.measure,
    "reading images": data_path.measure,
    "testing": evaluation.measure,
    "maps": maps.measure,
    "imports": importing.measure,
    "the start": start.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="small, for correctness only")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (2)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="file (bench.json)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows: list[Row] = []
    console = Console(stderr=True)
    began = time.monotonic()
    for i, (name, measure) in enumerate(BENCHMARKS.items()):
        with console.status(f"measuring {name} ({i + 1} of {len(BENCHMARKS)})"):
            start_of_this = time.monotonic()
            rows += run(measure, given.tiny, given.rounds)
        console.print(f"{name}: {time.monotonic() - start_of_this:.0f} s", style="dim")
    show(rows)
    save(rows, given.json)
    print(f"\n{time.monotonic() - began:.0f} s; the figures are in {given.json}")


if __name__ == "__main__":
    main()
