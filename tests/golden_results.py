"""Results of nacre as a flat JSON of names and digests: `python tests/golden_results.py FILE`.

Tiny networks learn from generated images with one thread, so that the same sources give the same
file on the same machine. Names are `group/what/…`; `golden.py` compares the files of two commits.
Only tensors, masks, texts and numbers are digested: nothing with times, paths or config keys.
"""

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import nacre
from importers.exports import WRITERS
from nacre.data.scenes import ScenesConfig
from nacre.methods import METHODS
from partial_data import LABELS, write_folder

TREE = Path(__file__).resolve().parents[1]
SCENARIO = "scenes/4-2-2/overlapped"
RECIPE: dict[str, Any] = {
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32, "crop": "plain"},
    "train": {"epochs": 3, "batch_size": 8, "lr": 0.005, "incremental_lr": 0.0005, "device": "cpu"},
}
DATA = {"train": 48, "val": 12, "size": 32, "seed": 3}
FORMS: dict[str, dict[str, Any]] = {
    "ewf-plop": {"name": "plop", "fusion": "sqrt", "freeze": ["old_rows"]},
    "ssul-branches": {"branches": True},
}
EXPORTS = ("coco_cvat", "yolo", "labelme", "cvat_xml")

Results = dict[str, Any]


def main(out: Path) -> None:
    """Compute all results and save them."""
    sources = Path(os.environ.get("PYTHONPATH", TREE / "src")).resolve()
    if not Path(nacre.__file__).is_relative_to(sources):
        sys.exit(f"nacre is imported from {nacre.__file__}, not from {sources}: set PYTHONPATH")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # tidy up
    torch.set_num_threads(1)
    # For the processes that are started
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    results: Results = {}
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for make in GROUPS:
            began, group = sum(os.times()[:4]), make.__name__
            found = {f"{group}/{key}": value for key, value in make().items()}
            results |= found
            seconds = sum(os.times()[:4]) - began  # of a processor, with those of processes started
            print(f"{group}: {len(found)} results in {seconds:.0f} s", file=sys.stderr, flush=True)
        os.chdir(TREE)
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


# Results


def methods() -> Results:
    """Learn three steps with every method, and with variants of some."""
    found = {}
    for name in (*METHODS, *FORMS):
        form = {"name": name.partition("-")[0], **FORMS[name]} if name in FORMS else {"name": name}
        found |= _run(Path("runs") / name, method=form)
    return found


def variants() -> Results:
    """Learn with other setups, crops, optimizers and networks."""
    lite0 = {"model": {"backbone": "lite0", "weights": "imagenet", "decoder_channels": 8}}
    adamw = {"optimizer": "adamw", "lr": 0.001, "lr_schedule": "cosine"}
    return {
        **_run(Path("variants/disjoint"), scenario="scenes/4-2-2/disjoint"),
        **_run(Path("variants/adamw"), train=adamw, images={"crop": "deeplab"}),
        **_run(Path("variants/sliding"), images={"crop": "paper", "eval_mode": "sliding"}),
        **_run(Path("variants/micro-batch"), train={"micro_batch": 4}),
        **_run(Path("variants/lite0"), train={"epochs": 1}, whole_model=lite0["model"]),
    }


def exemplars() -> Results:
    """Learn with exemplars."""
    found = _run(Path("exemplars/mib"), memory=8)
    return found | {"mib/which images": Path("exemplars/mib/exemplars.csv").read_text()}


def learn() -> Results:
    """Learn two folders with `nacre learn`; the second labels a known class again.

    The model of lite0 has the defaults of a user's first command.
    """
    config = _config(Path("learn.yaml"))
    for name, classes in {"first": ["pearl", "starfish"], "second": ["pearl", "crate"]}.items():
        write_folder(Path(name), classes, world=ScenesConfig(train=40, val=12, size=32, seed=3))
    _nacre("learn", "first", "--out", "learn/first", "--config", config)
    _nacre("learn", "second", "--start", "learn/first", "--out", "learn/second", "--config", config)
    _nacre("learn", "first", "--out", "learn/lite0", "--set", "train.iterations=3")
    return _learned(Path("learn"))


