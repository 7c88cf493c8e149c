import json
import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
import typer.main
import yaml

from nacre.cli import main
from nacre.cli.app import PANELS, program, resume_command
from nacre.models.io import find_model, load_model
from nacre.version import __version__
from tiny_runs import TINY


class Done(NamedTuple):
    stdout: str
    stderr: str


@pytest.fixture
def nacre(monkeypatch, capsys):
    """Runs a command in this process and returns what it printed."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["nacre", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        done = Done(*capsys.readouterr())
        assert (ended.value.code or 0) == code, done
        return done

    return call


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def test_help_has_three_panels_and_teaches_by_example(nacre):
    assert nacre("--version").stdout == f"nacre {__version__}\n"
    shown = nacre("--help").stdout
    assert "nacre demo" in shown
    places = [shown.index(title) for title in PANELS]
    assert places == sorted(places)
    commands = typer.main.get_command(program).commands
    assert set(commands) == {name for names in PANELS.values() for name in names}
    for command in commands.values():
        assert command.epilog.startswith("Example"), command.name
        assert f"nacre {command.name} " in f"{command.epilog} ", command.name
        assert all(one.help for one in command.params), command.name


def contains(config, values):
    """Return True if plain values are in a config, section by section."""
    if not isinstance(values, dict):
        return config == values
    return all(key in config and contains(config[key], value) for key, value in values.items())


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["run", "scenes/4-2-2/overlapped", "--method", "mib", "--preset", "small"],
         {"scenario": "scenes/4-2-2/overlapped", "method": {"name": "mib"},
          "images": {"crop_size": 160}}),
        (["tune", "scenes/4-4/overlapped", "--method", "lwf", "--seed", "7"],
         {"method": {"name": "lwf"}, "seed": 7}),
        (["grid", "--scenarios", "scenes/4-4/overlapped", "--methods", "ft",
          "--set", "data.train=24", "--set", "train.batch_size=2"],
         {"methods": ["ft"], "config": {"train": {"batch_size": 2}}}),
        (["demo", "--seed", "3"], {"seeds": [3], "preset": "demo"}),
        (["learn", "pets", "--set", "train.iterations=100"], {"train": {"iterations": 100}}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_the_config_of_a_command_is_printed_and_nothing_is_run(
    nacre, pets, tmp_path, arguments, values
):
    config = yaml.safe_load(nacre("config", *arguments).stdout)
    assert contains(config, values)
    assert {path.name for path in tmp_path.iterdir()} == {"pets"}


def test_a_printed_config_is_one_that_the_command_reads(nacre, tmp_path):
    given = ["run", "scenes/4-4/overlapped", "--method", "mib", "--set", "train.batch_size=7"]
    path = tmp_path / "mine.yaml"
    path.write_text(printed := nacre("config", *given).stdout)
    assert nacre("config", "run", "--config", path).stdout == printed


def test_data_are_checked_by_their_path_or_by_the_name_of_a_data_set(nacre, pets):
    assert "every file can be used" in nacre("data", pets).stdout
    report = nacre("data", pets, "--json").stdout
    assert nacre("data", "folder", "--root", pets, "--json").stdout == report


def test_the_list_of_methods_does_not_load_torch():
    code = (
        "import sys; from nacre.cli import main; sys.argv = ['nacre', 'methods']\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "MiB" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "voc/15-5/overlaped"], "did you mean 'overlapped'?"),
        (["run", "scenes/4-2-2/overlapped", "--method", "mbi"], "did you mean 'mib'?"),
        (["run"], "no scenario"),
        (["table"], "no runs: name run folders, or add --paper"),
        (["grid", "--scenarios", "scenes/4-4/overlapped"], "a grid needs --methods"),
        (["run", "voc/15-5/overlapped", "--root", "nowhere"], "nowhere"),
        (["run", "scenes/4-2-2/overlapped", "--set", "train.lr=fast"], "train.lr: input should be"),
        (["plan", "scenes/4-3/overlapped"], "leaves 1 class"),
        (["plan", "voc/15-5/overlapped", "--root", "nothing"], "nothing"),
        (["eval", "nothing"], "no model at nothing"),
        (["tune", "scenes/4-4/overlapped", "--method", "ft"], "'ft' has no weight to choose"),
        (["methods", "mibb"], "did you mean 'mib'?"),
        (["config", "run", "voc/15-5/overlaped"], "did you mean 'overlapped'?"),
        (["config", "learn"], "no data: give one or more folders"),
        (["config", "predict"], "nacre predict has no config; commands with one: learn, run"),
        (["data", "nowhere"], "nowhere"),
        (["data", "voc"], "the data set 'voc' needs its folder: give --root FOLDER"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    nacre, arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = nacre(*arguments, code=2)
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_plan_says_what_a_step_gets_and_what_its_background_is(nacre):
    plan = json.loads(
        nacre("plan", "scenes/4-4/overlapped", "--set", "data.train=20", "--json").stdout
    )
    assert len(plan["steps"][0]["sha256"]) == 64
    assert not plan["steps"][1]["hidden"]["future"]
    shares = plan["steps"][1]["background"]
    assert 0 < shares["old"] < 1
    assert shares["future"] == 0
    shown = nacre("plan", "scenes/4-4/overlapped", "--set", "data.train=20").stdout
    assert "what each step learns from" in shown


def test_run_prints_and_leaves_a_run_that_eval_and_predict_take(nacre, config, finished, tmp_path):
    from PIL import Image

    out = tmp_path / "run"
    done = nacre("run", "--config", config, "--out", out)
    assert "after the last step: mIoU without background: old" in done.stdout
    assert (out / "metrics.json").read_bytes() == (finished / "metrics.json").read_bytes()
    metrics = json.loads(nacre("eval", out, "--json").stdout)
    stored = json.loads((out / "step-2" / "metrics.json").read_text())
    assert metrics["iou"] == stored["iou"]
    assert "mean of all without background" in nacre("eval", out / "step-1").stdout
    other = json.loads(
        nacre("eval", out / "step-0", "--json", "--set", "labels.unseen=background").stdout
    )
    assert other["conventions"]["unseen"] == "background"
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    seen = nacre("predict", out, tmp_path / "a.png", "--out", tmp_path / "seen").stdout
    assert re.search(r"1 image: \w+ \d", seen)
    with Image.open(tmp_path / "seen" / "masks" / "a.png") as mask:
        assert mask.size == (40, 30)


def test_eval_refuses_data_of_other_classes(nacre, finished):
    for change in ("scenario=scenes/2-6/overlapped", "scenario=scenes/8/overlapped"):
        done = nacre("eval", finished, "--set", change, code=2)
        assert "but after step 2 the scenario" in done.stderr
        assert "Traceback" not in done.stderr


INTERRUPTED = """
import os, signal
from nacre.cli import main
from nacre.training import loop

