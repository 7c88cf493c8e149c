"""Passes as tasks of Ray: a fake that runs them at once, and nightly a cluster of two nodes."""

import importlib.util
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch

from nacre.errors import NacreError
from nacre.models.io import find_model, load_model
from nacre.runs.run import run_scenario
from nacre.training import loop as step_module
from nacre.training import ray_pass
from nacre.training.events import Iterated
from nacre.utils.signals import Interrupted
from ray_nodes import PATIENT, Nodes
from tiny_runs import StopAfter, tiny_config

LEDGER = {"scenario": "scenes/4-4/overlapped", "method": {"name": "ledger"}}


class RayError(Exception):
    """The base class of Ray's errors."""

    def __init__(self, text, cause=None):
        super().__init__(text)
        self.cause = cause


class FakeRay:
    """The part of Ray that a pass uses; it pickles its input and returns the last result first."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self):
        self.options, self.shares, self.error, self.is_there, self.most = {}, [], None, False, 0

    def init(self, address, **more):
        self.is_there = True

    def shutdown(self):
        self.is_there = False

    def cluster_resources(self):
        return {"CPU": 2.0}

    def put(self, value):
        return pickle.dumps(value)

    def remote(self, **options):
        self.options = options

        def submit(common, share):
            self.shares.append(share)
            return lambda: options and function(pickle.loads(common), share)

        def wrap(given):
            nonlocal function
            function = given
            return SimpleNamespace(remote=submit)

        function = None
        return wrap

    def wait(self, running, timeout):
        self.most = max(self.most, len(running))
        return running[-1:], running[:-1]

    def get(self, task):
        if self.error is not None:
            raise self.error
        return task()


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_pass, "IMAGES_PER_SHARE", 4)
    return fake


def on_ray(**train):
    return tiny_config(**LEDGER, train={"passes_on": "ray", **train})


def test_shares_add_up_to_what_one_process_counts(ray, tmp_path):
    seen = []
    run_scenario(tiny_config(**LEDGER), tmp_path / "one")
    run_scenario(on_ray(), tmp_path / "ray", observers=[seen.append])
    one, other = (load_model(find_model(tmp_path / name)) for name in ("one", "ray"))
    for mine, theirs in ((one[0].state_dict(), other[0].state_dict()), (one[2], other[2])):
        for name, value in mine.items():
            assert torch.allclose(value.double(), theirs[name].double(), rtol=1e-5), name
    assert max(ray.shares) > 4, "there were many shares"
    assert ray.most == 4, "and never more at a time than the cluster can take up"
    assert ray.options["max_retries"] > 0
    last = {one.step: one.iteration for one in seen if isinstance(one, Iterated)}
    assert set(last) == {0, 1}
    assert not ray.is_there, "it leaves the cluster"


def test_a_pass_can_be_stopped_and_its_errors_are_one_sentence(ray, tmp_path):
    with pytest.raises(Interrupted):
        run_scenario(on_ray(), tmp_path / "stop", should_stop=StopAfter(2))
    ray.error = RayError("Traceback", NacreError("image x.png cannot be read"))
    with pytest.raises(NacreError, match=r"^image x.png cannot be read$"):
        run_scenario(on_ray(), tmp_path / "file")
    ray.error = RayError("lines\nThe worker died unexpectedly")
    with pytest.raises(NacreError, match=r"Ray could not process a share.*died unexpectedly"):
        run_scenario(on_ray(), tmp_path / "died")
    assert not ray.is_there


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_a_cluster_that_loses_one_of_two_nodes_counts_what_one_process_counts(
    tmp_path, monkeypatch
):
    """In float64, where the order of additions hardly matters."""
    build = step_module.build_network
    monkeypatch.setattr(step_module, "build_network", lambda *given: build(*given).double())
    monkeypatch.setattr(ray_pass, "IMAGES_PER_SHARE", 4)
    nodes = Nodes()
    for name, value in {**PATIENT, "RAY_ADDRESS": nodes.address}.items():
        monkeypatch.setenv(name, value)
    run_scenario(tiny_config(**LEDGER, data={"train": 160}), tmp_path / "one")
    try:
        nodes.start()
        lost, done = [nodes.start()], []

        def kill_one(event):
            if isinstance(event, Iterated):
                done.append(event)
            if len(done) == 10 and lost:
                nodes.kill(lost.pop())

        config = tiny_config(**LEDGER, data={"train": 160}, train={"passes_on": "ray"})
        run_scenario(config, tmp_path / "ray", observers=[kill_one])
    finally:
        nodes.close()
    assert not lost, "a node died"
    one, other = (load_model(find_model(tmp_path / name)) for name in ("one", "ray"))
    for mine, theirs in ((one[0].state_dict(), other[0].state_dict()), (one[2], other[2])):
        for name, value in mine.items():
            apart = (value.double() - theirs[name].double()).norm()
            assert float(apart) <= 1e-9 * float(value.double().norm()), name
