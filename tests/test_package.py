"""Wheel and sdist work in a fresh environment, without the source tree and without a download."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from nacre.data.scenes import ScenesConfig
from partial_data import write_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[1]
SMALL = ["--set", "images.crop_size=32", "--set", "train.iterations=2"]


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel and an sdist, built from what git knows."""
    folder = tmp_path_factory.mktemp("built")
    run("git", "clone", "-q", ROOT, folder / "nacre")
    run(sys.executable, "-m", "build", "--outdir", folder, folder / "nacre")
    return folder


def test_wheel_and_sdist_hold_the_package_and_nothing_else(built):
    (wheel,) = built.glob("nacre_seg-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"nacre", "nacre_seg"}
    for needed in (
        "py.typed",
        "report/templates/style.css",
        "scenarios/files/camvid-6-5.yaml",
    ):
        assert f"nacre/{needed}" in names
    (sdist,) = built.glob("nacre_seg-*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert sum(one.size for one in archive.getmembers()) < 10_000_000


@pytest.mark.parametrize(
    "pattern",
    ["nacre_seg-*.whl", pytest.param("nacre_seg-*.tar.gz", marks=pytest.mark.nightly)],
)
def test_learn_predict_export_and_report_run_from_an_install(built, tmp_path, pattern):
    (package,) = built.glob(pattern)
    run(sys.executable, "-m", "venv", tmp_path / "env")
    programs = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    install = [programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(*install, "-c", ROOT / "constraints.txt", f"{package}[export]")
    home = tmp_path / "home"  # empty caches: whatever is needed came with the install
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "XDG_", "HF_"))}
    env |= {
        "HOME": str(home),
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }

    def nacre(*words):
        return run(programs / "nacre", *words, cwd=tmp_path, env=env)

    where = run(
        programs / "python", "-c", "import nacre; print(nacre.__file__)", cwd=tmp_path, env=env
    )
    assert str(ROOT) not in where
    world = ScenesConfig(train=12, val=6, size=64, seed=3)
    for name, classes in (("pets", ["pearl", "starfish"]), ("birds", ["crate"])):
        write_folder(tmp_path / name, classes, world=world)
    nacre("learn", "pets", "--out", "first", *SMALL)
    config = json.loads((tmp_path / "first" / "model.json").read_text())["config"]
    assert (config["model"]["backbone"], config["model"]["weights"]) == ("lite0", "imagenet")
    nacre("learn", "birds", "--start", "first", "--out", "second", *SMALL)
    nacre("predict", "second", "birds/images", "--out", "seen")
    images = list((tmp_path / "birds" / "images").iterdir())
    assert len(list((tmp_path / "seen" / "masks").rglob("*.png"))) == len(images)
    nacre("export", "second", "--out", "model.onnx")
    assert (tmp_path / "model.onnx").stat().st_size > 1_000_000
    nacre("report", "second", "--out", "report")
    assert (tmp_path / "report" / "index.html").exists()
