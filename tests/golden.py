"""`make golden`: prove that a move, a rename or a deletion changed nothing that nacre computes.

    python tests/golden.py                      # with HEAD, or HEAD~1 if all is committed
    python tests/golden.py --base main          # with another commit
    python tests/golden.py --save mine.json     # keep the results of this tree, too
    python tests/golden.py --against mine.json  # with results that were kept: half the work

Each commit makes its results by its own `golden_results.py` from its own sources, on this machine
with the packages of this environment: no digest is stored anywhere, since another processor may
round otherwise. A commit without that script is run by the one of this tree.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[1]
SCRIPT = Path("tests/golden_results.py")
STOPPED = 128 + signal.SIGTERM
"""Exit code of a process that was asked to stop."""

SHOWN = 40
"""Characters that are shown of each of two results that differ, around where they begin to."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", help="commit to compare with")
    parser.add_argument("--against", type=Path, help="file of results to compare with instead")
    parser.add_argument("--save", type=Path, help="file for the results of this tree")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # tidy up
    if given.base and given.against:
        parser.error("--base and --against do not go together: compare with one of them")
    with tempfile.TemporaryDirectory() as name:
        here = given.save or Path(name) / "here.json"
        if given.against:
            _check(read_results(given.against), "no results to compare with")
            wait({here: start(TREE, here)})
            base, called = given.against, str(given.against)
        else:
            base, called = Path(name) / "base.json", given.base or default_base()
            with checked_out(called, Path(name) / "base") as tree:
                print(f"comparing this tree with {called}: some five minutes on two cores")
                wait({base: start(tree, base), here: start(TREE, here)})
        sys.exit(show(read_results(base), read_results(here), called))


def default_base() -> str:
    """Return the commit before what was changed last: HEAD where something is not committed."""
    return "HEAD" if _git("status", "--porcelain") else "HEAD~1"


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a folder of its own, for as long as it is needed."""
    _git("worktree", "add", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def start(tree: Path, out: Path) -> "subprocess.Popen[bytes]":
    """Begin to make the results of a tree; what it says goes into a log beside them."""
    script = tree / SCRIPT if (tree / SCRIPT).exists() else TREE / SCRIPT
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, str(script), str(out.absolute())]
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def wait(sides: "Mapping[Path, subprocess.Popen[bytes]]") -> None:
    """Wait until all results are made; fail with what a side said as soon as it fails."""
    try:
        while any(side.poll() is None for side in sides.values()):
            if any(side.poll() for side in sides.values()):
                break
            time.sleep(0.1)
    finally:
        for side in sides.values():
            side.terminate()
            side.wait()
    for out, side in sides.items():
        said = out.with_suffix(".log")
        # The side that failed by itself, not the one that was stopped for it
        _check(
            side.returncode in (0, STOPPED, -signal.SIGTERM),
            f"{side.args!r} failed:\n{said.read_text()}",
        )
        said.unlink()


def read_results(path: Path) -> dict[str, Any]:
    """Read a file of results."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def differences(base: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, str]:
    """Say of each result that is not the same on both sides how it differs."""
    found = {}
    for key in sorted({*base, *here}):
        if key not in base:
            found[key] = "is only here"
        elif key not in here:
            found[key] = "is only in the base"
        elif base[key] != here[key] or type(base[key]) is not type(here[key]):
            found[key] = _describe(str(base[key]), str(here[key]))
    return found


def _describe(base: str, here: str) -> str:
    """Show two texts around the place from which on they differ."""
    pairs = enumerate(zip(base, here, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(base), len(here)))
    start = max(0, first - SHOWN // 2)
    base, here = (repr(text[start : start + SHOWN]) for text in (base, here))
    return f"differs: {base} -> {here}"


def show(base: Mapping[str, Any], here: Mapping[str, Any], called: str) -> int:
    """Print how two results compare; return the exit code: 0 only if they are the same."""
    found = differences(base, here)
    groups = dict.fromkeys(key.partition("/")[0] for key in (*base, *here))
    width = max(map(len, groups), default=0)
    print(f"{'group':{width}}  results  not equal")
    for group in groups:
        keys = [key for key in {*base, *here} if key.startswith(f"{group}/")]
        wrong = sum(key in found for key in keys)
        print(f"{group:{width}}  {len(keys):7}  {wrong or 'equal':>9}")
    for key, how in found.items():
        print(f"  {key} {how}")
    if not base or not here:
        print("one side has no results at all")
        return 1
    print(f"{len(found)} of {len({*base, *here})} results are not those of {called}")
    return 1 if found else 0


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=TREE, capture_output=True, text=True)
    _check(done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _check(holds: Any, otherwise: str) -> None:
    if not holds:
        sys.exit(otherwise)


if __name__ == "__main__":
    main()
