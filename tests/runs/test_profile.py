"""A profile of a few updates."""

import json

import pytest

from nacre.runs.profile import Profiler
from nacre.runs.run import run_scenario
from tiny_runs import tiny_config


@pytest.mark.parametrize(("wanted", "recorded"), [(2, 2), (100, 3)])
def test_updates_are_recorded_as_a_trace_at_most_those_of_a_step(wanted, recorded, tmp_path):
    out = tmp_path / "profile"
    train = {"iterations": 6}
    config = tiny_config(scenario="scenes/4-4/overlapped", method="ft", train=train)
    run_scenario(config, tmp_path / "run", observers=[Profiler(wanted, out)])
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert sum(name.startswith("Optimizer.step") for name in names) == recorded
    assert "aten::convolution" in names
    assert "aten::convolution" in (out / "kernels.txt").read_text()
