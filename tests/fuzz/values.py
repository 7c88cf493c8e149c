"""Values that do not belong where they are put, and ways to damage a file."""

import copy
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BAD_YAML = (
    "",
    "true",
    "null",
    "-1",
    "0",
    "1.5",
    "1e400",
    ".inf",
    ".nan",
    "1" + "0" * 30,
    "9" * 5000,
    "abc",
    "[]",
    "[1, [2, [3]]]",
    "{a: 1}",
    "{}",
    "2020-13-45",
    "1:30",
    "0x_",
    "!!int x",
    "!!python/object/apply:os.system [true]",
    '"\\ud800"',
    '"\\e[31mred"',
    '"a\\0b"',
    "[red]x[/]",
    "[" * 2000,
    "&a [*a]",
    "~nobody/x",
    "/proc/self/mem",
    "x" * 5000,
    "..",
    "[true, true, true]",
    "a: b: c",
    "\u202e",
)

BAD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**9,
    10**30,
    1e300,
    "",
    "abc",
    "\x1b[31m",
    "x" * 100_000,
    [],
    [1],
    ["a", None],
    {},
    {"a": 1},
    [[[[[]]]]],
)

BAD_TEXTS: tuple[bytes, ...] = (
    b"",
    b"\0",
    b"\xff\xfe\x00",
    b"\xef\xbb\xbf",
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b"null",
    b"[]",
    b"{}",
    b"1",
    b'"x"',
    b'"\\ud800"',
    b"NaN",
    b"- " * 5000,
    b"a: &a [x, x]\n"
    + b"\n".join(b"%c: [%s]" % (98 + i, b", ".join([b"*a"] * 9)) for i in range(9)),
    b"x" * 3_000_000,
    b"a,b\n" * 1000,
    b"PK\x03\x04" + b"\0" * 30,
    b"\x93NUMPY\x01\x00N\x00{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}\n",
)


def damage_bytes(content: bytes, rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the content cut, overwritten, repeated and mixed with other bytes."""
    yield "cut in half", content[: len(content) // 2]
    yield "without its last byte", content[:-1]
    yield "twice", content * 2
    yield "zeros in the middle", content[: len(content) // 3] + b"\0" * (len(content) // 3)
    for i in range(count):
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        yield f"random bytes {i}", bytes(changed)
    yield from ((f"text {i}", text) for i, text in enumerate(BAD_TEXTS))


def damage_tree(content: Any, limit: int, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Yield plain data with one value replaced or one key removed or added."""
    places = list(_places(content, ()))
    cases = [(place, value) for place in places for value in BAD_VALUES]
    for place, value in rng.sample(cases, min(limit, len(cases))):
        yield f"{'.'.join(map(str, place))} = {str(value)[:20]!r}", _changed(content, place, value)
    for place in rng.sample(places, min(limit // 10 + 1, len(places))):
        yield f"without {'.'.join(map(str, place))}", _changed(content, place, _GONE)
    yield "another key", {**content, "other": 1} if isinstance(content, dict) else content


_GONE = object()


def _places(content: Any, before: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(content, dict):
        items = iter(content.items())
    elif isinstance(content, list):
        items = iter(list(enumerate(content))[:3])
    for key, value in items:
        yield (*before, key)
        yield from _places(value, (*before, key))


def _changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    result = copy.deepcopy(content)
    inside = result
    for key in place[:-1]:
        inside = inside[key]
    if value is _GONE:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return result


def as_other_thing(path: Path) -> Iterator[str]:
    """Make the path a folder, a link to itself, a link to nothing, a pipe; say which it is."""
    makers: dict[str, Callable[[Path], Any]] = {
        "a folder": Path.mkdir,
        "a link to itself": lambda one: one.symlink_to(one),
        "a link to nothing": lambda one: one.symlink_to(one.with_name("nothing")),
        "a pipe": os.mkfifo,
    }
    content = path.read_bytes()
    for name, make in makers.items():
        path.unlink()
        make(path)
        yield name
        path.rmdir() if name == "a folder" else path.unlink()
        path.write_bytes(content)
    path.unlink()
    yield "missing"
    path.write_bytes(content)
