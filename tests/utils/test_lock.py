import errno
import fcntl
import os
import subprocess
import sys

import pytest

from nacre.errors import NacreError
from nacre.utils.lock import is_locked, locked


def test_one_process_works_in_a_folder(tmp_path):
    folder = tmp_path / "run"
    assert not is_locked(folder)
    with locked(folder, "run"):
        assert is_locked(folder)
        with pytest.raises(NacreError, match="is in use: another `nacre run` works in it"):
            locked(folder, "run").__enter__()
    assert not is_locked(folder)


def test_a_helper_that_outlives_its_parent_does_not_hold_the_lock(tmp_path):
    ready, go = os.pipe(), os.pipe()
    with locked(tmp_path, "grid"):
        helper = os.fork()
        if not helper:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        assert is_locked(tmp_path), "the helper's end is not the parent's"
    assert not is_locked(tmp_path)
    os.write(go[1], b"x")
    os.waitpid(helper, 0)


def test_what_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NacreError, match="file cannot be a grid folder: File exists"):
        locked(tmp_path / "file", "grid").__enter__()


HOLD = """
import sys, time
from pathlib import Path
from nacre.utils.lock import locked
with locked(Path(sys.argv[1]), "run"):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"locked\n"
            assert is_locked(tmp_path)
        finally:
            holder.kill()
    assert not is_locked(tmp_path)
    with locked(tmp_path, "run"):
        pass
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path, "run"):
        pass
