"""The benchmarks run in their tiny form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_benchmarks_run(tmp_path):
    figures = tmp_path / "bench.json"
    command = [sys.executable, str(BENCHMARKS), "--tiny", "--threads", "1", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(figures.read_text())["rows"]
    assert len(rows) > 20
    assert all(row["value"] > 0 and row["goal"] is None for row in rows)
    assert "update of mib" in done.stdout
