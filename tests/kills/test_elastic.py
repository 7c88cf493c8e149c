"""torchrun begins all processes again when one dies: the run goes on from its last save."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("processes are found by /proc", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
from killing import digest, events, leftovers, run_command

OFTEN = Path(__file__).with_name("often.py")


def torchrun(out, restarts):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    start += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    start += ["--max-restarts", str(restarts), str(OFTEN), "0.002"]
    command = run_command("mib", out, "train.epochs=6")
    with out.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([*start, *command], stdout=log, stderr=log)


def ranks(agent):
    return [int(one) for one in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_goes_on_from_its_last_save_when_torchrun_begins_it_again(tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert torchrun(whole, 0).wait() == 0, whole.with_suffix(".log").read_text()[-500:]
    agent = torchrun(out, 3)  # on a busy machine gloo may fail to connect the new processes
    said, until = out / "events.jsonl", time.monotonic() + 900
    while not (said.exists() and '"saved"' in said.read_text()):
        assert time.monotonic() < until, out.with_suffix(".log").read_text()[-500:]
        time.sleep(0.01)
    os.kill(ranks(agent.pid)[1], signal.SIGKILL)
    assert agent.wait() == 0, out.with_suffix(".log").read_text()[-5000:]
    assert (out / "run.json").read_text().count('"time"') == 2, "it was begun twice"
    assert digest(out) == digest(whole)
    assert events(out) == events(whole)
    assert not leftovers(out)
