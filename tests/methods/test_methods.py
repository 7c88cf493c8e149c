"""One set of tests over the whole table of methods: a new method gets them for free."""

import json

import pytest
import torch

from nacre.cli.look import explain, methods_table
from nacre.methods import ENTRIES, METHODS, Method
from nacre.models.io import find_model
from nacre.runs.folder import RunFolder
from nacre.runs.run import run_scenario
from nacre.training.config import deep_merge
from nacre.training.events import Iterated, Trained, read_events
from nacre.utils.signals import Interrupted
from one_and_two import assert_equal_runs, learn_by_one_and_two
from tiny_runs import TINY, tiny_config

TWO_STEPS = {
    "scenario": "scenes/4-4/overlapped",
    "train": {**TINY["train"], "lr": 0.0005, "incremental_lr": 0.0005},
}


UPDATES = 12

# Every method, and forms of some that learn otherwise
CASES = {name: {"name": name} for name in METHODS} | {
    "ewf-plop": {"name": "plop", "fusion": "sqrt", "freeze": ["old_rows"]},
    "ssul-branches": {"name": "ssul", "branches": True},
}


def kind_of(case):
    return METHODS[CASES[case]["name"]]


def values_of(case):
    """Two steps; for rw, which looks back every tenth iteration, more than ten iterations each."""
    train = {**TWO_STEPS["train"], "epochs": 3 if case == "rw" else 1}
    # The decoder of duo makes no update in a step of few images.
    data = {**TINY["data"], "train": 96} if case == "duo" else TINY["data"]
    return {**TWO_STEPS, "data": data, "train": train, "method": CASES[case]}


@pytest.fixture(scope="module", params=CASES)
def run(request, tmp_path_factory):
    """A finished run of each case."""
    out = tmp_path_factory.mktemp("runs") / request.param
    run_scenario(tiny_config(**values_of(request.param)), out)
    return request.param, out


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """Folders of the same runs of 12 updates a step, carried out by one process and by two."""
    updates = {"train": {"iterations": UPDATES}}
    configs = {name: deep_merge(TINY, deep_merge(values_of(name), updates)) for name in CASES}
    return learn_by_one_and_two(configs, tmp_path_factory.mktemp("both"))


def test_losses_are_finite_and_named(run):
    name, out = run
    events = [event for event in read_events(out / "events.jsonl") if isinstance(event, Trained)]
    assert bool(events) == kind_of(name).learns_by_gradient
    if not events:
        return
    assert {event.step for event in events} == ({0} if kind_of(name).is_joint else {0, 1})
    for event in events:
        assert event.losses
        assert all(torch.isfinite(torch.tensor(list(event.losses.values()))))


def test_resumes_exactly(run, tmp_path):
    name, out = run
    config = tiny_config(**values_of(name))
    again = RunFolder(tmp_path / "run")
    for step in {0} if kind_of(name).is_joint else {0, 1}:
        stop = StopIn(step)
        with pytest.raises(Interrupted):
            run_scenario(config, again.path, observers=[stop.observe], should_stop=stop)
        # A step that is learned in one pass begins anew.
        kept = kind_of(name).learns_by_gradient
        assert again.resume.exists() == kept, "stopped in the middle of a step"
        assert not again.model(step).exists()
    run_scenario(config, again.path)
    assert find_model(again.path).read_bytes() == find_model(out).read_bytes()


class StopIn:
    """Asks to stop when an update of a step, or a batch of a pass without updates, was made."""

    def __init__(self, step):
        self.step, self.begun = step, False

    def observe(self, event):
        self.begun |= isinstance(event, Iterated) and event.step == self.step

    def __call__(self):
        return self.begun


def test_kept_pictures_are_learnt_from(run, tmp_path):
    name, out = run
    if kind_of(name).is_joint:
        return
    config = tiny_config(**values_of(name), memory=4)
    run_scenario(config, tmp_path / "run")
    events = read_events(tmp_path / "run" / "events.jsonl")
    losses = [one.losses for one in events if isinstance(one, Trained) and one.step == 1]
    assert bool(losses) == kind_of(name).learns_by_gradient
    assert all(torch.isfinite(torch.tensor(list(one.values()))).all() for one in losses)
    assert find_model(tmp_path / "run").read_bytes() != find_model(out).read_bytes()


def test_the_saved_model_says_what_the_metrics_say(run):
    from nacre.runs.evaluate import evaluate_checkpoint

    _, out = run
    model = find_model(out)
    metrics = json.loads((model.parent / "metrics.json").read_text())
    assert evaluate_checkpoint(out, {})["iou"] == metrics["iou"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_does_over_12_updates_of_every_step(name, by_two):
    for folder in by_two:
        events = read_events(folder / name / "events.jsonl")
        last = {event.step: event.iteration for event in events if isinstance(event, Trained)}
        steps = (0,) if kind_of(name).is_joint else (0, 1)
        steps = steps if kind_of(name).learns_by_gradient else ()
        assert last == dict.fromkeys(steps, UPDATES)
    assert_equal_runs(by_two, name)


@pytest.mark.parametrize("name", METHODS)
def test_the_table_is_true_and_readable(name, capsys):
    from rich.console import Console

    method = METHODS[name]
    assert method.name == name
    assert method.Config().name == name
    assert issubclass(method, Method)
    console = Console(width=100)
    console.print(methods_table(ENTRIES))
    console.print(explain(method, ENTRIES[name]))
    shown = capsys.readouterr().out
    assert name in shown
    assert ENTRIES[name].title in shown
    for key in method.Config.model_fields:
        assert key in {"name", *method.Config.refused} or key in shown


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ledger", ({}, {"grid_stride": 8}, {"ridge": 0.1})),
        ("duo", ({}, {"grid_stride": 16}, {"ridge": 0.1}, {"ledger_weight": 2.0})),
        ("star", ({}, {"positive_weight": 30})),
    ],
)
def test_a_step_0_that_is_learned_otherwise_is_not_shared(name, values):
    kind = METHODS[name]
    assert len({kind.step_0_of(kind.Config(**one)) for one in values}) == len(values)


def test_every_method_of_the_package_is_in_the_table():
    def below(kind):
        return {kind, *(one for sub in kind.__subclasses__() for one in below(sub))}

    found = [METHODS[name] for name in METHODS]  # which imports them all
    ours = {one for one in below(Method) if one.__module__.startswith("nacre.methods")}
    assert set(found) == {one for one in ours if "name" in vars(one)}
