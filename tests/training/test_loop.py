"""The loop that `nacre.methods.base` prints is the one that runs."""

import re

import nacre.methods.base
from nacre.methods.base import Method
from nacre.training import loop
from tiny_runs import tiny_run

COMPONENTS = ("freeze", "find_thresholds", "pseudo_labels", "auxiliary_row", "fuse")
HOOK = re.compile(rf"method\.(\w+)\(|\b({'|'.join(COMPONENTS)})\(")


def printed(updates: int) -> list[str]:
    """The calls that the docstring prints, those within the loop as often as there are updates."""
    lines = [line for line in (nacre.methods.base.__doc__ or "").split("\n") if line[:4] == " " * 4]
    start = next(i for i, line in enumerate(lines) if line.startswith("    for batch in"))
    end = next(i for i, line in enumerate(lines) if i > start and line[4] != " ")
    parts = (lines[:start], lines[start:end] * updates, lines[end:])
    return [a or b for part in parts for line in part for a, b in HOOK.findall(line)]


def test_every_hook_is_called_in_the_order_in_which_it_is_printed(tmp_path, monkeypatch):
    called: list[str] = []

    def watched(name, function):
        def call(*args, **kwargs):
            called.append(name)
            return function(*args, **kwargs)

        return call

    hooks = set(printed(1)) - set(COMPONENTS)
    for kind in (Method, nacre.methods.find_method("mib")):
        for name in hooks & vars(kind).keys():
            monkeypatch.setattr(kind, name, watched(name, vars(kind)[name]))
    for name in COMPONENTS:
        monkeypatch.setattr(loop, name, watched(name, getattr(loop, name)))
    updates = {"iterations": 2, "batch_size": 4}
    tiny_run(tmp_path, scenario="scenes/4-4/overlapped", method="mib", train=updates)
    steps = [i for i, name in enumerate(called) if name == "prepare"]
    assert len(steps) == 2
    assert called[steps[1] - 1 :] == printed(2)
    public = {name for name in vars(Method) if name[0] != "_" and callable(vars(Method)[name])}
    others = {"network_config", "state", "load_state"}  # not in the loop: what is built and kept
    assert public - others == hooks
