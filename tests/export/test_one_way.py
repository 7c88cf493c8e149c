"""One way to predict: all commands return the same class map for an image.

The masks of `nacre predict` are compared with the evaluation of tests, with an ONNX file, with
`POST /classify` and with the exported page, for several networks, as a whole and in windows.
"""

import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

from export.page.browser import Browser, find_browser
from local_server import send, serving
from models.test_odd_networks import Patches
from nacre.api.model import Model, load
from nacre.data.dataset import EvalDataset, LabeledImages
from nacre.data.folder import Folder, FolderConfig
from nacre.data.transforms import EvalMode, ImagesConfig
from nacre.errors import NacreError
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.predictor import whole_predictor
from nacre.export.onnx_file import OnnxModel, export_onnx, noise_image
from nacre.export.page import make_page, web_runtime
from nacre.labels.mapping import LabelPolicy, mapping_for_tests
from nacre.models.adapter import Adapter
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.io import ModelInfo
from nacre.models.network import Network
from nacre.predict.files import predict_all
from tiny_runs import tiny_run

Maps = dict[str, Any]
"""Class map by the name of the image."""

CHANNELS, CROP = 5, 96
SAME = 0.999
"""Fraction of an image's pixels with equal classes; rounding decides ties."""


def random_network(name: str, images: list[Tensor]) -> Network:
    """Return a network whose classes are about equally likely."""
    torch.manual_seed(1)
    network: Network
    if name == "light":
        config = DeepLabConfig(backbone="lite0", weights="imagenet", decoder="light")
        config = config.model_copy(update={"decoder_channels": 16})
        network = build_network(config, CHANNELS, CROP)
    elif name == "aspp":
        config = DeepLabConfig(backbone="tiny", decoder_channels=8)
        network = build_network(config, CHANNELS, CROP)
    elif name == "segformer":
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}
        settings = transformers.SegformerConfig(num_labels=CHANNELS, **sizes)
        network = Adapter(transformers.SegformerForSemanticSegmentation(settings))
    else:
        network = Adapter(Patches())
        assert network.alignment == 14
    network.eval()
    with torch.inference_mode():
        means = [network(one[None, :, :224, :224]).scores.mean((0, 2, 3)) for one in images[::3]]
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.out_channels == CHANNELS:
            assert module.bias is not None
            module.bias.data -= torch.stack(means).mean(0)
    return network


def as_model(network: Network) -> Model:
    names = ["background", *"abcd"]
    colors = [(50 * i, 10 * i, 200 - 40 * i) for i in range(CHANNELS)]
    return Model(network, ModelInfo(names, colors, [5], [], {}, CROP, "full", {}))


