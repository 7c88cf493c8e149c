import subprocess
import sys

import pytest

from nacre.errors import NacreError
from nacre.utils.io import load_json, save_json, save_text


def test_a_failed_write_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "a.json"
    save_json(path, {"x": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_json(path, {"x": float("nan")})
    assert load_json(path) == {"x": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NacreError, match="could not write"):
        save_text(tmp_path / "file" / "a.txt", "x")


def test_a_damaged_json_file_is_one_sentence(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(NacreError, match=r"could not read .*a\.json"):
        load_json(tmp_path / "a.json")


FILL_THE_DISK = """
import resource, sys, torch
from pathlib import Path
from nacre.errors import NacreError
from nacre.training.resume import load_resume, save_resume
path = Path(sys.argv[1])
save_resume(path, {"a": torch.arange(10)}, {"step": 0})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    save_resume(path, {"a": torch.zeros(100_000)}, {"step": 1})
except NacreError as error:
    assert "the earlier file is kept" in str(error), error
else:
    sys.exit("a full disk went unnoticed")
tensors, content = load_resume(path, "cpu")
assert tensors["a"].tolist() == list(range(10)) and content["step"] == 0
assert [one.name for one in path.parent.iterdir()] == [path.name]
"""


def test_a_disk_that_fills_up_leaves_the_earlier_checkpoint(tmp_path):
    command = [sys.executable, "-c", FILL_THE_DISK, str(tmp_path / "resume.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