def networks() -> Results:
    """Teach a network of transformers and a plain module a new class."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    recipe = {**RECIPE, "model": {}}
    torch.manual_seed(0)
    sizes = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "decoder_hidden_size": 8}
    settings = SegformerConfig(id2label={0: "background", 1: "road", 2: "car"}, **sizes)
    segformer = SegformerForSemanticSegmentation(settings)
    nacre.learn("second", start=segformer, out="networks/segformer", config=recipe)
    plain = Plain()
    nacre.learn("second", start=plain, old=["road", "car"], out="networks/plain", config=recipe)
    return _learned(Path("networks"))


class Plain(nn.Module):
    """A network that nacre does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU())
        self.score = nn.Conv2d(6, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the pixels of images."""
        scores: Tensor = self.score(self.body(images))
        return nn.functional.interpolate(scores, images.shape[-2:], mode="bilinear")


def processes() -> Results:
    """Learn with two processes."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = Path("processes/mib")
    config = _config(Path("processes.yaml"), data=DATA)
    run = ["run", SCENARIO, "--method", "mib", "--config", config, "--out", str(out)]
    _python(*launch, "-m", "nacre", *run)
    return _learned(out.parent)


def predictions() -> Results:
    """Predict ten images as a whole and in windows."""
    found = _learned(_model().parent, _model().name)
    images = _images()
    model = nacre.load(_model())
    masks = [model.predict(path).mask for path in images]
    found["whole/masks"] = _digest_arrays(masks)
    found["whole/classes seen"] = len(np.unique(np.concatenate(masks, axis=None)))
    command = ["predict", str(_model()), *map(str, images), "--out", "seen", "--window", "64"]
    _nacre(*command, "--format", "masks,labelme,csv")
    written = sorted(Path("seen").rglob("*.png"))
    found["windows/masks"] = _digest_arrays(np.array(Image.open(path)) for path in written)
    polygons = [json.loads(path.read_text()) for path in sorted(Path("seen").rglob("*.json"))]
    found["windows/polygons"] = _digest(json.dumps([one["shapes"] for one in polygons]))
    with next(Path("seen").glob("*.csv")).open() as file:
        found["windows/shares"] = _digest(json.dumps([row[1:] for row in csv.reader(file)]))
    return found


def onnx() -> Results:
    """Compute class maps with the exported file."""
    import onnxruntime

    _nacre("export", str(_model()), "--out", "model.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession("model.onnx", options, ["CPUExecutionProvider"])
    images = [np.array(Image.open(path).convert("RGB"))[None] for path in _images()]
    name = session.get_inputs()[0].name
    maps = [session.run(["classes"], {name: image})[0] for image in images]
    return {"class maps": _digest_arrays(maps), "classes seen": len(np.unique(np.stack(maps)))}


def imports() -> Results:
    """Import exports of annotation tools."""
    found: Results = {}
    for name in EXPORTS:
        WRITERS[name](Path("exports") / name)
        folder = Path("imports") / name
        _nacre("import", f"exports/{name}", "--to", str(folder))
        masks = sorted((folder / "masks").rglob("*.png"))
        found[f"{name}/masks"] = _digest_arrays(np.array(Image.open(path)) for path in masks)
        found[f"{name}/names"] = " ".join(str(path.relative_to(folder)) for path in masks)
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.txt")]):
            found[f"{name}/{path.name}"] = path.read_text()
    return found


def tables() -> Results:
    """Make tables of the runs of all methods."""
    forms = ("terminal", "csv", "latex")
    found = {f"steps/{form}": _nacre("table", "runs", "--format", form) for form in forms}
    seeing = ("table", str(_model()), "--kind", "classes", "--format", "markdown")
    return found | {"classes/markdown": _nacre(*seeing)}


# Later groups use folders of earlier ones.
GROUPS: tuple[Callable[[], Results], ...] = (
    methods, variants, exemplars, learn, networks, processes, predictions, onnx, imports,
    tables,
)  # fmt: skip


# Helpers


def _recipe(**changes: Any) -> dict[str, Any]:
    """Return the recipe with changed values: `train={"epochs": 1}` changes only that key."""
    made = {key: dict(value) for key, value in RECIPE.items()}
    for key, value in changes.items():
        made[key] = made[key] | value if key in made else value
    return made


def _run(
    out: Path, scenario: str = SCENARIO, whole_model: dict[str, Any] | None = None, **changes: Any
) -> Results:
    """Learn a scenario, by MiB if nothing else is said; return its tensors and figures."""
    config = _recipe(data=DATA, **{"method": {"name": "mib"}, **changes})
    config |= {"model": whole_model} if whole_model else {}
    nacre.run(scenario, out, method=config["method"]["name"], config=config)
    return _learned(out.parent, out.name)


def _config(path: Path, **changes: Any) -> str:
    """Write a config file; return its path."""
    path.write_text(json.dumps(_recipe(**changes)))  # JSON is YAML
    return str(path)


def _python(*arguments: str) -> str:
    """Run Python to its end; return what it printed."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"python {' '.join(arguments)} failed with {done.returncode}:\n{done.stderr}")
    return done.stdout


def _nacre(*arguments: str) -> str:
    """Run a command of nacre to its end; return what it printed."""
    return _python("-m", "nacre", *arguments)


@cache
def _model() -> Path:
    """Learn a model that sees several classes; return its folder."""
    _run(Path("seeing"), train={"epochs": 20, "lr": 0.1})
    return Path("seeing").absolute()


@cache
def _images() -> list[Path]:
    """Write ten images that are larger than those that a network learned from."""
    world = ScenesConfig(train=4, val=10, size=96, seed=5)
    folder = write_folder(Path("large"), list(LABELS), world=world, train=[])
    return sorted((folder / "images").iterdir())


# What is kept of it


def _learned(folder: Path, name: str = "*") -> Results:
    """Return the digests of models and the figures below a folder, by their places in it."""
    found: Results = {}
    for path in sorted(folder.glob(f"{name}/**/model.safetensors")):
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in load_file(path).items():
            parts.setdefault(key.partition(".")[0], {})[key] = value
        place = path.parent.relative_to(folder)
        found |= {f"{place}/{part} tensors": _digest_tensors(parts[part]) for part in sorted(parts)}
    for path in sorted(folder.glob(f"{name}/**/metrics.json")):
        content = json.loads(path.read_text())
        content.pop("conventions")  # config keys
        place = path.parent.relative_to(folder)
        found[f"{place}/metrics"] = json.dumps(content, sort_keys=True)
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_tensors(tensors: dict[str, Tensor]) -> str:
    """Return the sha256 of names, types, shapes and values."""
    whole = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        whole.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def _digest_arrays(arrays: Iterable[np.ndarray[Any, Any]]) -> str:
    """Return the sha256 of types, shapes and values in this order."""
    numbered = {f"{i:04}": torch.from_numpy(one) for i, one in enumerate(arrays)}
    return f"{len(numbered)} x {_digest_tensors(numbered)}"


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
