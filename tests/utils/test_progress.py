import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import time
from nacre.utils.progress import worker_pool
with worker_pool(2, "read masks") as pool:
    print(*pool._processes, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are threads")
def test_processes_of_a_pass_die_with_it():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as index_pass:
        helpers = index_pass.stdout.readline().split()
        index_pass.kill()
    assert len(helpers) == 2
    until = time.monotonic() + 120
    while any(map(_is_alive, helpers)):
        assert time.monotonic() < until, "they live on"
        time.sleep(0.01)


def _is_alive(process):
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
