"""`nacre learn`: one step that continues a model, or makes the first one, in a folder of its own.

    config = learn_config(overrides={"data": ["birds"], "start": "models/pets"})
    metrics = learn_in_folder(open_step(config), Path("models/birds"))

Calling it again on the same folder resumes. It reads only the start model and the new data, neither
old images nor old labels.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from torch import nn

from nacre.data import open_source
from nacre.data.folder import FolderConfig
from nacre.data.source import SPLITS, Source
from nacre.data.step_data import (
    LabeledSet,
    LearnData,
    choose_new_classes,
    rename_classes,
    set_name,
)
from nacre.errors import NacreError
from nacre.labels.channels import Channels
from nacre.labels.space import explain_white_label, white_label
from nacre.methods import Step, find_entry, find_method
from nacre.models.build import is_own_network
from nacre.models.io import find_model, load_model, read_info
from nacre.runs.folder import RunFolder
from nacre.runs.steps import Metrics, begin_from, next_step, run_steps
from nacre.runs.testing import LearnTests
from nacre.training.config import LearnConfig, build, read_written, resolve
from nacre.training.events import Observer
from nacre.training.loop import MIN_IMAGES_TO_HOLD_OUT
from nacre.training.presets import fit_to
from nacre.utils.device import choose_device
from nacre.utils.distributed import explain_lost_process, init_distributed

WHOLE = ":all"
"""The end of a test folder's name if its training images are tested, too."""


def learn_config(
    *,
    preset: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    overrides: Mapping[str, object],
    network: nn.Module | None = None,
) -> LearnConfig:
    """Build the config of a step; without a preset it fits the machine and the data.

    Args:
        preset: The name of a preset.
        file: A YAML file.
        assignments: ``a.b=value`` strings of the option --set.
        overrides: Named options, such as `data` and `start`.
        network: The user's network, if the start model's file alone cannot build it.
    """
    written = read_written(file, overrides, assignments)
    if not written.get("data"):
        raise NacreError("no data: give one or more folders with images/, masks/, classes.yaml")
    paths = resolve(LearnConfig, {key: written.get(key) for key in ("data", "start")})
    info, has_backbone = None, True
    if paths.start is not None:
        start = find_model(paths.start)
        written, info = {**written, "start": str(start)}, read_info(start)
        if not is_own_network(info.model):
            has_backbone = "backbone" in load_model(start, network=network)[0].provides
    num_images = sum(len(source.index("train")) for _, source in open_folders(paths.data))
    train = written.get("train")
    device = train.get("device", "auto") if isinstance(train, Mapping) else "auto"
    fit = fit_to(choose_device(str(device)), num_images, has_backbone=has_backbone)
    return build(LearnConfig, written, preset=preset, start=info, fit=fit)


def open_step(config: LearnConfig, network: nn.Module | None = None) -> Step:
    """Open the data and the start model of a step.

    Args:
        config: The config of the step.
        network: The user's network, if the start model's file alone cannot build it.
    """
    dist = init_distributed(config.train.device)
    info = read_info(config.start) if config.start else None
    before = info.channels if info else None
    with explain_lost_process(dist):
        # The main process reads the index first; the others then find it on the disk.
        dist.on_main(lambda: bool(open_learn_data(config, before)))
        data = open_learn_data(config, before)
    images = data.train_dataset()
    about = {
        "data": [dataset.name for dataset in data.sets],
        "folder_images": [len(folder) for folder in images.folders],
        "hidden": {dataset.name: data.training_mapping(dataset).hidden for dataset in data.sets},
        "when": "",
    }
    tests = LearnTests(data, config, network)
    step = next_step(config, info, images, data.channels, about=about, tests=tests)
    if config.start is not None:
        begin_from(step, config.start, network)
    return step


