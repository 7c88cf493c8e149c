"""One set of tests over the whole table of methods: a new method gets them for free."""

import json
import os
import subprocess
import sys

import pytest
import torch

from nacre.methods import METHODS, Method, all_methods, find_method
from nacre.methods.describe import explain, methods_table
from nacre.training.checkpoint import find_model, load_model
from nacre.training.learn import Interrupted
from nacre.training.recorder import read_events
from nacre.training.run import run_scenario
from tiny_runs import TINY, StopAfter, tiny_config

TWO_STEPS = {"scenario": "scenes/4-4/overlapped"}


@pytest.fixture(scope="module", params=METHODS)
def run(request, tmp_path_factory):
    """A finished run of each method."""
    out = tmp_path_factory.mktemp("runs") / request.param
    run_scenario(tiny_config(**TWO_STEPS, method=request.param), out)
    return request.param, out


def test_losses_are_finite_and_named(run):
    name, out = run
    events = [event for event in read_events(out / "events.jsonl") if event["event"] == "train"]
    assert events
    assert {event["step"] for event in events} == ({0} if METHODS[name].merges_steps else {0, 1})
    for event in events:
        assert event["losses"]
        assert all(torch.isfinite(torch.tensor(list(event["losses"].values()))))


def test_resumes_exactly(run, tmp_path):
    name, out = run
    config = tiny_config(**TWO_STEPS, method=name)
    with pytest.raises(Interrupted):
        run_scenario(config, tmp_path / "run", should_stop=StopAfter(4))
    with pytest.raises(Interrupted):
        run_scenario(config, tmp_path / "run", should_stop=StopAfter(2))
    run_scenario(config, tmp_path / "run")
    again, before = find_model(tmp_path / "run"), find_model(out)
    assert again.read_bytes() == before.read_bytes()


def test_the_saved_model_says_what_the_metrics_say(run):
    from nacre.training.retest import retest

    _, out = run
    model = find_model(out)
    metrics = json.loads((model.parent / "metrics.json").read_text())
    assert retest(out, {})["iou"] == metrics["iou"]


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_learn_what_one_does(name, tmp_path):
    # Small steps: with large ones, rounding alone sends two runs of such a network apart.
    slow = {"train": {**TINY["train"], "lr": 0.002, "next_lr": 0.001}}
    values = {**TINY, **TWO_STEPS, **slow, "method": {"name": name}}
    out = tmp_path / "one"
    run_scenario(tiny_config(**TWO_STEPS, **slow, method=name), out)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--master-port", str(20000 + os.getpid() % 20000), "-m", "nacre", "run"]
    command = [*launch, "--config", str(config), "--out", str(tmp_path / "run")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    networks = [load_model(find_model(path))[0].state_dict() for path in (out, tmp_path / "run")]
    for key, value in networks[0].items():
        torch.testing.assert_close(value, networks[1][key], rtol=1e-4, atol=1e-4)
    tested = [
        json.loads((find_model(path).parent / "metrics.json").read_text())
        for path in (out, tmp_path / "run")
    ]
    pixels = [sum(map(sum, metrics["confusion"])) for metrics in tested]
    assert pixels[0] == pixels[1], "every test image counts exactly once"


@pytest.mark.parametrize("name", METHODS)
def test_the_table_is_true_and_readable(name, capsys):
    from rich.console import Console

    method = METHODS[name]
    assert method.name == name
    assert method.Config().name == name
    assert issubclass(method, Method)
    console = Console(width=100)
    console.print(methods_table(METHODS))
    console.print(explain(method))
    shown = capsys.readouterr().out
    assert name in shown
    for key in method.Config.model_fields:
        assert key == "name" or key in shown


def test_a_method_of_another_package_joins_through_an_entry_point(monkeypatch):
    class Point:
        name, value = "mine", "elsewhere:Mine"

        def load(self):
            return METHODS["ft"]

    monkeypatch.setattr("nacre.methods.entry_points", lambda group: [Point()])
    assert find_method("mine") is METHODS["ft"]
    assert set(all_methods()) == {*METHODS, "mine"}
