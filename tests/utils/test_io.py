import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from nacre.errors import NacreError
from nacre.utils.io import (
    LOCK_NAME,
    is_locked,
    load_json,
    locked,
    read_text,
    remove_temporaries,
    save_json,
    save_text,
)


def test_a_failed_write_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "a.json"
    save_json(path, {"x": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_json(path, {"x": float("nan")})
    assert load_json(path) == {"x": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_a_file_is_flushed_as_windows_wants_it(tmp_path, monkeypatch):
    """Windows flushes a file only by a handle that may write."""

    def fsync(handle):
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(os, "fsync", fsync)
    save_text(tmp_path / "a.txt", "x")
    assert (tmp_path / "a.txt").read_text() == "x"


def test_temporaries_are_removed_of_one_file_or_of_all(tmp_path):
    kept = [".a.json.abc.part", "a.json.abcdefgh.part", ".a.json", ".x.png.abcdefgh", ".tmpabcdefg"]
    others = [".b.json.abcdefgh.part", ".tmpAbc1ef"]
    for name in (*kept, *others, ".a.json.abcd_123.part"):
        (tmp_path / name).touch()
    remove_temporaries(tmp_path, "a.json")
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([*kept, *others])
    remove_temporaries(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(kept)


def test_a_look_at_a_lock_does_not_keep_a_run_from_starting(tmp_path):
    """Another process holds the lock for a moment while it finds out whether it is free."""
    lock = FileLock(tmp_path / LOCK_NAME, thread_local=False)
    lock.acquire()
    timer = threading.Timer(0.05, lock.release)
    timer.start()
    with locked(tmp_path, "run"):
        timer.join()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NacreError, match="could not write"):
        save_text(tmp_path / "file" / "a.txt", "x")


FILL_THE_DISK = """
import resource, sys, torch
from pathlib import Path
from nacre.errors import NacreError
from nacre.training.trainer import load_resume, save_resume
path = Path(sys.argv[1])
save_resume(path, {"a": torch.arange(10)}, {"step": 0, "iteration": 1, "scaler": {}})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    save_resume(path, {"a": torch.zeros(100_000)}, {"step": 1, "iteration": 1, "scaler": {}})
except NacreError as error:
    assert "the earlier file is kept" in str(error), error
else:
    sys.exit("a full disk went unnoticed")
tensors, content = load_resume(path, "cpu")
assert tensors["a"].tolist() == list(range(10)) and content["step"] == 0
assert [one.name for one in path.parent.iterdir()] == [path.name]
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot limit the size of a file")
def test_a_disk_that_fills_up_leaves_the_earlier_checkpoint(tmp_path):
    command = [sys.executable, "-c", FILL_THE_DISK, str(tmp_path / "resume.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[NaN]", "NaN is not a number"),
        ("-Infinity", "not a number"),
        ("1" * 5000, "not valid JSON"),
        ("", "not valid JSON"),
        ("\0", "not valid JSON"),
    ],
)
def test_json_that_cannot_be_used_is_one_sentence(tmp_path, text, reason):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(NacreError, match=reason) as caught:
        load_json(tmp_path / "a.json")
    assert "a.json" in str(caught.value)


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "large").write_text("x" * 100)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for name, reason in (
        ("pipe", "not a regular file"),
        ("folder", "Is a directory"),
        ("loop", "symbolic links"),
        ("large", "larger than 99 bytes"),
        ("latin", "not text in UTF-8"),
        ("nothing", "No such file"),
        ("x" * 300, "name too long"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(NacreError, match=f"could not read the list .*{reason}"):
            read_text(tmp_path / name, "the list", limit=99)
    with pytest.raises(NacreError, match="not a regular file"):
        read_text(Path("/dev/zero"), "the list")


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfname")
    assert read_text(tmp_path / "a.txt", "list") == "name"


def test_a_name_that_is_not_utf_8_can_stand_in_a_text(tmp_path):
    save_text(tmp_path / "text.md", "a \udce9 b")
    assert (tmp_path / "text.md").read_text(encoding="utf-8") == "a \\udce9 b"


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


HOLD = """
import sys, time
from pathlib import Path
from nacre.utils.io import locked
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