@pytest.fixture(scope="module")
def photographs(voc_part: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve real images of various sizes, one of them with an EXIF orientation."""
    root, out = voc_part.parent, tmp_path_factory.mktemp("photographs") / "images"
    out.mkdir()
    for name, folder, count in (
        ("voc", voc_part / "VOC2012" / "JPEGImages", 5),
        ("clothing", root / "clothing" / "images", 3),
        ("peanut", root / "peanut" / "images", 2),
        ("cracks", root / "cracks" / "images", 2),
    ):
        if not folder.is_dir():
            pytest.skip(f"no {name} in {root}: set NACRE_TEST_DATA to a folder that has it")
        files = sorted(folder.iterdir())
        for i, path in enumerate(files[:: len(files) // count][:count]):
            with Image.open(path) as image:
                width, height = image.size
                if name == "voc" or i % 2:
                    shutil.copy(path, out / f"{name}-{i}{path.suffix}")
                else:  # lossless, and no side is even
                    odd = (0, 0, width - 1 - width % 2 - 2 * i, height - 1 - height % 2 - 4 * i)
                    image.crop(odd).save(out / f"{name}-{i}.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    with Image.open(out / "voc-0.jpg") as image:
        image.save(out / "voc-0.jpg", exif=turned, quality=95, subsampling=0)
    assert len(list(out.iterdir())) == 12
    return out


def opened(path: Path) -> Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def by_predict(model: Model, images: Path, out: Path) -> Maps:
    predict_all(model.predictor(), model.info.channels, [str(images)], out, ("masks",))
    names = {path.stem: path.name for path in images.iterdir()}
    masks = (out / "masks").iterdir()
    return {names[path.stem]: np.asarray(Image.open(path)) for path in masks}


class ClassMaps:
    """A metric that stores the predicted class maps."""

    def __init__(self) -> None:
        self.maps: list[Any] = []

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        self.maps += [*predicted.cpu().numpy()]

    def merge(self, dist: object) -> None:
        pass

    def compute(self) -> None:
        pass


def by_tests(model: Model, predicted: Maps, images: Path, folder: Path) -> Maps:
    """Return the class maps of the evaluation on a data folder with the predicted masks."""
    (folder / "masks").mkdir(parents=True)
    shutil.copytree(images, folder / "images")
    for name, mask in predicted.items():
        Image.fromarray(mask).save(folder / "masks" / f"{Path(name).stem}.png")
    names = dict(enumerate(model.classes[1:], start=1))
    (folder / "classes.yaml").write_text(yaml.safe_dump({"classes": names}))
    stems = sorted(Path(name).stem for name in predicted)
    for part in ("images", "masks"):  # all but one are test images
        file = next(iter(sorted((folder / part).iterdir())))
        shutil.copy(file, folder / part / f"other{file.suffix}")
    (folder / "train.txt").write_text("other")
    (folder / "val.txt").write_text("\n".join(stems))
    source = Folder(FolderConfig(root=folder))
    mapping = mapping_for_tests(model.info.channels, source.space, LabelPolicy(), names)
    info = model.info
    config = ImagesConfig(
        eval_mode=info.predict_mode, crop_size=info.crop, mirror=info.mirror, edges=info.edges
    )
    whole = config.model_copy(update={"eval_mode": "full"})
    dataset = EvalDataset(LabeledImages(source, stems, mapping, "val"), whole)
    metric = ClassMaps()
    batches = (
        (one[None], target[None]) for one, target in map(dataset.__getitem__, range(len(stems)))
    )
    evaluate(whole_predictor(model.network, config), batches, [metric], torch.device("cpu"))
    by_stem = dict(zip(stems, metric.maps, strict=True))
    return {name: by_stem[Path(name).stem] for name in predicted}


def by_server(model: OnnxModel, images: Path) -> Maps:
    found = {}
    with serving(model) as port:
        for path in images.iterdir():
            body = path.read_bytes()
            head = f"POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
            status, _, answer = send(port, f"{head}\r\n\r\n".encode() + body).partition(b"\r\n\r\n")
            assert b" 200 " in status.splitlines()[0], answer
            found[path.name] = np.asarray(Image.open(io.BytesIO(answer)))
    return found


def check_same(found: Maps, predicted: Maps) -> None:
    assert found.keys() == predicted.keys()
    shares = {name: float((found[name] == predicted[name]).mean()) for name in predicted}
    assert min(shares.values()) >= SAME, shares
    assert {len(np.unique(mask)) for mask in predicted.values()} != {1}, "constant class maps"


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("crop", {}),
        pytest.param("crop", {"mirror": True, "edges": True}, marks=pytest.mark.slow),
        pytest.param("sliding", {}, marks=pytest.mark.slow),
        pytest.param("sliding", {"mirror": True, "edges": True}, marks=pytest.mark.slow),
    ],
)
def test_every_way_gives_the_class_map_of_predict(
    learned: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    mode: EvalMode,
    options: dict[str, bool],
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for i, size in enumerate(((45, 77), (130, 61), (31, 33), (64, 96))):
        Image.fromarray(noise_image(size, i)).save(images / f"{i}.png")
    model = load(learned)
    plain = {path.name: model.predict(path).mask for path in images.iterdir()}
    if mode == model.info.predict_mode and not options:
        request.getfixturevalue("trace_once")
    model = replace(model, info=replace(model.info, predict_mode=mode, **options))
    predicted = by_predict(model, images, tmp_path / "seen")
    changed = any((plain[name] != mask).any() for name, mask in predicted.items())
    assert changed or not options
    check_same(by_tests(model, predicted, images, tmp_path / "data"), predicted)
    check_same({path.name: model.predict(path).mask for path in images.iterdir()}, predicted)
    assert model.export(tmp_path / "model.onnx") == tmp_path / "model.onnx"
    onnx = OnnxModel(tmp_path / "model.onnx", threads=1)
    pixels = {path.name: np.asarray(Image.open(path)) for path in images.iterdir()}
    check_same({name: onnx.classify(one) for name, one in pixels.items()}, predicted)
    check_same(by_server(onnx, images), predicted)


NETWORKS = ("light", "aspp", "ledger", "duo", "segformer", "multiples of 14")
MODES: tuple[EvalMode, ...] = ("crop", "sliding")

Known = tuple[Model, Path, Maps]


@pytest.fixture(scope="module")
def known(
    photographs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, EvalMode], Known]:
    """Return a model in a mode of prediction, its ONNX file, and its masks by `nacre predict`."""
    root, done = tmp_path_factory.mktemp("known"), dict[tuple[str, EvalMode], Known]()
    tensors = [opened(path) for path in sorted(photographs.iterdir())]

    def make(name: str, mode: EvalMode) -> Known:
        if (name, mode) not in done:
            folder = root / f"{name}-{mode}"
            folder.mkdir()
            if name in ("ledger", "duo"):
                values = {"scenario": "scenes/4-4/overlapped", "method": {"name": name}}
                tiny_run(folder / "run", **values, train={"epochs": 3})
                model = load(folder / "run")
            else:
                model = as_model(random_network(name, tensors))
            model = replace(model, info=replace(model.info, predict_mode=mode, crop=CROP))
            predicted = by_predict(model, photographs, folder / "seen")
            export_onnx(model.network, model.info, folder / "model.onnx")
            done[name, mode] = model, folder / "model.onnx", predicted
        return done[name, mode]

    return make


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_real_images_have_one_class_map(
    known: Callable[[str, EvalMode], Known],
    photographs: Path,
    tmp_path: Path,
    name: str,
    mode: EvalMode,
) -> None:
    model, file, predicted = known(name, mode)
    assert len(predicted) == 12
    check_same(by_tests(model, predicted, photographs, tmp_path / "data"), predicted)
    onnx = OnnxModel(file, threads=1)
    check_same(by_server(onnx, photographs), predicted)


@pytest.mark.slow
def test_the_onnx_file_of_a_ledger_does_not_contain_its_sums(
    known: Callable[[str, EvalMode], Known],
) -> None:
    model, file, _ = known("ledger", "crop")
    assert model.path is not None
    assert file.stat().st_size < model.path.stat().st_size / 2


@pytest.fixture(scope="module")
def page(
    known: Callable[[str, EvalMode], Known], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """A page with all networks, open in a browser."""
    find_browser()
    try:
        runtime = web_runtime()
    except NacreError as error:
        pytest.skip(f"the runtime for browsers is not here: {error}")
    files = {(name, mode): known(name, mode)[1] for name in NETWORKS for mode in MODES}
    shown = [(" ".join(key), OnnxModel(file).metadata) for key, file in files.items()]
    out = tmp_path_factory.mktemp("page")
    graphs = [file.read_bytes() for file in files.values()]
    (out / "page.html").write_text(make_page(shown, graphs, runtime))
    browser = Browser(out / "profile")
    try:
        browser.open((out / "page.html").as_uri())
        browser.until("!at('status').textContent.startsWith('Loading')")
        yield browser
    finally:
        browser.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_page_in_a_browser_gives_the_same(
    known: Callable[[str, EvalMode], Known], photographs: Path, page: Browser
) -> None:
    keys = [(name, mode) for name in NETWORKS for mode in MODES]
    found: dict[tuple[str, EvalMode], Maps] = {key: {} for key in keys}
    for path in sorted(photographs.iterdir()):
        page.choose("#files", path)
        page.until(f"shown && shown.name === '{path.name}' && shown.results.size === 1")
        for number, key in enumerate(keys):
            size, text = page.run(
                f"predict({number}, shown.source, shown.width, shown.height).then(result => "
                "[[result.height, result.width], "
                "new TextDecoder().decode(result.classes.map(channel => channel + 48))])"
            )
            found[key][path.name] = np.frombuffer(text.encode(), np.uint8).reshape(size) - 48
    for key, maps in found.items():
        check_same(maps, known(*key)[2])
