"""Exported models against torch, and the local server with concurrent requests.

    python benchmarks/export.py

The same images go through torch and through onnxruntime with one thread each. The server answers
over loopback; its requests are compared with calls in the same process.
"""

from __future__ import annotations

import http.client
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from measuring import Row, command, take_turns
from nacre.evaluation.predictor import Predictor
from nacre.export.graph import ImageToClasses, to_onnx
from nacre.export.onnx_file import noise_image
from nacre.export.onnx_model import Metadata, OnnxModel, write_metadata
from nacre.export.server import ModelServer
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig

CLASSES = 21
REQUESTS = 16


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return times of onnxruntime and of the server as ratios."""
    backbone, side = ("tiny", 64) if tiny else ("lite0", 512)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as onnxruntime has, so that processor time means the same for both
    try:
        return measure_alone(backbone, side, tiny, rounds)
    finally:
        torch.set_num_threads(threads)


def measure_alone(backbone: str, side: int, tiny: bool, rounds: int) -> list[Row]:
    torch.manual_seed(0)
    config = DeepLabConfig(backbone=backbone, decoder_channels=8 if tiny else 256)
    network = build_network(config, CLASSES, side).eval()
    image = noise_image((side, side))
    with tempfile.TemporaryDirectory() as folder:
        model = OnnxModel(write_file(network, Path(folder)), threads=1)
        row = against_torch(network, model, image, rounds)
        return [row, *served(model, noise_image((side // 2, side // 2)), rounds)]


def write_file(network: torch.nn.Module, folder: Path) -> Path:
    graph = to_onnx(ImageToClasses(network))
    del graph.graph.output[1]
    names = ["background", *map(str, range(1, CLASSES))]
    said = Metadata(names, [(0, 0, 0)] * CLASSES, [CLASSES], [], 512, "full", "fp32")
    write_metadata(graph, said)
    file = folder / "model.onnx"
    file.write_bytes(graph.SerializeToString())
    return file


def against_torch(network, model: OnnxModel, image, rounds: int) -> Row:
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]

    @torch.inference_mode()
    def in_torch() -> None:
        Predictor(network).classes(batch)

    jobs = {"torch": in_torch, "fp32": lambda: model.classify(image)}
    for job in jobs.values():
        job()
    seconds = take_turns(jobs, rounds, time.process_time)
    ratio = seconds["torch"] / seconds["fp32"]
    return Row("torch's time / that of onnxruntime, fp32", ratio, behind=seconds)


def served(model: OnnxModel, image: np.ndarray, rounds: int) -> list[Row]:
    """Return what requests cost beside calls, one by one and four at a time."""
    height, width = image.shape[:2]
    with ModelServer([("model", model)], ("127.0.0.1", 0), at_once=2) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        port = server.server_address[1]
        path = f"/classify?height={height}&width={width}"
        body = image.tobytes()
        jobs = {
            "calls": lambda: [model.classify(image) for _ in range(REQUESTS)],
            "requests": lambda: [ask(port, path, body) for _ in range(REQUESTS)],
            "four at a time": lambda: at_once(port, path, body),
        }
        for job in jobs.values():  # the first of each loads and allocates
            job()
        seconds = take_turns(jobs, rounds, time.perf_counter)
        server.shutdown()
        thread.join()
    return [
        Row(
            f"server, {how}: its time / that of calls",
            seconds[how] / seconds["calls"],
            behind={how: seconds[how], "calls": seconds["calls"]},
        )
        for how in ("requests", "four at a time")
    ]


def ask(port: int, path: str, body: bytes) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", path, body)
    found = connection.getresponse().read()
    connection.close()
    return found


def at_once(port: int, path: str, body: bytes) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ask(port, path, body), range(REQUESTS)))


if __name__ == "__main__":
    command(measure, __doc__, rounds=3)