def learn_in_folder(
    step: Step,
    out: Path,
    *,
    observers: Iterable[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Metrics:
    """Learn and test a step of `open_step` in a folder, unless that was done; return its metrics.

    Args:
        step: The step.
        out: The folder.
        observers: Functions that are called with every event.
        should_stop: Function that returns True to stop.
    """
    folder, start = RunFolder(out, one_step=True), step.config.start
    data: LearnData = step.tests.data
    step.should_stop = should_stop
    digest = hashlib.sha256(start.read_bytes()).hexdigest() if start else None
    (metrics,) = run_steps(
        [step],
        folder,
        title=", ".join(dataset.name for dataset in data.sets),
        fingerprint={"start": digest, **data.fingerprint()},
        observers=observers,
    )
    return metrics


def describe(step: Step) -> list[str]:
    """Return lines about the method, the network and the length of a step."""
    config: LearnConfig = step.config
    return [_method_line(config), _network_line(config, step.dist.device.type), _length_line(step)]


def _method_line(config: LearnConfig) -> str:
    method, title = config.method, find_entry(config.method.name).title
    always = ["backbone"] if method.freeze_step_0 and "backbone" not in method.freeze else []
    frozen = [x.replace("_", " ") for x in (*always, *method.freeze)] if config.start else []
    return f"method {title}" + (f"; frozen: {', '.join(frozen)}" if frozen else "")


def _network_line(config: LearnConfig, device: str) -> str:
    model, crop = config.model, config.images.crop_size
    network = "the start model's network"
    if config.start is None:
        weights = {"none": "random weights", "imagenet": "ImageNet's weights"}
        network = f"{getattr(model, 'backbone', model.kind)} from "
        network += weights.get(model.weights, f"the weights {model.weights}")
    return f"{network}, crops of {crop} pixels, batches of {config.train.batch_size} on {device}"


def _length_line(step: Step) -> str:
    method, count = find_method(step.config.method.name), step.num_images
    if not method.learns_by_gradient:
        return "one pass over the images, no updates"
    if method.holds_out and count < MIN_IMAGES_TO_HOLD_OUT:
        few = f"fewer than {MIN_IMAGES_TO_HOLD_OUT} images are too few to train the decoder"
        return f"the ledger in one pass over the images; {few}"
    times = step.iterations * step.sampler.batch_size / max(1, count)
    length = f"{step.iterations:,} updates, each of the {count:,} images about {times:.0f} times"
    length += " (--set train.iterations=… for another length)"
    if method.holds_out:
        first = "first the ledger in one pass over the images, then the decoder"
        return f"{first}: {length}; kept if held-out images gain"
    return length


def open_learn_data(config: LearnConfig, before: Channels | None) -> LearnData:
    """Open the data of a step that continues a model with these channels (None: no model)."""
    sets = rename_classes(open_folders(config.data), config.rename)
    tests = open_tests(config.tests, config.rename)
    _check_names([dataset.name for dataset in (*sets, *tests)])
    for dataset in sets:
        if not dataset.labeled:
            raise NacreError(f"{dataset.name} labels nothing: {_why_unlabeled(dataset)}")
        if not len(dataset.train_index):
            raise NacreError(
                f"{dataset.name} has no training images: without train.txt and val.txt one in five "
                f"is for testing, and so are its {len(dataset.val_index):,}; write both lists"
            )
    new = choose_new_classes(sets, before.names if before else (), config.classes, config.new)
    return LearnData(
        sets=tuple(sets),
        tests=tuple(tests),
        before=before,
        new=new,
        config=config.images,
        seed=config.seed,
        policy=config.labels,
    )


def _why_unlabeled(dataset: LabeledSet) -> str:
    """Return why no mask of a data set holds a pixel of a class."""
    labels = {label for split in SPLITS for each in dataset.index(split).labels for label in each}
    if white_label(dataset.space, labels) is not None:
        return explain_white_label(dataset.space)
    return "no mask holds a pixel of a class"


def open_tests(paths: Sequence[Path], rename: Mapping[str, str]) -> list[LabeledSet]:
    """Open folders for testing; their test images are tested, or all of them for ``NAME:all``."""
    plain = [Path(str(path).removesuffix(WHOLE)) for path in paths]
    datasets = []
    for path, (name, source) in zip(paths, open_folders(plain), strict=True):
        dataset = LabeledSet(name, source, rename, is_whole=path.name.endswith(WHOLE))
        if not dataset.labeled:
            raise NacreError(f"--test {name} labels nothing: {_why_unlabeled(dataset)}")
        if not (len(dataset.val_index) or dataset.is_whole):
            raise NacreError(
                f"--test {name}: none of its images is for testing; to test all of them, give "
                f"{name}{WHOLE}"
            )
        datasets.append(dataset)
    return datasets


def open_folders(paths: Sequence[Path]) -> list[tuple[str, Source]]:
    """Open data folders, each with the name of its folder."""
    names = [set_name(path) for path in paths]
    _check_names(names)
    sources = (open_source(FolderConfig(root=path)) for path in paths)
    return list(zip(names, sources, strict=True))


def _check_names(names: Sequence[str]) -> None:
    """Refuse two data folders of one name."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise NacreError(
            f"two data folders are named {twice[0]!r}; give them different names, so that tables "
            "can tell them apart"
        )
