"""What combines with any method: what is frozen stays, what is fused is, labels get better."""

import math

import pytest
import torch
from pydantic import ValidationError

from nacre.errors import NacreError
from nacre.methods import METHODS, Batch
from nacre.methods._regularizer import ParameterRegularizer
from nacre.methods.components import fuse, pseudo_labels
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.network import Output
from nacre.models.norm import ABN
from nacre.training.loop import finish, update
from small_steps import GROWTH, NEW, OLD, GivenStep, second_step

STEPWISE = [n for n, kind in METHODS.items() if kind.learns_by_gradient and not kind.is_joint]
FROZEN = {
    "its own": None,
    "backbone": ["backbone"],
    "decoder": ["backbone", "decoder"],
    "head": ["decoder"],
    "bn": ["batch_norm"],
    "rows": ["old_rows"],
    "all": ["backbone", "decoder", "batch_norm", "old_rows"],
}


def learn(name, **values):
    """Return the network's state before and after a step, and its trainer."""
    if issubclass(METHODS[name], ParameterRegularizer):
        values = {"weight": 0.1, **values}  # the papers' overshoot at this rate
    trainer, before, samples = second_step(name, **values)
    for sample in samples:
        losses = update(trainer, [sample])
        assert all(math.isfinite(value) for value in losses.values())
    return before, trainer


def frozen_keys(network, frozen):
    """The tensors that a config declares frozen, by name."""
    norms = [name for name, module in network.named_modules() if isinstance(module, ABN)]
    heads = range(len(network.classifier.rows) - 1)
    prefixes = {
        "backbone": ["backbone."],
        "decoder": ["decoder."],
        "batch_norm": [f"{name}." for name in norms],
        "old_rows": [f"classifier.rows.{i}." for i in heads],
    }
    wanted = tuple(one for part in frozen for one in prefixes[part])
    return [key for key in network.state_dict() if wanted and key.startswith(wanted)]


@pytest.mark.parametrize("name", STEPWISE)
@pytest.mark.parametrize("part", FROZEN)
def test_what_is_declared_frozen_does_not_move_by_a_bit(name, part):
    before, trainer = learn(name, **({} if part == "its own" else {"freeze": FROZEN[part]}))
    network, frozen = trainer.network, trainer.method.config.freeze
    keys = frozen_keys(network, frozen)
    assert keys or part == "its own"
    after = network.state_dict()
    for key in keys:
        # MiB's initialization itself lowers the background's bias when the classifier grows.
        if key in before and key != "classifier.rows.0.bias":
            assert torch.equal(before[key], after[key]), key
    rest = [key for key in before if key not in keys and before[key].is_floating_point()]
    if "old_rows" not in frozen:
        assert any(not torch.equal(before[key], after[key]) for key in rest)


