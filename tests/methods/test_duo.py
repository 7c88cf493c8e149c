"""Duo: a decoder as MiB learns it, sums as the ledger keeps them, and what both say together."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import nacre
from nacre.cli.app import program
from nacre.data.dataset import LabeledImages, TrainDataset, split_off
from nacre.data.scenes import ScenesConfig
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError
from nacre.labels.channels import from_background
from nacre.methods import METHODS, Batch, duo
from nacre.methods.ledger import Counted, set_origins, soft_confusion
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.io import find_model, load_model, save_model
from nacre.runs.edit import forget_class, forget_step, merge, open_ledger
from nacre.runs.learn import learn_config, learn_in_folder, open_step
from nacre.runs.run import open_scenario, run_scenario
from nacre.training import loop as learn_one_step
from nacre.training.events import Iterated, StepJudged, StepUsable
from nacre.utils.signals import Interrupted
from partial_data import write_folder
from small_steps import OLD, SIDE, GivenStep, random_images
from tiny_runs import tiny_config

DUO = METHODS["duo"]
FROZEN = {"freeze": ["backbone", "batch_norm"], "freeze_step_0": True}
WORLD = ScenesConfig(train=40, val=6, size=32, seed=3)
RECIPE = {
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32, "crop": "plain"},
    "train": {"batch_size": 8, "iterations": 2},
    "labels": {"unlabeled": "background"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    names = ("pearl", "starfish", "crate")
    return {name: write_folder(root / name, [name], world=WORLD) for name in names}


@pytest.fixture(scope="module")
def learned(folders, tmp_path_factory):
    """Learn folders one after another, each as `class` or `class:method`, by duo by default."""
    root, done = tmp_path_factory.mktemp("models"), {}

    def learn(*names):
        if names not in done:
            start = learn(*names[:-1]) if names[1:] else None
            folder, _, method = names[-1].partition(":")
            out = root / "-".join(names).replace(":", "_")
            options = {"method": method or "duo", "config": RECIPE}
            nacre.learn(folders[folder], start=start, out=out, **options)
            done[names] = out
        return done[names]

    return learn


def step_of(batches, num_classes=OLD, held_out=(), **values):
    """A first step of duo whose decoder has not been updated; return method and step."""
    torch.manual_seed(1)
    method = DUO(DUO.Config(**values), from_background(0, num_classes))
    model = method.network_config(DeepLabConfig(backbone="tiny", decoder_channels=8))
    network = build_network(model, num_classes, SIDE).double().eval()
    step = GivenStep(growth=method.growth, network=network, given=batches, held=held_out)
    return method, step


def test_the_decoder_is_that_of_mib_and_the_sums_are_those_of_the_ledger(tmp_path, monkeypatch):
    """Without held-out images, and with updates that are kept."""
    monkeypatch.setattr(DUO, "holds_out", False)
    monkeypatch.setattr(duo, "MIN_GAIN", -1)
    recipe = {"data": {"train": 40}, "scenario": "scenes/4-4/overlapped"}
    methods = {
        "duo": {"name": "duo"},
        "mib": {"name": "mib", **FROZEN},
        "ledger": {"name": "ledger", "grid_stride": 8},
    }
    found = {}
    for name, method in methods.items():
        run_scenario(tiny_config(**recipe, method=method), tmp_path / name)
        found[name] = load_model(find_model(tmp_path / name))
    both, mib, ledger = found.values()
    state = both[0].state_dict()
    for name, value in mib[0].state_dict().items():
        assert torch.equal(state[name], value), name
    for name, value in ledger[2].items():
        assert torch.equal(both[2][name], value), name
    rows = ledger[0].classifier.weight(slice(None))
    assert torch.equal(both[0].ledger.classifier.weight(slice(None)), rows)


def test_scores_are_added_and_unlearned_classes_take_the_probability_of_their_origins():
    _, step = step_of([])
    ledger = step.network.ledger
    ledger.learned[:] = torch.tensor([True, False, True])
    ledger.origins[1] = torch.tensor([0.3, 0.0, 0.7])
    ledger.weight.fill_(2.0)
    images, _ = random_images([0, 1, 2], 0)
    output = step.network(images)
    features, stages = step.network.read(images)
    z, scores = step.network.decode(features, stages).logits, ledger(stages)
    p = z.softmax(1)
    background = p[:, 0] + p[:, 1]  # what it has not learned is background to it
    z = torch.stack([background, 0.3 * background + 0.7 * p[:, 2], p[:, 2]], 1).log()
    z = torch.nn.functional.interpolate(z, scores.shape[-2:], mode="bilinear", align_corners=False)
    assert torch.allclose(output.scores, z + 2 * scores)
    assert step.network.train()(images).combined is None, "updates are made from the logits alone"


def test_origins_are_what_the_decoder_takes_new_classes_for():
    said = torch.tensor([[[0.9, 0.2], [0.0, 0.0]], [[0.1, 0.8], [1.0, 1.0]], [[0.0, 0.0]] * 2])
    targets = torch.tensor([[0, 2, 2, 2], [0, 2, 255, 2]]).repeat_interleave(2, 0)
    found = soft_confusion(said[None], targets[None])
    assert torch.allclose(found[2], torch.tensor([0.65, 1.85, 0.0]).double())
    growth = from_background(2, 3)
    _, step = step_of([], num_classes=3)
    step.growth = growth
    set_origins(step, Counted({}, found))
    expected = torch.tensor([0.26, 0.74, 0.0]).double() + 1e-4
    assert torch.allclose(step.network.ledger.origins[2].double(), expected)
    set_origins(step, Counted({}, torch.zeros(3, 3).double()))
    assert torch.allclose(step.network.ledger.origins[2].double(), expected), "none was seen"


def test_held_out_images_tell_which_classes_the_decoder_has_learned():
    """A decoder that vetoes class 2 on every image, and one that knows class 1 by its label."""
    seen, held = (Batch(*random_images([0, 0, 1, 2], seed)) for seed in (0, 1))
    method, step = step_of([seen], held_out=[held])
    known = {id(seen.images): seen.targets, id(held.images): held.targets}
    network, read = step.network, step.network.read

    def decode(features, stages=()):
        output = type(network).decode(network, features, stages)
        size = output.logits.shape[-1]
        small = decode.targets[:, :: SIDE // size, :: SIDE // size].long()
        wanted = torch.where(small == 2, 0, small)
        output.logits = 60.0 * torch.nn.functional.one_hot(wanted, OLD).movedim(-1, 1).double()
        return output

    def read_and_tell(images):
        decode.targets = known[id(images)]
        return read(images)

    network.decode, network.read = decode, read_and_tell
    method.begin_step(step)
    method.fit(step)
    assert network.ledger.learned.tolist() == [True, True, False]


def test_classes_that_held_out_images_do_not_show_are_judged_by_those_learned_from():
    seen, held = Batch(*random_images([0, 0, 1, 2], 0)), Batch(*random_images([0, 1], 1))
    asked = []

    def batches(name, batch):
        asked.append(name)
        return iter([batch])

    method, step = step_of([])
    step = replace(
        step,
        given=lambda: batches("seen", seen),
        held=lambda: batches("held", held),
    )
    method.begin_step(step)
    method.fit(step)
    assert asked == ["seen", "held", "held", "seen", "held", "held"]


def test_updates_that_gain_nothing_on_held_out_images_are_not_kept():
    seen, held = (Batch(*random_images([0, 0, 1, 2], seed)) for seed in (0, 1))
    method, step = step_of([seen], held_out=[held])
    method.begin_step(step)
    before = {key: value.clone() for key, value in step.network.state_dict().items()}
    with torch.no_grad():
        for one in step.network.decoder.parameters():
            one.normal_()  # what the updates left sees nothing but noise
        step.network.classifier.rows[0].bias[0] += 1000  # and calls all of it background
    method.fit(step)
    assert method.judged.after <= method.judged.before
    assert not method.judged.kept
    assert method.judged.classes == []
    for key, value in step.network.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize(
    ("num_old", "gain", "kept"), [(0, 0.01, True), (2, 0.01, False), (2, 0.03, True)]
)
def test_updates_after_step_0_have_to_gain_two_points(monkeypatch, num_old, gain, kept):
    batch = Batch(*random_images([0, 0, 1, 2], 0))
    method, step = step_of([batch], held_out=[batch])
    method.growth = step.growth = from_background(num_old, OLD)
    means = iter([0.5 + gain, 0.5])
    monkeypatch.setattr(duo, "_mean_iou", lambda step, learned: next(means))
    method.begin_step(step)
    method.fit(step)
    assert method.judged.kept == kept


def test_a_step_of_few_images_leaves_the_decoder_as_it_is(learned):
    before, after = (nacre.load(learned(*names)) for names in (("pearl",), ("pearl", "starfish")))
    assert "judged" not in after.info.history[1]
    head = before.network.decoder.state_dict()
    for key, value in after.network.decoder.state_dict().items():
        assert torch.equal(value, head[key]), key
    assert not after.network.ledger.learned.any()


def test_a_step_without_updates_speaks_of_none(folders, tmp_path):
    recipe = {**RECIPE, "method": {"name": "duo"}}
    seen = []
    config = learn_config(overrides={"data": [str(folders["pearl"])], **recipe})
    learn_in_folder(open_step(config), tmp_path, observers=[seen.append])
    assert not any(isinstance(event, Iterated | StepUsable | StepJudged) for event in seen)
    assert "judged" not in (tmp_path / "metrics.json").read_text()
    assert not nacre.load(tmp_path).network.ledger.learned[1:].any()


def test_a_first_model_is_of_use_before_the_last_one_is_learned(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(learn_one_step, "MIN_IMAGES_TO_HOLD_OUT", 2)

    def learn(out, should_stop=lambda: False, observers=()):
        recipe = {**RECIPE, "method": {"name": "duo"}}
        config = learn_config(overrides={"data": [str(folders["pearl"])], **recipe})
        step = open_step(config)
        return learn_in_folder(step, out, observers=observers, should_stop=should_stop)

    seen = []

    def stop():
        return any(isinstance(event, Iterated) for event in seen)

    with pytest.raises(Interrupted):
        learn(tmp_path / "cut", stop, [seen.append])
    (usable,) = [event for event in seen if isinstance(event, StepUsable)]
    first = find_model(tmp_path / "cut")
    assert str(first) == usable.path
    network = nacre.load(first).network
    assert not network.ledger.learned.any(), "the ledger decides alone"
    images, _ = random_images([0, 1], 0)
    scores = network(images).scores
    assert scores.argmax(1).unique().numel() > 1
    learn(tmp_path / "cut")
    learn(tmp_path / "whole")
    assert find_model(tmp_path / "cut").name == "model.safetensors"
    assert not list((tmp_path / "cut").glob("first.*"))
    same = [load_model(find_model(tmp_path / name)) for name in ("cut", "whole")]
    for key, value in same[0][0].state_dict().items():
        assert torch.equal(value, same[1][0].state_dict()[key]), key


def test_sums_are_those_of_all_images_also_of_the_held_out(tmp_path):
    recipe = {"data": {"train": 80}, "scenario": "scenes/4-4/overlapped"}
    sums = {}
    for method in ({"name": "duo"}, {"name": "ledger", "grid_stride": 8}):
        config = tiny_config(**recipe, method=method)
        assert len(open_scenario(config).image_lists[0]) >= 50
        run_scenario(config, tmp_path / method["name"])
        sums[method["name"]] = open_ledger(tmp_path / method["name"]).sums
    one, other = sums["duo"], sums["ledger"]
    first = one.step == 0
    assert torch.equal(one.count[first], other.count[first])
    assert torch.allclose(one.mean[first], other.mean[first], atol=1e-9)


def test_one_of_ten_images_is_split_off_by_its_name():
    names = [f"{i}" for i in range(400)]

    def split(*folders):
        images = [LabeledImages(None, one, None) for one in folders]
        both = split_off(TrainDataset(images, ImagesConfig(), 0), 10)
        return [[one.names for one in dataset.folders] for dataset in both]

    (kept,), (held,) = split(names)
    assert 20 < len(held) < 60
    assert sorted([*kept, *held]) == sorted(names)
    assert split(names[:200])[1] == [[name for name in names[:200] if name in held]]
    assert split(names, held[:2])[0] == [kept, held[:2]], "a data set keeps some"


def test_the_ledger_adds_a_class_to_it_in_one_pass_and_duo_goes_on(learned):
    quick = open_ledger(learned("pearl", "starfish:ledger"))
    before = open_ledger(learned("pearl"))
    assert quick.network.ledger.learned.tolist()[2:] == [False]
    assert torch.equal(quick.network.decoder.reduce.weight, before.network.decoder.reduce.weight), (
        "the decoder stays as it was"
    )
    after = nacre.load(learned("pearl", "starfish:ledger", "crate"))
    assert after.classes == ("background", "pearl", "starfish", "crate")
    assert not after.network.ledger.learned[2]


def test_another_method_goes_on_with_the_decoder_alone(learned):
    network = nacre.load(learned("pearl")).network
    network.ledger.learned[1:] = True
    network.drop_ledger()
    assert network.ledger is None
    assert network.config.grid_stride is None


def test_a_decoder_that_has_learned_nothing_is_not_continued_alone(learned):
    with pytest.raises(NacreError, match="has learned no class yet, only its ledger"):
        learned("pearl", "starfish:mib")


def decoder_rows(model):
    rows = model.network.classifier.weight(slice(None))
    return dict(zip(model.info.classes, rows.detach(), strict=True))


def ledger_rows(model):
    rows = model.network.ledger.classifier.weight(slice(None))
    return dict(zip(model.info.classes, rows.detach(), strict=True))


def assert_same_ledger(one, other):
    rows = ledger_rows(one), ledger_rows(other)
    assert rows[0].keys() == rows[1].keys()
    for name, row in rows[0].items():
        assert float((row - rows[1][name]).abs().max()) <= 1e-5 * float(row.abs().max()), name


def test_what_is_forgotten_leaves_the_ledger_wholly_and_loses_its_row_of_the_decoder(learned):
    whole = open_ledger(learned("pearl", "starfish"))
    for found in (forget_step(whole, 1), forget_class(whole, "starfish")):
        assert found.info.classes == ["background", "pearl"]
        assert torch.equal(decoder_rows(found)["pearl"], decoder_rows(whole)["pearl"])
        assert len(found.network.ledger.learned) == 2
    assert_same_ledger(forget_step(whole, 1), open_ledger(learned("pearl")))


@pytest.mark.parametrize("trained", [True, False])
def test_the_commands_say_what_a_trained_decoder_does(learned, tmp_path, trained):
    for name in ("pearl", "starfish"):
        network, info, state = load_model(find_model(learned(name)))
        network.ledger.learned.fill_(trained)
        judged = {"before": 0.1, "after": 0.2, "kept": name == "pearl", "classes": [1]}
        info = replace(info, history=[{**info.history[0], "judged": judged}])
        (tmp_path / name).mkdir()
        save_model(tmp_path / name / "model.safetensors", network, info, state)
    both = [str(tmp_path / name) for name in ("pearl", "starfish")]
    run = CliRunner().invoke
    done = run(program, ["merge", *both, "--out", str(tmp_path / "b")])
    said = " ".join(done.output.split())
    assert ("treats the classes of the others as background" in said) == trained
    assert nacre.load(tmp_path / "b").classes == ("background", "pearl", "starfish")
    done = run(
        program, ["forget", str(tmp_path / "b"), "--class", "pearl", "--out", str(tmp_path / "a")]
    )
    said = " ".join(done.output.split())
    assert ("may still have been trained with it" in said) == trained
    assert "1 class " in said
    done = run(
        program, ["forget", str(tmp_path / "b"), "--step", "1", "--out", str(tmp_path / "c")]
    )
    said = " ".join(done.output.split())
    assert "may still have been trained with it" not in said
    assert ("no update of the decoder was kept since then" in said) == trained
    done = run(program, ["merge", both[0], both[0], "--out", str(tmp_path / "d")])
    said = " ".join(done.output.split())
    assert "treats the classes of the others" not in said
    assert ("the decoder is that of the first model" in said) == trained


def test_a_merged_class_is_background_to_a_decoder_that_has_not_learned_it(learned):
    parts = [open_ledger(learned(name)) for name in ("pearl", "starfish")]
    merged = merge(parts)
    assert_same_ledger(merged, open_ledger(learned("pearl", "starfish")))
    rows = decoder_rows(merged)
    assert torch.equal(rows["starfish"], rows["background"])
    assert torch.equal(rows["pearl"], decoder_rows(parts[0])["pearl"])
    assert merged.network.ledger.learned.tolist() == [
        *parts[0].network.ledger.learned.tolist(),
        False,
    ]


def test_what_it_cannot_continue_or_learn_is_refused(learned, folders, tmp_path):
    with pytest.raises(NacreError, match="cannot continue a model without a decoder"):
        learned("pearl:ledger", "starfish")
    with pytest.raises(NacreError, match="no sums of its classes, so method 'duo' cannot"):
        learned("pearl:mib", "starfish")
    stages = {**RECIPE, "model": {"backbone": "tiny", "decoder": "stages"}}
    with pytest.raises(NacreError, match="'stages' has no weights"):
        nacre.learn(folders["pearl"], out=tmp_path / "x", method="duo", config=stages)
    grid = {**RECIPE, "model": {**RECIPE["model"], "grid_stride": 8}}
    with pytest.raises(NacreError, match=r"model\.grid_stride: method 'mib' keeps no sums"):
        nacre.learn(folders["pearl"], out=tmp_path / "y", method="mib", config=grid)
    with pytest.raises(ValueError, match="freeze_step_0 cannot be set for duo"):
        DUO.Config(freeze_step_0=False)


@pytest.mark.parametrize("case", ["one image", "three images", "no background", "two folders"])
def test_odd_folders_are_learned(case, tmp_path):
    count = {"one image": 1, "three images": 3}.get(case, 12)
    world = ScenesConfig(train=count, val=6, size=32, seed=3)
    names = ["pearl", "starfish"]
    parts = [[one] for one in names] if case == "two folders" else [names]
    roots = [write_folder(tmp_path / part[0], part, world=world) for part in parts]
    if case == "no background":
        with (roots[0] / "classes.yaml").open("a") as file:
            file.write("background: null\nignored: 0\n")
    recipe = {key: value for key, value in RECIPE.items() if key != "labels"}
    model = nacre.learn(roots, out=tmp_path / "m", method="duo", config=recipe)
    assert model.classes == ("background", *names)
    assert "judged" not in model.info.history[0], "there were no updates"
    seen = model.predict(torch.zeros(40, 50, 3, dtype=torch.uint8).numpy()).mask
    assert case != "no background" or seen.min() > 0
