"""Compiled networks: one graph without breaks for each norm and step, and the same gradients."""

import pytest
import torch

from nacre.errors import NacreError
from nacre.models import compile as compiling
from nacre.utils.distributed import Distributed
from small_steps import second_step


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that were made; they run as they are."""
    found = []

    def keep(graph, inputs):
        found.append(graph)
        return graph

    monkeypatch.setattr(compiling, "BACKEND", keep)
    return found


# torch's compiler does this by itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("norm", ["bn", "abn", "iabn"])
def test_student_and_teacher_are_one_graph_each_per_step(norm, graphs):
    found = {}
    for compiled in (True, False):
        train = {"compile_network": compiled}
        trainer, _, samples = second_step("lwf", norm, count=1, train=train)
        assert len(graphs) == 1  # step 0 has no teacher
        losses = [trainer.update([sample]) for sample in samples[:2]]
        assert len(graphs) == (3 if compiled else 1)
        found[compiled] = [*losses[-1].values(), *trainer.network.state_dict().values()]
        del graphs[1:]
    for one, other in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_compiled_is_refused_with_a_sentence(monkeypatch):
    pair = Distributed(0, 2, torch.device("cpu"))
    with pytest.raises(NacreError, match="compile_network is for one process"):
        second_step("ft", count=1, dist=pair, train={"compile_network": True})
