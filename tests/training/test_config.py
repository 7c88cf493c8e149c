import pytest
import torch
import yaml

from nacre.errors import NacreError
from nacre.methods import METHODS
from nacre.training.config import (
    LearnConfig,
    RunConfig,
    build,
    build_config,
    deep_merge,
    differences,
    parse_assignment,
    resolve,
)
from nacre.training.presets import PAPER_PRESETS, PRESETS

SCENES = {"scenario": "scenes/4-2-2/overlapped"}
AT_RANDOM = {"model": {"weights": "none"}}


def test_the_scenario_and_the_method_choose_their_configs():
    config = resolve(RunConfig, {**SCENES, "method": "lwf", "data": {"train": 7}})
    assert config.data.model_dump()["train"] == 7
    assert config.method.name == "lwf"
    assert config.method.model_dump()["weight"] == 100
    assert resolve(RunConfig, SCENES).method.name == "mib"


def test_plain_config_survives_a_round_trip():
    config = build_config(preset="demo", overrides=SCENES)
    again = resolve(RunConfig, yaml.safe_load(yaml.safe_dump(config.to_dict())))
    assert again.to_dict() == config.to_dict()


def test_later_sources_lie_over_earlier_ones(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("scenario: scenes/4-4/overlapped\ntrain: {batch_size: 8, lr: 1e-3}\n")
    config = build_config(
        preset="demo", file=file, assignments=["train.batch_size=4", "train.grad_clip_norm=1e1"]
    )
    assert (config.train.batch_size, config.train.lr, config.train.grad_clip_norm) == (
        4,
        0.001,
        10.0,
    )
    assert config.model.backbone == "lite0"
    named = {"train": {"batch_size": 5, "lr": 0.5}, "seed": 2}
    config = build_config(file=file, overrides=named, assignments=["train.lr=0.25", "seed=3"])
    assert (config.train.batch_size, config.train.lr, config.seed) == (5, 0.25, 3)


@pytest.mark.parametrize(
    ("preset", "weights", "method"),
    [
        ("small", None, "duo"),
        ("demo", None, "duo"),
        ("small", "none", "mib"),
        ("paper", "imagenet", "mib"),
        (None, "imagenet", "duo"),
        (None, None, "mib"),
    ],
)
def test_a_run_and_a_step_have_one_default_method(preset, weights, method):
    model = {} if weights is None else {"weights": weights}
    run = build_config(preset=preset, overrides={**SCENES, "model": model})
    step = build(LearnConfig, {"data": ["x"], "model": model}, preset=preset)
    assert run.method.name == step.method.name == method


def test_another_method_leaves_no_values_of_the_first_behind():
    below = {"method": {"name": "lwf", "weight": 3}}
    assert deep_merge(below, {"method": {"name": "mib"}}) == {"method": {"name": "mib"}}
    assert deep_merge(below, {"method": "mib"}) == {"method": {"name": "mib"}}
    assert deep_merge(below, {"method": {"weight": 4}})["method"] == {"name": "lwf", "weight": 4}
    kept = deep_merge({"method": {"weight": 3}}, {"method": {"name": "mib"}})
    assert kept["method"] == {"name": "mib", "weight": 3}


@pytest.mark.parametrize("task", ["19-1", "15-5", "15-1"])
def test_the_ablation_changes_one_thing_at_a_time(task):
    def row(**method):
        raw = {"scenario": f"voc/{task}/overlapped", "data": {"root": "x"}, "method": method}
        return build_config(preset="paper", overrides={**raw, **AT_RANDOM}).to_dict()

    lwf, whole = row(name="lwf"), row(name="mib")
    ce, kd = row(name="mib", kd="plain", init="random"), row(name="mib", init="random")
    assert ce["method"]["weight"] == lwf["method"]["weight"] == 100
    assert kd["method"]["weight"] == whole["method"]["weight"] == (100 if task == "15-1" else 10)
    assert differences(kd, whole) == ["method.init: 'random' -> 'background'"]
    assert row(name="mib", kd="plain", init="random", weight=3)["method"]["weight"] == 3


RESNET = ("in-place ABN release", "torchvision's or timm's", "resnet101-63fe2227.pth")


@pytest.mark.parametrize(
    ("preset", "model", "sources"),
    [
        ("paper", {}, RESNET),
        ("text", {}, RESNET),
        ("paper", {"backbone": "resnet101"}, RESNET),
        ("paper", {"norm": "bn"}, RESNET),
        ("paper", {"backbone": "lite0", "norm": "bn"}, ("efficientnet_lite0",)),
        ("paper", {"backbone": "timm/mobilenetv2_100"}, ("docs/networks.md",)),
    ],
)
def test_the_papers_presets_start_at_random_only_on_request(preset, model, sources):
    with pytest.raises(NacreError) as caught:
        build_config(preset=preset, overrides={**SCENES, "model": model})
    message = str(caught.value)
    assert message.startswith(f"preset {preset!r} starts from ImageNet weights, and model.weights ")
    assert all(source in message for source in sources)
    random = {**SCENES, "model": {**model, "weights": "none"}}
    assert build_config(preset=preset, overrides=random).model.weights == "none"


RECIPE = {"images.crop: 'paper' -> 'deeplab'", "train.nesterov: True -> False"}
AVERAGE = "method.average: 'classes' -> 'pixels'"


@pytest.mark.parametrize(
    ("method", "own"),
    [
        *[(name, set()) for name in ("ft", "pi", "ewc", "rw", "lwf-mc", "joint", "plop")],
        ("lwf", {AVERAGE}),
        ("ilt", {AVERAGE, "method.layer: 'backbone' -> 'decoder'"}),
        ("mib", {AVERAGE}),
    ],
)
@pytest.mark.parametrize(
    "scenario", ["voc/15-5/disjoint", "voc/15-1/overlapped", "ade20k/100-10b/partition"]
)
def test_text_differs_from_paper_only_where_the_released_code_does(scenario, method, own):
    raw = {"scenario": scenario, "method": method, "data": {"root": "x"}, **AT_RANDOM}
    released, text = (
        build_config(preset=one, overrides=raw).to_dict() for one in ("paper", "text")
    )
    assert set(differences(released, text)) == RECIPE | own


def test_all_mistakes_are_reported_at_once_with_the_nearest_name():
    raw = {
        **SCENES,
        "train": {"bach_size": 3, "lr": -1},
        "method": {"name": "mib", "wait": 1},
        "sed": 3,
    }
    with pytest.raises(NacreError) as caught:
        resolve(RunConfig, raw)
    message = str(caught.value)
    assert "train.bach_size: unknown key (did you mean 'batch_size'?)" in message
    assert "train.lr: input should be greater than 0, not -1" in message
    assert (
        "method.wait: unknown key (did you mean 'weight'?); known here: name, freeze, " in message
    )
    assert "sed: unknown key (did you mean 'seed'?)" in message


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "no scenario"),
        ({"scenario": "vox/15-5/overlapped"}, r"unknown data set .*'vox' \(did you mean 'voc'\?\)"),
        ({**SCENES, "method": "mibb"}, r"unknown method 'mibb' \(did you mean 'mib'\?\)"),
        ({**SCENES, "method": 3}, "method: 3 is not a mapping"),
        ({"scenario": "voc/15-5/overlapped"}, "data.root: missing"),
    ],
)
def test_mistakes_are_one_sentence(raw, message):
    with pytest.raises(NacreError, match=message):
        resolve(RunConfig, raw)


