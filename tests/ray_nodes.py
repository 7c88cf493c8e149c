"""A Ray cluster of processes of this machine, for nightly tests."""

import os
import signal
import socket
import subprocess
import sys

# A busy machine answers Ray late.
PATIENT = {
    "RAY_worker_niceness": "0",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_raylet_client_connect_timeout_milliseconds": "60000",
}


class Nodes:
    """A Ray cluster of processes of `ray start`, each a node with a core."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.processes = []

    def start(self, *how):
        program = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"]
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
        return node

    def kill(self, node):
        """End a node as a power cut does: all its processes at once, raylet and workers too."""
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def close(self):
        for node in self.processes:
            if node.poll() is None:
                self.kill(node)
