"""Adding classes to a model that exists, without its images and labels."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import nacre
from nacre.data.folder import is_for_testing
from nacre.data.scenes import Scenes, ScenesConfig
from nacre.errors import NacreError
from nacre.labels.mapping import rows_for_loss
from nacre.losses.softmax import fused_losses
from nacre.methods import base, find_method
from nacre.models.io import find_model, load_model
from nacre.runs.learn import describe, learn_config, learn_in_folder, open_step
from nacre.runs.records import LearnMetrics, Measured
from nacre.runs.run import run_scenario
from nacre.training.config import build_config, default_method, find_ground
from nacre.training.events import Trained, read_events
from nacre.training.presets import Fit, fitted_values
from nacre.utils.signals import Interrupted
from partial_data import LABELS, write_folder
from tiny_runs import StopAfter, tiny_config

WORLD = ScenesConfig(train=40, val=12, size=32, seed=3)
FROZEN = {"freeze": ["backbone", "batch_norm"]}
PETS, BIRDS, FISH = ["pearl", "starfish"], ["crate"], ["coral"]
TINY = {
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32, "crop": "plain", "views": None},
    "train": {
        "iterations": None,
        "epochs": 1,
        "batch_size": 8,
        "lr": 0.05,
        "incremental_lr": 0.01,
        "optimizer": "sgd",
        "weight_decay": 1e-4,
        "lr_schedule": "poly",
        "warmup_iterations": 0,
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for name, classes in (("pets", PETS), ("birds", BIRDS), ("fish", FISH)):
        write_folder(root / name, classes, world=WORLD)
    write_folder(root / "all", [*PETS, *BIRDS, *FISH], world=WORLD)
    return root


@pytest.fixture(scope="module")
def pets(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "pets"
    nacre.learn(data / "pets", out=out, config=TINY)
    return out


def config_of(*folders, start=None, **values):
    data = {"data": list(map(str, folders)), "start": start and str(start)}
    return learn_config(overrides={**data, **values})


def learning(folders, out, start=None, should_stop=lambda: False, **values):
    folders = folders if isinstance(folders, list) else [folders]
    step = open_step(config_of(*folders, start=start, **TINY | values))

    def learn():
        return learn_in_folder(step, out, should_stop=should_stop)

    learn.step, learn.data, learn.num_images = step, step.tests.data, step.num_images
    return learn


def tensors(path):
    network, _, state = load_model(find_model(path))
    return {**network.state_dict(), **state}


def same_tensors(one, other):
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_first_model_and_a_class_more(pets, data, tmp_path):
    model = nacre.load(pets)
    assert model.classes == ("background", *PETS)
    grown = model.learn(data / "birds", out=tmp_path / "birds", config=TINY)
    assert grown.classes == ("background", *PETS, *BIRDS)
    assert [entry["classes"] for entry in grown.info.history] == [PETS, BIRDS]
    assert grown.info.history[1]["data"] == ["birds"]
    assert grown.info.history[1]["hidden"] == {"birds": PETS}
    assert grown.info.steps == [3, 1]
    metrics = json.loads((tmp_path / "birds" / "metrics.json").read_text())
    assert set(metrics["iou"]) == set(BIRDS), "birds/ labels birds only"
    assert set(metrics["agreement"]["iou"]) <= set(PETS)
    assert metrics["agreement"]["images"] > 0
    once_more = grown.learn(data / "fish", out=tmp_path / "fish", config=TINY)
    assert once_more.classes == ("background", *PETS, *BIRDS, *FISH)
    assert len(once_more.info.history) == 3


def test_steps_are_those_of_a_scenario_run_bit_for_bit(pets, data, tmp_path):
    scenario = tmp_path / "scenario.yaml"
    steps = [PETS, BIRDS, FISH]
    scenario.write_text(f"data: folder\nsetup: overlapped\nsteps: {json.dumps(steps)}\n")
    values = {"scenario": str(scenario), "data": {"root": str(data / "all")}, **TINY}
    values |= {
        "method": {"name": "mib", "weight": 100, **FROZEN},
        "labels": {"border": "ignored", "unseen": "background"},
    }
    run_scenario(build_config(overrides=values), tmp_path / "run")
    same_tensors(tmp_path / "run" / "step-0", pets)
    learning(data / "birds", tmp_path / "birds", start=pets)()
    same_tensors(tmp_path / "run" / "step-1", tmp_path / "birds")
    learning(data / "fish", tmp_path / "fish", start=tmp_path / "birds")()
    same_tensors(tmp_path / "run" / "step-2", tmp_path / "fish")


CPU, LARGE = ("cpu", 0), ("cuda", 24 << 30)


@pytest.mark.parametrize("machine", [CPU, LARGE])
@pytest.mark.parametrize("images", [1, 3, 10, 300, 10_000, 1_000_000])
def test_the_length_follows_from_the_number_of_images_within_bounds(machine, images):
    fit = Fit(*machine, images)
    first, later = (fitted_values(fit, ground, "duo") for ground in ("weights", "own"))
    updates = [one["train"]["iterations"] for one in (first, later)]
    assert 100 <= updates[1] <= updates[0] <= (800 if machine is CPU else 8_000)
    assert first["images"]["crop_size"] == (160 if machine is CPU else 512)
    assert "crop_size" not in later["images"], "it is the start model's"


def test_an_external_network_keeps_its_backbone_or_has_its_gradients_clipped():
    apart = fitted_values(Fit(*CPU, 10), "other", "mib")
    assert apart["method"]["freeze"] == ["backbone", "batch_norm"]
    assert apart["train"]["incremental_lr"] == 0.001
    assert "grad_clip_norm" not in apart["train"]
    whole = fitted_values(Fit(*CPU, 10, has_backbone=False), "other", "mib")
    assert whole["method"]["freeze"] == ["batch_norm"]
    assert whole["train"]["grad_clip_norm"] == 1
    assert "method" not in fitted_values(Fit(*CPU, 10), "other", "ledger"), "it has its own parts"


@pytest.mark.parametrize(
    ("is_start", "model", "method"),
    [
        (False, {}, "mib"),
        (False, {"weights": "imagenet"}, "duo"),
        (False, {"decoder": "stages"}, "ledger"),
        (False, {"backbone": "tiny"}, "mib"),
        (False, {"backbone": "timm/convnext_tiny", "weights": "imagenet"}, "duo"),
        (False, {"kind": "external", "library": "smp", "name": "x"}, "mib"),
        (True, {"decoder": "stages", "grid_stride": 16}, "ledger"),
        (True, {"decoder": "light", "grid_stride": 8}, "duo"),
        (True, {"decoder": "light", "grid_stride": None}, "mib"),
        (True, {"kind": "external"}, "ledger"),
    ],
)
def test_the_default_method_fits_the_network_that_a_step_builds_on(is_start, model, method):
    ground = find_ground(model, is_start=is_start)
    assert default_method(model, ground) == method
    assert default_method(model, ground, "paper") == "mib"


def test_a_first_model_is_duo_with_the_recipe_of_small_unless_a_preset_is_of_the_paper(data):
    config = config_of(data / "pets")
    assert (config.method.name, config.model.decoder, config.train.optimizer) == (
        "duo",
        "light",
        "adamw",
    )
    assert config.images.views == 4
    nothing = config_of(data / "pets", model={"weights": "none"})
    assert (nothing.method.name, nothing.train.optimizer) == ("mib", "sgd")
    values = {"data": [str(data / "pets")], "model": {"weights": "imagenet"}}
    assert learn_config(preset="paper", overrides=values).method.name == "mib"


def test_the_folder_of_another_command_is_left_as_it_is(pets, data, tmp_path):
    """The config of a run that had learned nothing was overwritten."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("scenario: scenes/4-4/overlapped\n")
    before = {path: path.read_bytes() for path in (run / "config.yaml", pets / "config.yaml")}
    with pytest.raises(NacreError, match="holds a run of a scenario"):
        learning(data / "birds", run, start=pets)()
    with pytest.raises(NacreError, match="holds a step of `nacre learn`"):
        run_scenario(tiny_config(), pets)
    assert {path: path.read_bytes() for path in before} == before