@pytest.mark.parametrize("text", ["train.batch_size", "=3", "train.=3", ".a=1"])
def test_assignments_need_a_key_and_a_value(text):
    with pytest.raises(NacreError, match="is not of the form"):
        parse_assignment(text)


def test_differences_name_the_place_and_both_values():
    tests = [{"name": "pets", "train": {"images": 3}}]
    assert differences({"tests": tests}, {"tests": []}) == ["tests.0: 'pets' -> None"]
    found = differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}})
    assert found == ["a.c: 2 -> 4", "d: 3 -> None"]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("data", ["scenes", "voc", "ade20k"])
def test_every_preset_is_valid(preset, data):
    raw = {"scenario": f"{data}/4-2-2/overlapped", **AT_RANDOM}
    if data != "scenes":
        raw["data"] = {"root": "x"}
    config = build_config(preset=preset, overrides=raw)
    if preset in PAPER_PRESETS:
        assert config.train.epochs == (60 if data == "ade20k" else 30)


def test_unknown_preset():
    with pytest.raises(NacreError, match=r"unknown preset 'papr' \(did you mean 'paper'\?\)"):
        build_config(preset="papr", overrides=SCENES)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("method", "most_important"), [("ewc", 1), ("pi", 1), ("rw", 2)])
def test_a_preset_does_not_let_a_penalty_overshoot(preset, method, most_important):
    config = build_config(preset=preset, overrides={**SCENES, **AT_RANDOM, "method": method})
    hardness = config.method.weight * most_important
    theta = torch.ones(1, dtype=torch.float64, requires_grad=True)
    train = config.train
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        [theta], train.incremental_lr, momentum=0.9, nesterov=train.nesterov
    )
    if train.optimizer == "adamw":
        optimizer = torch.optim.AdamW([theta], train.incremental_lr)
    for _ in range(100):
        optimizer.zero_grad()
        (hardness * theta**2).sum().backward()
        optimizer.step()
    assert abs(theta.item()) < 1


