"""Parts that combine with any method: what is frozen stays, what is fused is, labels get better."""

import math

import pytest
import torch
from pydantic import ValidationError

from nacre.errors import NacreError
from nacre.methods import METHODS, Batch, Step
from nacre.methods._regularizer import ParameterRegularizer
from nacre.methods.parts import Parts, PartsConfig
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.network import Output
from nacre.models.norm import ABN
from small_steps import ALONE, GROWTH, NEW, OLD, second_step

STEPWISE = [n for n, kind in METHODS.items() if kind.learns_by_gradient and not kind.is_joint]
PARTS = {
    "its own": {},
    "backbone": {"freeze": "backbone"},
    "decoder": {"freeze": "decoder"},
    "bn": {"freeze_bn": True},
    "rows": {"freeze_old_rows": True},
    "all": {"freeze": "decoder", "freeze_bn": True, "freeze_old_rows": True},
}


def learn(name, **values):
    """Return the network's state before and after a step, and its trainer."""
    if issubclass(METHODS[name], ParameterRegularizer):
        values = {"weight": 0.1, **values}  # the papers' overshoot at this rate
    trainer, before, samples = second_step(name, **values)
    for sample in samples:
        losses = trainer.update([sample])
        assert all(math.isfinite(value) for value in losses.values())
    return before, trainer


def frozen_keys(network, parts):
    """The tensors that a config declares frozen, by name."""
    norms = [name for name, module in network.named_modules() if isinstance(module, ABN)]
    heads = range(len(network.classifier.rows) - 1)
    prefixes = {
        "backbone": ["backbone."] if parts.freeze != "nothing" else [],
        "decoder": ["decoder."] if parts.freeze == "decoder" else [],
        "bn": [f"{name}." for name in norms] if parts.freeze_bn else [],
        "rows": [f"classifier.rows.{i}." for i in heads] if parts.freeze_old_rows else [],
    }
    wanted = tuple(one for group in prefixes.values() for one in group)
    return [key for key in network.state_dict() if wanted and key.startswith(wanted)]


@pytest.mark.parametrize("name", STEPWISE)
@pytest.mark.parametrize("part", PARTS)
def test_what_is_declared_frozen_does_not_move_by_a_bit(name, part):
    before, trainer = learn(name, parts=PARTS[part])
    network = trainer.network
    keys = frozen_keys(network, trainer.method.parts.config)
    assert keys or part == "its own"
    after = network.state_dict()
    for key in keys:
        # MiB's initialisation itself lowers the background's bias when the classifier grows.
        if key in before and key != "classifier.rows.0.bias":
            assert torch.equal(before[key], after[key]), key
    rest = [key for key in before if key not in keys and before[key].is_floating_point()]
    if trainer.method.parts.config.freeze_old_rows is False:
        assert any(not torch.equal(before[key], after[key]) for key in rest)


@pytest.mark.parametrize("norm", ["bn", "iabn"])
@pytest.mark.parametrize("freeze", ["backbone", "decoder"])
def test_what_is_frozen_has_no_backward_pass_and_the_teacher_takes_it_over(norm, freeze):
    trainer, _, samples = second_step("plop", norm=norm, parts={"freeze": freeze})
    images = samples[0][0]
    student = trainer.student(images, with_stages=True)
    assert not student.features.requires_grad
    assert student.decoder_features.requires_grad == (freeze == "backbone")
    teacher = trainer.step.teacher
    assert teacher.backbone is trainer.network.backbone
    shared = trainer._ask_teacher(images, student)
    with torch.no_grad():
        own = teacher(images, with_stages=True)
    torch.testing.assert_close(shared.logits, own.logits, rtol=1e-5, atol=1e-5)
    for one, other in zip(shared.stages, own.stages, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["ft", "mib", "plop", "dkd"])
def test_fusion_with_0_gives_the_old_network_and_with_1_changes_nothing(name):
    old, trainer = learn(name, parts={"fusion": 0})
    trainer.method.parts.end_step(trainer.step)
    for key, value in old.items():
        if value.is_floating_point():
            torch.testing.assert_close(trainer.network.state_dict()[key], value, rtol=0, atol=1e-7)
    _, plain = learn(name)
    _, whole = learn(name, parts={"fusion": 1})
    whole.method.parts.end_step(whole.step)
    for key, value in plain.network.state_dict().items():
        torch.testing.assert_close(whole.network.state_dict()[key], value, rtol=0, atol=1e-7)


def test_the_square_root_rule_is_that_of_the_channels():
    old, plain = learn("mib")
    _, fused = learn("mib", parts={"fusion": "sqrt"})
    fused.method.parts.end_step(fused.step)
    a = math.sqrt(NEW / (OLD + NEW))
    now, mixed = plain.network.state_dict(), fused.network.state_dict()
    for key, value in now.items():
        expected = (1 - a) * old[key] + a * value if key in old else value
        if value.is_floating_point():
            torch.testing.assert_close(mixed[key], expected, rtol=1e-5, atol=1e-6)


def test_only_what_learns_is_in_the_optimizer_at_its_own_rate():
    trainer, _, samples = second_step("star", parts={"freeze": "backbone"})
    trainer.update([samples[0]])
    rest, new = trainer.optimizer.param_groups
    assert new["lr"] == 10 * rest["lr"]
    rows = {id(value) for value in trainer.network.classifier.rows[-1].parameters()}
    assert {id(value) for value in new["params"]} == rows
    assert all(value.requires_grad for group in (rest, new) for value in group["params"])


