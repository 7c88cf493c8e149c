"""`make golden`: prove that a move, a rename or a deletion changed nothing that nacre computes.

    python tests/golden.py                      # with HEAD, or HEAD~1 if all is committed
    python tests/golden.py --base main          # with another commit

Each commit computes its results with its own `golden_results.py` and sources, on this machine and
with the packages of this environment. No digest is stored, since another processor may round
differently. A commit without that script uses the one of this tree.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[1]
SCRIPT = Path("tests/golden_results.py")
SHOWN = 40
"""Number of characters to show of results that differ."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", help="commit to compare with")
    called = parser.parse_args().base or default_base()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # tidy up
    with tempfile.TemporaryDirectory() as name, checked_out(called, Path(name) / "base") as tree:
        print(f"comparing this tree with {called}: some five minutes on two cores")
        base, here = make_results(tree, TREE)
    sys.exit(show(base, here, called))


def default_base() -> str:
    """Return HEAD if there are uncommitted changes, else HEAD~1."""
    return "HEAD" if _git("status", "--porcelain") else "HEAD~1"


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a folder within this context."""
    _git("worktree", "add", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def make_results(*trees: Path) -> list[dict[str, Any]]:
    """Compute the results of trees in parallel; exit with the output of a script that fails."""
    with tempfile.TemporaryDirectory() as name:
        outs = [Path(name) / f"{number}.json" for number in range(len(trees))]
        sides = [start(tree, out) for tree, out in zip(trees, outs, strict=True)]
        try:
            for side in sides:
                said, _ = side.communicate()
                if side.returncode:
                    sys.exit(f"{side.args!r} failed:\n{said}")
        finally:
            for side in sides:
                side.terminate()
                side.wait()
        return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


def start(tree: Path, out: Path) -> "subprocess.Popen[str]":
    """Start a process that computes the results of a tree."""
    script = tree / SCRIPT if (tree / SCRIPT).exists() else TREE / SCRIPT
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    command = [sys.executable, str(script), str(out)]
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=both, text=True)


def differences(base: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, str]:
    """Describe the difference of each result that is not equal."""
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
    """Show the first difference of two texts."""
    pairs = enumerate(zip(base, here, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(base), len(here)))
    start = max(0, first - SHOWN // 2)
    base, here = (repr(text[start : start + SHOWN]) for text in (base, here))
    return f"differs: {base} -> {here}"


def show(base: Mapping[str, Any], here: Mapping[str, Any], called: str) -> int:
    """Print a comparison of two results; return the exit code, 0 if they are equal."""
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
    print(f"{len(found)} of {len({*base, *here})} results are not those of {called}")
    return 1 if found or not here else 0


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=TREE, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