@pytest.mark.parametrize(
    ("train", "iterations", "later"),
    [
        ({}, 800, 400),
        ({"epochs": 2}, None, None),
        ({"iterations": 9}, 9, None),
        ({"epochs": 2, "iterations": 9}, 9, None),
        ({"iterations": 9, "incremental_iterations": 4}, 9, 4),
    ],
)
def test_a_length_that_a_user_sets_replaces_that_of_a_preset(train, iterations, later):
    config = build_config(preset="small", overrides={**SCENES, "train": train})
    assert (config.train.iterations, config.train.incremental_iterations) == (iterations, later)


def test_epochs_replace_the_iterations_of_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train: {iterations: 7}\n")
    options = {**SCENES, "train": {"epochs": 2}}
    assert build_config(file=file, overrides=options).train.iterations is None


@pytest.mark.parametrize("preset", ["small", "demo"])
def test_a_preset_freezes_the_backbone_beside_the_layers_that_a_method_freezes(preset):
    def chosen(method):
        return build_config(preset=preset, overrides={**SCENES, "method": method}).method

    assert all(chosen(method).freeze_step_0 for method in ("mib", "joint", "ewf", "ssul"))
    assert (chosen("ewf").fusion, chosen("ewf").freeze) == ("sqrt", ("old_rows", "batch_norm"))
    assert chosen("ilt").layer == "decoder", "features of a frozen backbone cannot differ"


RELEASED = [
    # A few values of the released scripts, by scenario and method
    ("voc/15-1/overlapped", "mib", {"method.weight": 100}),
    ("voc/10-1/overlapped", "plop", {"train.epochs": 30, "train.incremental_epochs": 10}),
    ("ade20k/100-10/overlapped", "plop", {"method.pod": 0.001, "method.pod_logits": 0.00001}),
    ("voc/15-1/overlapped", "ewf", {"method.weight": 10, "train.incremental_epochs": None}),
    ("ade20k/100-5/overlapped", "ewf", {"method.weight": 100, "train.epochs": 60}),
    ("ade20k/100-50/overlapped", "ewf", {"method.weight": 10, "train.batch_size": 48}),
    ("voc/15-5/overlapped", "lgkd", {"method.old_weight": 5, "method.new_weight": 1}),
    ("ade20k/50-50/overlapped", "lgkd", {"method.new_weight": 10, "train.lr": 0.02}),
    ("voc/15-5/overlapped", "ssul", {"train.epochs": 50, "train.batch_size": 32}),
    ("ade20k/100-10/overlapped", "ssul", {"train.lr": 0.01, "train.incremental_lr": 0.05}),
    ("voc/15-5/overlapped", "dkd", {"train.lr": 0.01, "train.backbone_lr_scale": 0.1}),
    ("ade20k/100-10/overlapped", "dkd", {"method.positive_weight": 35, "train.lr": 0.025}),
    ("ade20k/100-10/overlapped", "star", {"method.positive_weight": 30, "train.epochs": 100}),
    ("voc/15-1/overlapped", "dft", {"train.lr": 0.02, "train.incremental_lr": 0.0005}),
    ("ade20k/100-5/overlapped", "dft", {"train.epochs": 30, "train.incremental_lr": 0.05}),
    ("ade20k/100-10b/overlapped", "ewf", {"method.weight": 100}),
    ("voc/15-5/overlapped", "ssul", {"method.branches": True}),
]


@pytest.mark.parametrize(("scenario", "method", "values"), RELEASED)
def test_preset_paper_has_the_released_scripts_values(scenario, method, values):
    raw = {"scenario": scenario, "method": method, "data": {"root": "somewhere"}, **AT_RANDOM}
    plain = build_config(preset="paper", overrides=raw).to_dict()
    assert {key: plain[key.split(".")[0]][key.split(".")[1]] for key in values} == values


def test_presets_of_methods_name_presets_and_tasks_that_exist():
    for name, method in METHODS.items():
        for place in {*method.presets, *method.train_presets}:
            preset, _, where = place.partition(" ")
            if preset == "learn":  # what `nacre learn` chooses by itself
                continue
            assert preset in PRESETS, place
            data, _, task = where.partition("/")
            task = task or {"voc": "15-5", "ade20k": "100-10"}.get(data, "")
            raw = {"scenario": f"{data}/{task}/overlapped", "data": {"root": "somewhere"}}
            values = {**(raw if where else SCENES), **AT_RANDOM, "method": name}
            build_config(preset=preset, overrides=values)


def test_pixels_without_annotation_are_background_only_in_the_papers_data_sets():
    def border(scenario, **labels):
        data = {} if scenario.startswith("scenes") else {"root": "somewhere"}
        raw = {"scenario": scenario, "data": data, "labels": labels, **AT_RANDOM}
        return build_config(preset="paper", overrides=raw).labels.border

    assert border("voc/15-5/overlapped") == border("ade20k/100-50/partition") == "background"
    assert border("folder/2-1/overlapped") == "ignored"
    assert border("folder/2-1/overlapped", unseen="background") == "ignored"
    assert border("folder/2-1/overlapped", border="background") == "background"
    assert border("voc/15-5/overlapped", border="ignored") == "ignored"
