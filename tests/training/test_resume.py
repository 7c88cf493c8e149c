"""What an interrupted step goes on with: every generator where it stopped."""

import torch

from nacre.training.resume import _generators, _set_generators
from nacre.utils.distributed import Distributed

ALONE = Distributed(0, 1, torch.device("cpu"))


def test_generators_go_on_where_they_stopped():
    states = _generators(ALONE)
    drawn = torch.rand(3)
    _set_generators(states, ALONE)
    assert torch.equal(torch.rand(3), drawn)


def test_a_process_that_was_not_there_draws_as_the_main_one():
    states = _generators(ALONE)
    drawn = torch.rand(3)
    torch.manual_seed(99)
    _set_generators(states, Distributed(1, 2, torch.device("cpu")))
    assert torch.equal(torch.rand(3), drawn)