def test_leftovers_of_killed_processes_are_removed(pets, data, tmp_path):
    out = tmp_path / "step"
    learning(data / "birds", out, start=pets)()
    names = {path.name for path in out.iterdir()}
    for left in (".metrics.json.abcd_123.part", "resume.safetensors"):
        (out / left).touch()
    learning(data / "birds", out, start=pets)()
    assert {path.name for path in out.iterdir()} == names


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("metrics.json", "[]", "input should be"),
        ("metrics.json", '{"step": 0}', "iou: missing"),
        ("metrics.json", '{"iou": {"cat": 7}}', "iou.cat: input should be less than or equal to 1"),
        ("metrics.json", '{"tests": 1.5}', "tests: input should be a valid list"),
        ("seen.json", '{"classes": [-1]}', "classes.0: input should be a valid string"),
    ],
)
def test_files_of_a_step_are_checked_where_they_are_read(name, content, reason, tmp_path):
    kinds = {"metrics.json": LearnMetrics, "seen.json": Measured}
    (tmp_path / name).write_text(content)
    with pytest.raises(NacreError, match=f"{name} is not nacre's: .*{reason}"):
        kinds[name].load(tmp_path / name)


def test_the_recipe_fits_the_requested_device(data, monkeypatch):
    """A machine with a GPU chose the GPU's recipe for a step on the CPU."""

    def choose(name):
        return torch.device("cuda" if name == "auto" else name)

    monkeypatch.setattr("nacre.runs.learn.choose_device", choose)
    config = config_of(data / "pets", train={"device": "cpu"})
    assert (config.images.crop_size, config.train.iterations) == (160, 100)