@pytest.mark.parametrize("norm", ["bn", "iabn"])
@pytest.mark.parametrize("freeze", [["backbone"], ["backbone", "decoder"]])
def test_what_is_frozen_has_no_backward_pass_and_the_teacher_takes_it_over(norm, freeze):
    trainer, _, samples = second_step("plop", norm=norm, freeze=freeze)
    images = samples[0][0]
    student = trainer.student(images, with_stages=True)
    assert not student.features.requires_grad
    assert student.decoder_features.requires_grad == (freeze == ["backbone"])
    teacher = trainer.step.teacher
    assert teacher.backbone is trainer.network.backbone
    shared = trainer.forward_teacher(images, student)
    with torch.no_grad():
        own = teacher(images, with_stages=True)
    torch.testing.assert_close(shared.logits, own.logits, rtol=1e-5, atol=1e-5)
    # On a CPU the two passes have other memory layouts, so their last digits differ.
    for one, other in zip(shared.stages, own.stages, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_the_square_root_rule_is_that_of_the_channels():
    old, plain = learn("mib")
    _, fused = learn("mib", fusion="sqrt")
    fuse(fused.method, fused.step)
    a = math.sqrt(NEW / (OLD + NEW))
    now, mixed = plain.network.state_dict(), fused.network.state_dict()
    for key, value in now.items():
        expected = (1 - a) * old[key] + a * value if key in old else value
        if value.is_floating_point():
            torch.testing.assert_close(mixed[key], expected, rtol=1e-5, atol=1e-6)


def test_only_what_learns_is_in_the_optimizer_at_its_own_rate():
    trainer, _, samples = second_step("star", freeze=["backbone"])
    update(trainer, [samples[0]])
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
    trainer, _, samples = second_step(name, pseudo_labels=0.7)
    images, targets = samples[0]
    student = trainer.student(images)
    teacher = trainer.forward_teacher(images, student)
    assert float(teacher.logits.sigmoid().max()) < 0.7, "nothing is sure after three updates"
    found = pseudo_labels(trainer.method, trainer.step, Batch(images, targets), teacher)
    assert torch.equal(found.targets, targets)


def test_rows_of_another_method_are_dropped_and_missing_ones_are_named():
    model = DeepLabConfig(backbone="tiny", decoder_channels=8)
    network = build_network(model, 3, 32)
    network.classifier.add_row("unknown")
    network.classifier.add_row("auxiliary")
    step = GivenStep(number=1, growth=GROWTH, network=network)
    METHODS["ssul"](METHODS["ssul"].Config(), GROWTH).prepare(step)
    assert network.classifier.unknown is not None
    assert network.classifier.auxiliary is None
    METHODS["mib"](METHODS["mib"].Config(), GROWTH).prepare(step)
    assert network.classifier.unknown is None
    with pytest.raises(NacreError, match="learn step 0 with ssul, too"):
        METHODS["ssul"](METHODS["ssul"].Config(), GROWTH).grow(network, 2)
    random = METHODS["dkd"].Config(init="random")
    with pytest.raises(NacreError, match="learn step 0 with dkd, too"):
        METHODS["dkd"](random, GROWTH).prepare(step)


def test_uncertain_background_is_ignored_where_the_loss_does_not_model_it():
    config = METHODS["mib"].Config
    assert METHODS["mib"](config(ce="plain"), GROWTH).unsure == "ignored"
    assert METHODS["mib"](config(), GROWTH).unsure == "kept"


SOFTMAX = [name for name in STEPWISE if not METHODS[name].Config.has_sigmoids]
KINDS = [(name, kind) for name in SOFTMAX for kind in ("entropy", "released")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [*KINDS, *((one, 0.34) for one in STEPWISE)])
def test_every_method_learns_from_pseudo_labels(name, kind):
    before, trainer = learn(name, pseudo_labels=kind)
    assert ("step.thresholds" in trainer.state()) == (kind != 0.34)
    assert before


def output(channels, seed=0):
    logits = torch.randn(2, channels, 4, 4, generator=torch.Generator().manual_seed(seed))
    return Output(3 * logits, logits, logits)


@pytest.mark.parametrize("unsure", ["ignored", "kept"])
def test_pseudo_labels_name_background_that_the_teacher_is_sure_of(unsure):
    method = METHODS["ft"](METHODS["ft"].Config(pseudo_labels=0.7), GROWTH)
    method.unsure = unsure
    targets = torch.tensor([0, 0, 3, 255], dtype=torch.uint8).repeat(2, 4, 1)
    teacher = output(OLD)
    batch = Batch(torch.zeros(2, 3, 4, 4), targets, num_valid_pixels=24.0)
    found = pseudo_labels(method, GivenStep(growth=GROWTH), batch, teacher)
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
    trainer, before, _ = second_step(name, init=init)
    rows = trainer.network.classifier.weight(slice(OLD, None)).detach()
    source = {
        "background": before["classifier.rows.0.weight"][:1],
        "auxiliary": before.get("classifier.auxiliary.weight"),
    }.get(init)
    if source is None:
        assert not torch.equal(rows[0], rows[1])
    else:
        assert torch.equal(rows, source.flatten(1).expand(NEW, -1))


def test_a_value_that_makes_no_sense_is_refused():
    with pytest.raises(ValidationError, match="it has no step after step 0"):
        METHODS["joint"].Config(name="joint", fusion="sqrt")
    with pytest.raises(ValidationError, match="'entropy' needs a softmax"):
        METHODS["ssul"].Config(name="ssul", pseudo_labels="entropy")
    with pytest.raises(ValidationError, match="no background row to start from"):
        METHODS["dkd"].Config(name="dkd", init="background")


@pytest.mark.parametrize("freeze", [[], ["backbone", "batch_norm"]])
def test_what_a_user_froze_stays_frozen_and_all_else_learns_again_after_the_step(freeze):
    trainer, _, samples = second_step("mib", freeze=freeze, held=["decoder."])
    held = {n for n, one in trainer.network.named_parameters() if n.startswith("decoder.")}
    before = {name: one.clone() for name, one in trainer.network.named_parameters()}
    for sample in samples:
        update(trainer, [sample])
    finish(trainer)
    assert held
    for name, one in trainer.network.named_parameters():
        assert one.requires_grad == (name not in held), name
        is_frozen = name in held or (freeze and (name.startswith("backbone.") or ".norm" in name))
        assert torch.equal(one, before[name]) or not is_frozen, name
