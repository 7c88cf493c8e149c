"""A Ray cluster of processes of this machine, for nightly tests."""

import os
import signal
import socket
import subprocess
import sys
import time

from one_and_two import free_port

# A busy machine answers Ray late.
PATIENT = {
    "RAY_worker_niceness": "0",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_raylet_client_connect_timeout_milliseconds": "60000",
}


# `ray start` returns no sooner and no later than its node joins: on one machine a second node may
# take a minute or more. So a test asks the cluster itself.
COUNT = """
import sys, time
import ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.2)
"""
START_SECONDS = 600


class Nodes:
    """A Ray cluster of processes of `ray start`, each a node with a core."""

    def __init__(self):
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes = []

    def start(self):
        """Start one more node, the first as the head; return it when the cluster counts it."""
        program = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"]
        how = [f"--address={self.address}"]
        if not self.processes:
            how = ["--head", f"--port={self.port}", "--include-dashboard=false"]
        usual = ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", "--block"]
        env = {**os.environ, **PATIENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        node = subprocess.Popen(
            [*program, *how, *usual, "--disable-usage-stats"],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.processes.append(node)
        self._await(node, env)
        return node

    def _await(self, node, env):
        """Wait until the cluster has as many nodes as were started."""
        until = time.monotonic() + START_SECONDS
        while not self._listens():
            assert node.poll() is None, "the head did not start"
            assert time.monotonic() < until, "the head does not answer"
            time.sleep(0.2)
        count = [sys.executable, "-c", COUNT, self.address, str(len(self.processes))]
        subprocess.run(count, env=env, timeout=START_SECONDS, check=True)

    def _listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self, node):
        """End a node as a power cut does: all its processes at once, raylet and workers too."""
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def close(self):
        for node in self.processes:
            if node.poll() is None:
                self.kill(node)