def test_options_override_data_start_and_tests_in_a_file(pets, data, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(f"data: [{data / 'fish'}]\nstart: {pets}\ntests: [{data / 'all'}]\n")
    config = learn_config(file=file, overrides={"seed": 3})
    assert config.data == (data / "fish",)
    assert config.start == pets / "model.safetensors"
    assert config.tests == (data / "all",)
    other = learn_config(file=file, overrides={"data": [str(data / "birds")]})
    assert (other.data, other.start) == ((data / "birds",), config.start)


@pytest.mark.parametrize("after", [2, 5, 9])
def test_an_interrupted_step_ends_bit_for_bit_where_an_uninterrupted_one_does(
    pets, data, tmp_path, after
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    longer = {"start": pets, "train": {**TINY["train"], "epochs": 5}}
    learning(data / "birds", whole, **longer)()
    try:
        learning(data / "birds", cut, should_stop=StopAfter(after), **longer)()
    except Interrupted:
        assert not (cut / "metrics.json").exists()
    learning(data / "birds", cut, **longer)()
    same_tensors(whole, cut)
    assert (whole / "metrics.json").read_bytes() == (cut / "metrics.json").read_bytes()
    events = [
        [(e.step, e.iteration) for e in read_events(run / "events.jsonl") if isinstance(e, Trained)]
        for run in (whole, cut)
    ]
    assert events[0] == events[1]
    before = (cut / "model.safetensors").stat().st_mtime_ns
    learning(data / "birds", cut, **longer)()
    assert (cut / "model.safetensors").stat().st_mtime_ns == before, "it is not learned again"


def hidden(step):
    """Return the channels that background may be, by data set; None if the loss implies them."""
    spec, method = step.step, step.step.config.method
    hides_old = find_method(method.name).hides_old(method)
    rows = rows_for_loss(spec.data.mappings, spec.growth, hides_old=hides_old)
    return None if rows is None else rows[:, 0].tolist()


def test_several_partly_labeled_sets_teach_one_model(data, tmp_path):
    step = learning([data / "pets", data / "birds"], tmp_path / "both")
    assert step.data.channels.names == ("background", *PETS, *BIRDS)
    assert hidden(step) == [[True, False, False, True], [True, True, True, False]]
    metrics = step()
    assert set(metrics["iou"]) == {*PETS, *BIRDS}
    assert [test["name"] for test in metrics["tests"]] == ["pets", "birds"]


@pytest.mark.parametrize("method", ["lwf-mc", "lwf-mc-c", "ssul", "dkd", "star", "plop", "ewf"])
def test_methods_of_any_kind_learn_with_hidden_classes(data, tmp_path, method):
    step = learning([data / "pets", data / "birds"], tmp_path / "both", method={"name": method})
    assert hidden(step) is not None
    step()
    again = write_folder(tmp_path / "again", ["pearl", "coral"], world=WORLD)
    step = learning(again, tmp_path / "next", start=tmp_path / "both", method={"name": method})
    old_may_hide = [[True, False, True, True, False]]
    assert hidden(step) == (old_may_hide if method == "ewf" else None)
    assert step()["classes"] == ["background", *PETS, *BIRDS, *FISH]


def test_classes_that_are_labeled_again_are_not_hidden(pets, data, tmp_path):
    both = write_folder(tmp_path / "both", ["pearl", "crate"], world=WORLD)
    step = learning(both, tmp_path / "out", start=pets)
    assert step.data.new == ("crate",)
    assert hidden(step) == [[True, False, True, False]]
    step()


@pytest.mark.parametrize(("method", "variant"), [("ft", "plain"), ("mib", "unbiased")])
def test_a_folder_that_labels_a_known_class_does_not_change_the_loss_of_a_method(
    pets, tmp_path, method, variant, monkeypatch
):
    seen = set()

    def watched(*given, **options):
        seen.add(options["ce"])
        return fused_losses(*given, **options)

    monkeypatch.setattr(base, "fused_losses", watched)
    both = write_folder(tmp_path / "both", ["pearl", "crate"], world=WORLD)
    learning(both, tmp_path / "out", start=pets, method={"name": method})()
    assert seen == {variant}


def test_a_class_that_is_named_but_never_labeled_is_hidden(pets, data, tmp_path):
    folder = tmp_path / "birds"
    shutil.copytree(data / "birds", folder)
    label = LABELS["crate"]
    (folder / "classes.yaml").write_text(f"classes: {{1: pearl, {label}: crate}}\n")
    step = learning(folder, tmp_path / "out", start=pets)
    assert step.data.sets[0].unlabeled == ("pearl",)
    assert hidden(step) is None, "all old classes hide, as in the paper"


@pytest.mark.parametrize("count", [1, 3])
def test_few_images_and_one_image_make_a_step(pets, tmp_path, count):
    index = Scenes(WORLD).index("train")
    pairs = zip(index.names, index.labels, strict=True)
    # Without lists the names decide which images are for testing.
    names = [n for n, held in pairs if LABELS["crate"] in held and not is_for_testing(f"train-{n}")]
    few = tmp_path / "few"
    write_folder(few, ["crate"], world=WORLD, train=names[:count], val=[], lists=False)
    step = learning(few, tmp_path / "out", start=pets)
    metrics = step()
    assert step.num_images == count
    assert metrics["iou"] == {}, "there is no test image"
    assert metrics["agreement"]["images"] == count


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "pets"}, "pets has no new class: the model already knows pearl, starfish"),
        ({"classes": ["bird"]}, r"--classes bird: no data set names this class.*classes: crate"),
        ({"rename": {"Katze": "cat"}}, "--rename Katze=cat: no data set names a class 'Katze'"),
        ({"rename": {"crate": "Pearl"}}, "'Pearl' resembles the class 'pearl'"),
        ({"rename": {"crate": "pearls"}}, "'pearls' resembles the class 'pearl'"),
        ({"rename": {"crate": "background"}}, "cannot be renamed to 'background'"),
        ({"method": {"name": "joint"}}, "'joint' learns all classes at once"),
        ({"images": {"crop_size": 64}}, "images.crop_size: 64, but the start model was trained at"),
        ({"model": {"backbone": "resnet18"}}, "model.backbone: 'resnet18', but the start model's"),
    ],
)
def test_a_step_that_cannot_be_learned_is_one_sentence(pets, data, tmp_path, change, message):
    folder = data / change.pop("data", "birds")
    with pytest.raises(NacreError, match=message):
        learning(folder, tmp_path / "out", start=pets, **change)
    assert not (tmp_path / "out").exists()