def test_only_new_rows_decay_in_dkd():
    trainer, _, _ = second_step("dkd")
    new, old = trainer.optimizer.param_groups
    assert (new["weight_decay"], old["weight_decay"]) == (1e-4, 0)
    classifier = trainer.network.classifier
    rows = list(classifier.rows[-1].parameters())
    assert {id(value) for value in new["params"]} == {id(value) for value in rows}


@pytest.mark.parametrize("name", ["dkd", "star"])
def test_background_of_which_no_sigmoid_is_sure_stays_background(name):
    trainer, _, samples = second_step(name, parts={"pseudo_labels": "probability"})
    images, targets = samples[0]
    student = trainer.student(images)
    teacher = trainer._ask_teacher(images, student)
    assert float(teacher.logits.sigmoid().max()) < 0.7, "nothing is sure after three updates"
    found = trainer.method.relabel(Batch(images, targets), student, teacher)
    assert torch.equal(found.targets, targets)


def test_rows_of_another_method_are_dropped_and_missing_ones_are_named():
    model = DeepLabConfig(backbone="tiny", decoder_channels=8)
    network = build_network(model, 3, 32)
    network.classifier.add_row("unknown")
    network.classifier.add_row("auxiliary")
    step = Step(1, GROWTH, network, None, ALONE, 1)
    METHODS["ssul"](METHODS["ssul"].Config(), GROWTH).prepare(step)
    assert network.classifier.unknown is not None
    assert network.classifier.auxiliary is None
    METHODS["mib"](METHODS["mib"].Config(), GROWTH).prepare(step)
    assert network.classifier.unknown is None
    with pytest.raises(NacreError, match="learn step 0 with ssul too"):
        METHODS["ssul"](METHODS["ssul"].Config(), GROWTH).grow(network, 2)
    random = METHODS["dkd"].Config(parts={"init": "random"})
    with pytest.raises(NacreError, match="has learned one: learn step 0 with dkd too"):
        METHODS["dkd"](random, GROWTH).prepare(step)


def test_uncertain_background_is_ignored_where_the_loss_does_not_model_it():
    config = METHODS["mib"].Config
    assert METHODS["mib"](config(ce="plain"), GROWTH).parts.unsure == "ignored"
    assert METHODS["mib"](config(), GROWTH).parts.unsure == "kept"


SOFTMAX = [name for name in STEPWISE if not METHODS[name].Config.has_sigmoids]
KINDS = [(name, kind) for name in SOFTMAX for kind in ("entropy", "released")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [*KINDS, *((one, "probability") for one in STEPWISE)])
def test_every_method_learns_from_pseudo_labels(name, kind):
    before, trainer = learn(name, parts={"pseudo_labels": kind, "threshold": 0.34})
    assert ("parts.thresholds" in trainer.state()) == (kind != "probability")
    assert before


def output(channels, seed=0):
    logits = torch.randn(2, channels, 4, 4, generator=torch.Generator().manual_seed(seed))
    return Output(3 * logits, logits, logits)


@pytest.mark.parametrize("unsure", ["ignored", "kept"])
def test_pseudo_labels_name_background_that_the_teacher_is_sure_of(unsure):
    parts = Parts(PartsConfig(pseudo_labels="probability"), OLD, unsure=unsure)
    targets = torch.tensor([0, 0, 3, 255], dtype=torch.uint8).repeat(2, 4, 1)
    teacher = output(OLD)
    batch = Batch(torch.zeros(2, 3, 4, 4), targets, num_valid_pixels=24.0)
    found = parts.relabel(batch, output(OLD + NEW), teacher)
    greatest, channel = teacher.logits.softmax(1).max(1)
    kept = targets if unsure == "kept" else targets.masked_fill(targets == 0, 255)
    expected = torch.where((targets == 0) & (greatest >= 0.7), channel, kept)
    assert torch.equal(found.targets, expected.to(torch.uint8))
    assert torch.equal(found.data_targets, targets)
    assert found.num_valid_pixels == 24.0
    assert (found.targets != targets).any()


@pytest.mark.parametrize("init", ["random", "background", "auxiliary"])
@pytest.mark.parametrize("name", ["ft", "lwf", "mib", "plop"])
def test_new_rows_start_as_told(name, init):
    trainer, before, _ = second_step(name, parts={"init": init})
    rows = trainer.network.classifier.weight(slice(OLD, None)).detach()
    source = {
        "background": before["classifier.rows.0.weight"][:1],
        "auxiliary": before.get("classifier.auxiliary.weight"),
    }.get(init)
    if source is None:
        assert not torch.equal(rows[0], rows[1])
    else:
        assert torch.equal(rows, source.flatten(1).expand(NEW, -1))


def test_a_part_that_makes_no_sense_is_refused():
    with pytest.raises(ValidationError, match="it has no step after step 0"):
        METHODS["joint"].Config(name="joint", parts={"fusion": "sqrt"})
    with pytest.raises(ValidationError, match="'entropy' needs a softmax"):
        METHODS["ssul"].Config(name="ssul", parts={"pseudo_labels": "entropy"})
    with pytest.raises(ValidationError, match="no background row to start from"):
        METHODS["dkd"].Config(name="dkd", parts={"init": "background"})


def test_a_users_part_lies_over_the_methods_own():
    config = METHODS["plop"].Config(name="plop", parts={"fusion": 0.3})
    assert (config.parts.pseudo_labels, config.parts.fusion) == ("entropy", 0.3)
    ewf = METHODS["ewf"].Config(name="ewf", parts={"fusion": 0.3})
    assert (ewf.parts.freeze_old_rows, ewf.parts.fusion) == (True, 0.3)
