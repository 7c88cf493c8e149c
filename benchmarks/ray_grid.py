"""A grid on a Ray cluster of two nodes that loses one of them, a worker and its driver.

    python benchmarks/ray_grid.py

Six small runs are carried out by `nacre grid … --on ray`, with these accidents while they learn:
a node is removed; the process of a task and the process of a run are killed with -9; the grid's own
process is killed with -9 and the same command given again. Each run must end with the tensors and
metrics of the same grid undisturbed on this machine, and nothing may be alive when the grid is
gone. Needs `pip install -c constraints.txt '.[ray]'`; takes some minutes. The exit code says
whether all held.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kills"))

SCENARIOS = "scenes/4-4/overlapped,scenes/4-2-2/overlapped"
METHODS = "ft,mib,lwf-mc"
SETS = (
    "data.train=64 data.val=12 data.size=32 model.backbone=tiny model.decoder_channels=8 "
    "images.crop_size=32 images.augmentation=flip train.batch_size=8 "
    "train.epochs=20 train.lr=0.05 train.incremental_lr=0.01 train.device=cpu"
)
RUNS = 6
PATIENCE = 3600
# On a busy machine Ray's own processes take long to begin, and to answer.
SLOW = {
    "RAY_worker_niceness": "0",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_worker_register_timeout_seconds": "1200",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_gcs_rpc_server_connect_timeout_s": "600",
    "RAY_raylet_client_connect_timeout_milliseconds": "60000",
}


def command(out: Path, *more: str) -> list[str]:
    sets = [part for one in SETS.split() for part in ("--set", one)]
    grid = ["grid", "--scenarios", SCENARIOS, "--methods", METHODS, "--out", str(out), *sets]
    return [sys.executable, "-m", "nacre", *grid, "--json", *more]


def await_(ready: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < until, f"{what} never came"
        time.sleep(0.1)


def patient(find: Callable[..., object]) -> Callable[..., object]:
    """Ask for a node until it is there: Ray itself gives up after 30 s."""

    def ask(*given: object, **more: object) -> object:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return find(*given, **more)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    return ask


def learning(out: Path) -> list[Path]:
    """Return the runs that have learnt something and are not done."""
    begun = [path.parent for path in out.rglob("events.jsonl") if '"train"' in path.read_text()]
    return [run for run in begun if not (run / "metrics.json").exists()]


def processes(words: str) -> list[int]:
    """Return the processes whose command holds these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in text and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def runs_of(out: Path) -> list[int]:
    return processes(f"nacre run --config {out}")


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def undisturbed(out: Path) -> None:
    if len(list(out.glob("*/*/metrics.json"))) == RUNS:
        return
    began = time.monotonic()
    subprocess.run(command(out, "--jobs", "2"), check=True, stdout=subprocess.DEVNULL)
    print(f"undisturbed, two at a time: {time.monotonic() - began:.0f} s", flush=True)


def disturbed(out: Path) -> subprocess.Popen[str]:
    """Carry the grid out on Ray, with accidents; return the last driver."""
    os.environ.update(SLOW)
    from ray._private import services
    from ray.cluster_utils import Cluster

    services.get_node = patient(services.get_node)
    means = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**means, "include_dashboard": False})
    second = cluster.add_node(**means)
    os.environ["RAY_ADDRESS"] = cluster.address
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"  {time.monotonic() - began:4.0f} s: {what}", flush=True)

    driver = subprocess.Popen(command(out, "--on", "ray"), stdout=subprocess.PIPE, text=True)
    await_(lambda: len(learning(out)) >= 2, "two runs that learn")
    tell(f"{len(learning(out))} runs learn; a node is removed")
    cluster.remove_node(second)
    await_(lambda: runs_of(out), "a run after that")
    tell("a new node joins")
    cluster.add_node(**means)
    await_(lambda: runs_of(out) and learning(out), "a run that learns")
    victim = runs_of(out)[0]
    tell("the worker that carries a run out is killed with -9")
    os.kill(parent(victim), signal.SIGKILL)
    await_(lambda: victim not in runs_of(out), "the end of its run")
    await_(lambda: runs_of(out) and learning(out), "a run that learns again")
    tell("the process of a run is killed with -9")
    os.kill(runs_of(out)[0], signal.SIGKILL)
    time.sleep(1)
    await_(lambda: runs_of(out) and learning(out), "a run that learns again")
    tell("the driver is killed with -9")
    driver.kill()
    driver.wait()
    gone = time.monotonic()
    await_(lambda: not runs_of(out), "the end of all runs")
    tell(f"its runs saved and ended within {time.monotonic() - gone:.1f} s; the same command again")
    driver = subprocess.Popen(command(out, "--on", "ray"), stdout=subprocess.PIPE, text=True)
    said, _ = driver.communicate(timeout=PATIENCE)
    runs = json.loads(said)
    tell(f"the grid ends with code {driver.returncode}: {[run['state'] for run in runs]}")
    cluster.shutdown()
    return driver


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="a folder that is kept; what is done is used")
    given = parser.parse_args()
    if given.work is not None:
        sys.exit(bool(compare(given.work)))
    with tempfile.TemporaryDirectory(prefix="nacre-ray-") as folder:
        faults = compare(Path(folder))
    sys.exit(bool(faults))


def compare(work: Path) -> list[str]:
    """Carry out both grids in a folder; return and print what differs."""
    from killing import digest

    whole, out = work / "whole", work / "grid"
    undisturbed(whole)
    driver = disturbed(out)
    runs = sorted(path.parent for path in whole.glob("*/*/metrics.json"))
    faults = [] if driver.returncode == 0 else [f"the grid ended with {driver.returncode}"]
    faults += [
        f"{run.name}: other tensors or metrics"
        for run in runs
        # Losses in the events are means since the last start.
        if any(
            not name.endswith("events.jsonl")
            for name, _ in digest(run).items() ^ digest(out / run.relative_to(whole)).items()
        )
    ]
    left = [*out.rglob(".*"), *out.rglob("resume.safetensors")]
    faults += [f"left over: {path}" for path in left]
    faults += [f"alive: {one}" for one in processes(str(out))]
    faults += [str(path) for path in out.rglob("*claim*")]
    starts = sum(len(json.loads(path.read_text())["starts"]) for path in out.rglob("run.json"))
    same = len(runs) - sum("other tensors" in fault for fault in faults)
    print(f"{same} of {len(runs)} runs ended bit for bit as undisturbed, in {starts} starts")
    for fault in faults:
        print(f"  fault: {fault}")
    return faults


if __name__ == "__main__":
    main()