def test_a_similar_name_can_be_declared_new_or_the_same(pets, data, tmp_path):
    renamed = {"crate": "Pearl"}
    step = learning(data / "birds", tmp_path / "a", start=pets, rename=renamed, new=["Pearl"])
    assert step.data.new == ("Pearl",)
    with pytest.raises(NacreError, match="has no new class"):
        learning(data / "birds", tmp_path / "b", start=pets, rename={"crate": "pearl"})


def test_a_data_set_that_labels_nothing_and_an_empty_test_folder(pets, data, tmp_path):
    folder = tmp_path / "blank"
    shutil.copytree(data / "birds", folder)
    for path in (folder / "masks").iterdir():
        Image.new("L", (32, 32)).save(path)
    with pytest.raises(NacreError, match="blank labels nothing"):
        learning(folder, tmp_path / "out", start=pets)
    with pytest.raises(NacreError, match="--test blank labels nothing: no mask"):
        learning(data / "birds", tmp_path / "out", start=pets, tests=[str(folder)])


def test_black_and_white_masks_say_what_to_write_in_classes_yaml(pets, data, tmp_path):
    folder = tmp_path / "white"
    shutil.copytree(data / "birds", folder)
    (folder / "classes.yaml").write_text("classes: {1: animal}\n")
    for path in (folder / "masks").iterdir():
        mask = Image.new("L", (32, 32))
        mask.paste(255, (0, 0, 9, 9))
        mask.save(path)
    remedy = "if 255 is animal, write `classes: {255: animal}` in classes.yaml"
    with pytest.raises(NacreError, match=f"^white labels nothing: .*{remedy}"):
        learning(folder, tmp_path / "out", start=pets)
    with pytest.raises(NacreError, match=f"^--test white labels nothing: .*{remedy}"):
        learning(data / "birds", tmp_path / "out", start=pets, tests=[str(folder)])


