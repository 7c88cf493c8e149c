"""Learning on two machines: two torchruns on loopback that meet at one address."""

import json

import pytest

from one_and_two import assert_equal_runs, learn_alone, learn_on_two_nodes
from tiny_runs import TINY


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processes", [1, 2])
def test_two_nodes_learn_what_one_process_does(tmp_path, processes):
    configs = {name: {**TINY, "method": name} for name in ("mib", "ledger")}
    learn_alone(configs, tmp_path / "one")
    learn_on_two_nodes(configs, tmp_path / "two", processes)
    for name in configs:
        assert_equal_runs([tmp_path / "one", tmp_path / "two"], name)
        (start,) = json.loads((tmp_path / "two" / name / "run.json").read_text())["starts"]
        assert start["processes"] == 2 * processes
