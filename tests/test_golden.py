"""What `make golden` says of two results; the results themselves take minutes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import golden
from golden import TREE


def test_a_side_that_fails_stops_the_other_and_is_shown(tmp_path, monkeypatch):
    """It need not be the first one, and the other would take minutes."""
    monkeypatch.setattr(golden, "SCRIPT", Path("script.py"))
    for name, text in {"slow": "import time; time.sleep(100)", "broken": "1 / 0"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "script.py").write_text(text)
    folders = [tmp_path / "slow", tmp_path / "broken"]
    sides = {folder: golden.start(folder, folder) for folder in folders}
    with pytest.raises(SystemExit, match="ZeroDivisionError"):
        golden.wait(sides)
    assert sides[folders[0]].returncode == -signal.SIGTERM


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_results_are_the_same_again_and_a_changed_one_is_found(tmp_path):
    saved, again = tmp_path / "saved.json", tmp_path / "again.json"
    environment = {**os.environ, "PYTHONPATH": str(TREE / "src")}

    def run(script: str, *options: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, TREE / "tests" / script, *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    done = run("golden_results.py", saved)
    assert done.returncode == 0, done.stderr
    results = json.loads(saved.read_text())
    changed = "methods/mib/step-1/network tensors"
    saved.write_text(json.dumps(results | {changed: "0" * 64}))
    done = run("golden.py", "--against", saved, "--save", again)
    assert done.returncode == 1, done.stderr
    assert f"1 of {len(results)} results are not those" in done.stdout
    assert f"{changed} differs" in done.stdout
    assert json.loads(again.read_text()) == results