def test_another_folder_start_or_recipe_is_refused(pets, data, tmp_path):
    out = tmp_path / "birds"
    learning(data / "birds", out, start=pets)()
    with pytest.raises(NacreError, match=r"another config .*seed: 1 -> 2"):
        learning(data / "birds", out, start=pets, seed=2)()
    learning(data / "fish", tmp_path / "fish", start=out)()
    refusals: list[tuple[tuple[str, object, tuple[str, ...]], str]] = [
        (("birds", None, ()), rf"birds was learned with --start {pets}\S*; give the same options"),
        (
            ("birds", pets, ("fish",)),
            "birds was learned without --test, not with --test fish; give the same options",
        ),
        (("fish", pets, ()), r"birds contains the model learned from birds \(.*\); choose another"),
    ]
    for (name, start, tests), sentence in refusals:
        with pytest.raises(NacreError, match=sentence):
            learning(data / name, out, start=start, tests=[str(data / test) for test in tests])()


def test_a_start_model_that_has_changed_is_named(pets, data, tmp_path):
    start = tmp_path / "pets"
    shutil.copytree(pets, start)
    learning(data / "birds", tmp_path / "birds", start=start)()
    learning(data / "pets", tmp_path / "again", seed=3)()
    shutil.copy(tmp_path / "again" / "model.safetensors", start)
    with pytest.raises(NacreError, match=r"safetensors has changed since \S*birds was learned"):
        learning(data / "birds", tmp_path / "birds", start=start)()


@pytest.mark.parametrize("classes", ["{1: pearl, 4: pearl}", "[crate, pearl, crate]"])
def test_a_class_that_is_named_twice_is_one_sentence(pets, data, tmp_path, classes):
    folder = tmp_path / "twice"
    shutil.copytree(data / "birds", folder)
    (folder / "classes.yaml").write_text(f"classes: {classes}\n")
    with pytest.raises(NacreError, match=r"class '(pearl|crate)' is named twice"):
        learning(folder, tmp_path / "out", start=pets)
    both = write_folder(tmp_path / "both", ["crate", "coral"], world=WORLD)
    with pytest.raises(NacreError, match="--rename gives two classes the name 'crate'"):
        learning(both, tmp_path / "out", start=pets, rename={"coral": "crate"})
    assert not (tmp_path / "out").exists()


def test_a_start_of_another_kind_is_one_sentence(data, tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    save_file({"conv.weight": torch.zeros(3, 3)}, foreign)
    (tmp_path / "empty").mkdir()
    for start in (foreign, tmp_path / "empty", tmp_path / "nowhere", data / "birds"):
        with pytest.raises(NacreError) as error:
            learning(data / "birds", tmp_path / "out", start=start)
        assert str(start) in str(error.value)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_step_is_described(pets, data):
    step = open_step(config_of(data / "birds", start=pets))
    assert step.config.model.backbone == "tiny"
    assert step.config.images.crop_size == 32
    method, network, length = describe(step)
    assert method == "method MiB; frozen: backbone, batch norm"
    assert network == "the start model's network, crops of 32 pixels, batches of 16 on cpu"
    assert re.match(r"100 updates, each of the \d+ images about \d+ times", length)
    first = describe(open_step(config_of(data / "birds")))
    assert first[0] == "method Duo", "nothing is before step 0"
    assert first[1].startswith("lite0 from ImageNet's weights, crops of 160 pixels")


def test_an_option_of_another_method_is_refused_with_the_name_of_the_default_method(data):
    with pytest.raises(NacreError, match=r"method\.pod: unknown.*\(of duo, as no method is"):
        config_of(data / "birds", method={"pod": 1})
    with pytest.raises(NacreError, match=r"known here: [\w, ]+$"):
        config_of(data / "birds", method={"name": "mib", "pod": 1})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_processes_learn_what_one_does(pets, data, tmp_path):
    script = tmp_path / "learn.py"
    script.write_text(
        "import sys, json, nacre\n"
        "data, start, out, values = sys.argv[1:]\n"
        "nacre.learn(data, start=start, out=out, config=json.loads(values))\n"
    )
    values = {**TINY, "train": {**TINY["train"], "incremental_lr": 1e-3}}
    learning(data / "birds", tmp_path / "one", start=pets, **values)()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [script, data / "birds", pets, tmp_path / "two", json.dumps(values)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launch, *map(str, arguments)], check=True, env=environment)
    a, b = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4)
    one, two = (json.loads((tmp_path / k / "metrics.json").read_text()) for k in ("one", "two"))
    assert one["tests_before"] == two["tests_before"]
    assert one["images"] == two["images"]
