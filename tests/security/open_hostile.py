"""Opens hostile files, each in a watched process, and writes the results as JSON.

    python open_hostile.py WORLD JOBS RESULTS

All libraries are imported once; a process per job is forked from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 60
SRC = Path(__file__).parents[2] / "src"


def prepare(world: Path) -> None:
    """Import the libraries that models need, so that jobs are short."""
    import torch

    torch.set_num_threads(1)
    from models.conftest import import_foreign

    if import_foreign():
        import segmentation_models_pytorch
        import timm  # noqa: F401
        import torchvision.models.segmentation  # noqa: F401

        segmentation_models_pytorch.encoders  # noqa: B018
    import transformers

    transformers.AutoModelForSemanticSegmentation  # noqa: B018
    import nacre.cli
    import nacre.export.onnx_file
    import nacre.predict.files
    import nacre.runs.evaluate
    import nacre.runs.learn

    for name in ("ours", "segformer"):  # libraries import parts of themselves when they are used
        nacre.load(world / f"{name}.safetensors", device="cpu")


def command_line(command: str, model: str, out: Path) -> list[str]:
    """Return the arguments of a command that opens a model."""
    learn = ["learn", "data", "--start", model, "--out", out / "new", "--set", "train.iterations=1"]
    known: dict[str, list[Any]] = {
        "predict": ["predict", model, "image.png", "--out", out / "seen"],
        "history": ["history", model],
        "export": ["export", model, "--out", out / "model.onnx"],
        "learn": learn,
        "eval": ["eval", model, "--root", "data"],
        "serve": ["serve", model, "--port", "0"],
        "hub": ["predict", model, "image.png", "--out", out / "seen"],
    }
    return [str(one) for one in known[command]]


def run_job(job: dict[str, Any], world: Path, out: Path) -> int:
    """Run a job; return the exit code."""
    from nacre.errors import NacreError

    try:
        if job["command"] in MISDEEDS:
            MISDEEDS[job["command"]](world)
        elif job["command"] == "load":
            import nacre

            nacre.load(job["model"], device="cpu")
        elif job["command"] == "config":  # a user's own config, which may name repositories
            from nacre.models.build import build_network, read_model_config

            build_network(read_model_config(job["config"]), 2, 32)
        else:
            import nacre.cli

            sys.argv = ["nacre", *command_line(job["command"], job["model"], out)]
            nacre.cli.main()
    except NacreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def connect(world: Path) -> None:
    with socket.socket() as one, contextlib.suppress(OSError):
        one.connect(("127.0.0.1", 9))


def run_file(world: Path) -> None:
    path = world / "here" / "evil_factory.py"
    exec(compile("x = 1", str(path), "exec"), {})


def import_here(world: Path) -> None:
    sys.path.insert(0, str(world / "here"))
    __import__("evil_package")


MISDEEDS: dict[str, Callable[[Path], Any]] = {
    "exec": run_file,
    "import": import_here,
    "curious": lambda world: __import__("this"),
    "write": lambda world: (world / "mark").write_text("x"),
    "mkdir": lambda world: (world / "escaped").mkdir(),
    "socket": connect,
    "process": lambda world: subprocess.run(["true"], check=False),
    "system": lambda world: os.system("true"),
    "read": lambda world: (world / "traps" / "bomb.pth").read_bytes(),
    "pickle": lambda world: pickle.loads((world / "traps" / "bomb.pth").read_bytes()),
}
"""Actions that the watch must report."""


def watched(job: dict[str, Any], world: Path, out: Path) -> None:
    """Run a job in this process, watched; never return."""
    from security.audit import Watch
    from security.world import World

    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(10 * SECONDS)
    said = os.open(out / "said", os.O_WRONLY | os.O_CREAT)
    log = os.open(out / "audit", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, target in ((1, said), (2, said), (0, os.open(os.devnull, os.O_RDONLY))):
        os.dup2(target, number)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
    os.chdir(world / "here")
    roots = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    Watch(
        report=lambda line: os.write(log, (line[:500] + "\n").encode(errors="replace")) and None,
        code=[SRC, *(Path(one) for one in roots)],
        writable=[out, world / "cache", world / "here" / "data" / "nacre-index", Path("/dev")],
        traps=World(world).forbidden,
        ports=job["ports"],
    ).begin()
    code = run_job(job, world, out)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(job: dict[str, Any], world: Path, out: Path) -> dict[str, Any]:
    """Run a job in a process; return its result."""
    out.mkdir(parents=True)
    child = os.fork()
    if not child:
        try:
            watched(job, world, out)
        finally:
            os._exit(71)
    _, status, used = os.wait4(child, 0)
    reported = (out / "audit").read_text() if (out / "audit").exists() else "the hook never began"
    return {
        "name": job["name"],
        "code": os.waitstatus_to_exitcode(status),
        "reported": sorted(set(reported.splitlines())),
        "said": (out / "said").read_text(errors="replace") if (out / "said").exists() else "",
        "memory": used.ru_maxrss * 1024,
        "seconds": used.ru_utime + used.ru_stime,
    }


def main() -> None:
    world, jobs, results = (Path(one) for one in sys.argv[1:])
    prepare(world)
    with results.open("w") as file:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        for i, job in enumerate(json.loads(jobs.read_text())):
            done = run(job, world, results.parent / f"job-{i}") | {"before": memory}
            file.write(json.dumps(done) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
