"""Claims: one process does a piece of work, and a dead one's work is taken over."""

import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from nacre.utils import claim
from nacre.utils.claim import Watch, list_claims, read_claim, remove_claims, take


@pytest.fixture
def place(tmp_path):
    return tmp_path / "ft-1"


def elsewhere(place, held):
    """Make a claim look like one of another machine."""
    note = replace(held.note, machine="another", host="other")
    held.path.write_text(json.dumps(asdict(note)))
    return held


def test_one_of_two_gets_a_claim_and_others_see_who(place):
    held = take(place)
    assert held is not None
    assert take(place) is None
    seen = read_claim(place)
    assert (seen.number, seen.note.process, seen.note.state) == (1, os.getpid(), "held")
    assert Watch().is_alive(seen)
    assert list_claims(place.parent) == {"ft-1": 1}


def _race(place, barrier, won):
    barrier.wait()
    if take(place, after=3) is not None:
        won.value += 1


def test_only_one_of_many_wins_a_race(place):
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(4), context.Value("i", 0)
    processes = [context.Process(target=_race, args=(place, barrier, won)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert won.value == 1
    assert [path.name for path in place.parent.iterdir()] == ["ft-1.claim-4"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of other processes")
def test_the_claim_of_a_process_that_is_gone_is_dead_at_once(place):
    code = (
        f"from pathlib import Path; from nacre.utils.claim import take; take(Path({str(place)!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    seen = read_claim(place)
    assert not Watch().is_alive(seen)
    assert take(place, seen.number).number == 2
    assert list_claims(place.parent) == {"ft-1": 2}


def test_a_holder_elsewhere_lives_while_it_beats(place, monkeypatch):
    held = elsewhere(place, take(place))
    watch = Watch()
    assert watch.is_alive(read_claim(place), patience=0.0), "seen for the first time"
    assert not watch.is_alive(read_claim(place), patience=0.0)
    assert watch.is_alive(read_claim(place), patience=60.0)
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.0)
    os.utime(held.path, ns=(1, 1))
    assert watch.is_alive(read_claim(place), patience=0.0), "it was touched"
    held.beat()
    assert watch.is_alive(read_claim(place), patience=0.0)


def test_who_was_taken_for_dead_notices(place):
    held = take(place)
    assert not held.is_lost
    other = take(place, after=held.number)
    assert held.is_lost
    held.release("failed", "too late")
    assert read_claim(place).note == other.note, "a late word of the old holder does not count"


def test_who_looked_late_takes_nothing_away(place):
    first = take(place)
    second = take(place, after=first.number)
    second.release()
    assert take(place, after=first.number) is None


def test_a_failure_is_told_and_what_is_done_leaves_nothing(place):
    held = take(place)
    held.release("failed", "not a finite number")
    seen = read_claim(place)
    assert (seen.note.state, seen.note.problem) == ("failed", "not a finite number")
    assert not Watch().is_alive(seen)
    (place.parent / ".ft-1.claim-1.abcdefgh").touch()
    (place.parent / "ft-10.claim-1").touch()
    remove_claims(place)
    assert [path.name for path in place.parent.iterdir()] == ["ft-10.claim-1"]


def test_a_damaged_claim_is_free(place):
    take(place).path.write_text("{")
    seen = read_claim(place)
    assert not Watch().is_alive(seen)
    assert take(place, seen.number).number == 2