def interrupted(*arguments, update=loop.update, **options):
    loop.update = update
    os.killpg(os.getpgrp(), signal.SIGINT)  # as a terminal does: to the worker processes too
    return update(*arguments, **options)

loop.update = interrupted
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no groups of processes to signal")
@pytest.mark.usefixtures("heard_signals")
def test_ctrl_c_saves_and_says_how_to_go_on(nacre, config, finished, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-c", INTERRUPTED, "run", "--config", str(config), "--out", str(out)]
    done = subprocess.run(
        [*command, "--set", "train.num_workers=1"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    errors = done.stderr
    assert done.returncode == 130, errors
    assert f"Resume with:  nacre run --out {out}" in errors
    assert "Traceback" not in errors
    nacre("run", "--out", out)
    assert (out / "metrics.json").read_bytes() == (finished / "metrics.json").read_bytes()
    again, before = (load_model(find_model(path))[0].state_dict() for path in (out, finished))
    assert all(again[name].equal(value) for name, value in before.items())


def test_methods_and_scenarios_are_listed(nacre):
    listed = nacre("methods").stdout
    assert all(name in listed for name in ("ft", "lwf", "mib", "joint"))
    assert "eq. 8, 9" in nacre("methods", "mib").stdout
    assert "voc-animals-4-2" in nacre("plan").stdout
    assert "no scenario" in nacre("plan", "--json", code=2).stderr


def test_a_dry_run_says_what_would_be_learned_and_learns_nothing(
    nacre, config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shown = nacre("run", "--config", config, "--set", "method.weight=7", "--dry-run").stdout
    assert "what each step learns from" in shown
    assert "name=mib" in shown
    assert "weight=7" in shown
    assert "backbone=tiny" in shown
    assert "updates by step" in shown
    assert list(tmp_path.iterdir()) == []
    given = ["scenes/4-2-2/overlapped", "--preset", "paper", "--set", "data.train=20"]
    shown = nacre("run", *given, "--set", "model.weights=none", "--dry-run").stdout
    # The decoder has four convolutions of 2048 to 256 channels, 1x1 and 3x3, and three 1x1 more.
    decoder = 28 * 2048 * 256 + (1024 + 2048 + 256) * 256 + 2 * (1024 + 256 + 256)
    assert f"backbone 42,500,160, decoder {decoder:,}, classifier {9 * 257:,}" in shown


@pytest.mark.parametrize(
    "words",
    [
        ["run", "scenes/4-2-2/overlapped"],
        ["grid", "--scenarios", "scenes/4-2-2/overlapped", "--methods", "ft,mib"],
    ],
    ids=" ".join,
)
def test_the_papers_preset_without_weights_is_refused_before_anything_begins(
    words, nacre, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = nacre(*words, "--preset", "paper", code=2)
    assert (
        "preset 'paper' starts from ImageNet weights, and model.weights is not set" in done.stderr
    )
    assert "in-place ABN release" in done.stderr
    assert not list(tmp_path.rglob("config.yaml"))
    assert not list(tmp_path.rglob("*.log"))


def test_learn_history_eval_and_predict_as_a_person_uses_them(nacre, tmp_path):
    from nacre.data.scenes import ScenesConfig
    from partial_data import write_folder

    world = ScenesConfig(train=24, val=8, size=32, seed=3)
    for name, classes in (("pets", ["pearl", "starfish"]), ("birds", ["crate"])):
        write_folder(tmp_path / name, classes, world=world)
    small = ["--set", "model.backbone=tiny", "--set", "images.crop_size=32"]
    small += ["--set", "train.iterations=3", "--set", "train.batch_size=4"]
    pets, birds = tmp_path / "models" / "pets", tmp_path / "models" / "birds"
    done = nacre("learn", tmp_path / "pets", "--out", pets, *small)
    assert "new: pearl, starfish" in done.stdout
    train = ["--set", "train.iterations=3"]
    done = nacre("learn", tmp_path / "birds", "--start", pets, "--out", birds, *train)
    assert "its background may hide pearl, starfish" in done.stdout
    assert "agreement" in done.stdout
    assert "IoU %" in nacre("learn", "--out", birds).stdout, "it is done, and says so again"
    shown = nacre("eval", birds).stdout
    assert "mean of new" in shown
    assert "mean of old" not in shown, "no test image has an old class"
    assert "not tested, as no test image shows them: pearl, starfish; give a folder" in shown
    shown = nacre("eval", birds, "--root", tmp_path / "pets").stdout
    assert "not tested, as no test image shows them: crate; give a folder" in shown
    log = nacre("history", birds).stdout
    assert "pearl, starfish" in log
    assert "birds" in log
    assert "mib" in log
    history = json.loads(nacre("history", birds, "--json").stdout)["history"]
    assert [entry["classes"] for entry in history] == [["pearl", "starfish"], ["crate"]]
    assert "crate" in nacre("eval", birds).stdout
    picture = next((tmp_path / "birds" / "images").iterdir())
    nacre("predict", birds, picture, "--out", tmp_path / "seen")
    assert list((tmp_path / "seen").iterdir())
    done = nacre("learn", tmp_path / "pets", "--start", pets, code=2)
    assert "pets has no new class" in done.stderr
    assert "is not of the form Katze=cat" in nacre("learn", "x", "--rename", "y", code=2).stderr


def test_a_place_that_cannot_be_written_is_refused_before_a_model_is_read(nacre, tmp_path):
    (tmp_path / "file").touch()
    for out, problem in ((tmp_path, "is a folder"), (tmp_path / "file/x.onnx", "could not write")):
        done = nacre("export", tmp_path / "no-model", "--out", out, code=2)
        assert problem in done.stderr.replace("\n", " ")


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """A folder of images named as people do, from the working folder."""
    from nacre.data.scenes import ScenesConfig
    from partial_data import write_folder

    monkeypatch.chdir(tmp_path)
    world = ScenesConfig(train=24, val=8, size=32, seed=3)
    write_folder(tmp_path / "pets", ["pearl", "starfish"], world=world)
    return "pets"


SMALL_STEP = (
    *("--set", "model.backbone=tiny", "--set", "images.crop_size=32"),
    *("--set", "train.iterations=1", "--set", "train.batch_size=4"),
)


def test_options_beside_a_step_that_goes_on_are_refused_where_they_differ(nacre, pets, tmp_path):
    nacre("learn", pets, "--out", "m", *SMALL_STEP)
    nacre("learn", pets, "--out", "other", *SMALL_STEP, "--seed", "2")
    shutil.copytree(pets, "birds")
    (tmp_path / "mine.yaml").write_text("train: {iterations: 2}\n")
    for given, said in (
        (["--test", "birds"], "birds"),
        (["--start", "other"], "no new class"),
        (["--config", "mine.yaml"], "no data"),
        (["--preset", "small"], "no data"),
        (["--seed", "0"], "seed"),
        (["--classes", "pearl"], "classes"),
    ):
        refused = nacre("learn", "--out", "m", *given, code=2).stderr
        assert said in refused, given
    same = ["--seed", "1", "--set", "train.iterations=1"]
    assert "IoU %" in nacre("learn", "--out", "m", *same).stdout


def test_a_model_is_tested_again_from_any_folder(nacre, pets, tmp_path, monkeypatch):
    nacre("learn", pets, "--out", "m", *SMALL_STEP)
    folder = ("folder/1-1/overlapped", "--root", pets, "--method", "ft", *SMALL_STEP)
    nacre("run", *folder, "--out", "r")
    here = {name: nacre("eval", name, "--json").stdout for name in ("m", "r")}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert {name: nacre("eval", f"../{name}", "--json").stdout for name in here} == here


def test_ctrl_c_before_a_command_listens_is_said(nacre, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("nacre.cli.look.methods_table", interrupted)
    assert nacre("methods", code=130).stderr == "interrupted\n"


@pytest.mark.parametrize("window", ["wide", "31", "-64", "9" * 400])
def test_a_window_is_a_number_of_32_or_more(nacre, finished, tmp_path, window):
    from PIL import Image

    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    nacre("predict", finished, tmp_path / "a.png", "--out", tmp_path, f"--window={window}", code=2)


def test_predict_lists_no_classes_where_it_saw_nothing(nacre, finished, tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"no picture")
    done = nacre("predict", finished, tmp_path, "--out", tmp_path / "seen", code=2)
    assert done.stdout.splitlines()[0] == "0 images"


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({}, "nacre run --out 'my run'"),
        (
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"},
            "torchrun --nproc-per-node 2 -m nacre run --out 'my run'",
        ),
        (
            {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"},
            "torchrun --nproc-per-node 4 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT "
            "-m nacre run --out 'my run'  on each of the 2 machines",
        ),
    ],
)
def test_the_resume_command_is_the_one_that_began(monkeypatch, variables, command):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert resume_command("run", "--out", "my run") == command
