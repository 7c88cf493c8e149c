"""Values that do not belong where they are put, and ways to damage a file; each is drawn."""

import copy
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WORDS = """true null -1 0 1.5 1e400 .inf .nan abc [] {} [1,[2,[3]]] {a:1} 2020-13-45 1:30 0x_
[red]x[/] ~nobody/x /proc/self/mem .. [true,true,true]"""
BAD_YAML = [
    *_WORDS.split(),
    *("", "!!int x", "!!python/object/apply:os.system [true]", "&a [*a]", "a: b: c", "[" * 2000),
    *('"\\ud800"', '"\\e[31mred"', '"a\\0b"', "\u202e", "1" + "0" * 30, "9" * 5000, "x" * 5000),
]
BAD_VALUES = [
    *(None, True, -1, 0, 1.5, 10**9, 10**30, 1e300, "", "abc", "\x1b[31m", "x" * 100_000),
    *([], [1], ["a", None], {}, {"a": 1}, [[[[[]]]]]),
]
_BOMB = b"\n".join(b"%c: [%s]" % (98 + i, b", ".join([b"*a"] * 9)) for i in range(9))
_ARRAY = b"\x93NUMPY\x01\x00N\x00{'descr': '<i8', 'fortran_order': False, 'shape': (10000000000,)}"
BAD_TEXTS = [
    *(b"", b"\0", b"\xff\xfe\x00", b"\xef\xbb\xbf", b"null", b"[]", b"{}", b"1", b'"x"', b"NaN"),
    *(b"[" * 20_000, b'{"a":' * 20_000, b'"\\ud800"', b"- " * 5000, b"a: &a [x, x]\n" + _BOMB),
    *(b"x" * 3_000_000, b"a,b\n" * 1000, b"PK\x03\x04" + b"\0" * 30, _ARRAY + b"\n"),
]


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the content cut, overwritten, repeated, swapped, or something else altogether."""
    size = len(content)
    start, end = sorted(rng.randrange(size + 1) for _ in range(2))
    ways: list[Callable[[], bytes]] = [
        lambda: content[:end],
        lambda: content[:-1],
        lambda: content * 2,
        lambda: content[:start] + content[end:],
        lambda: content[:start] + bytes(end - start) + content[end:],
        lambda: content[:start] + content[start:end] * rng.randrange(2, 20) + content[end:],
        lambda: rng.choice(BAD_TEXTS),
    ]
    return rng.choice(ways)() if rng.random() < 0.6 else _overwrite(content, rng)


def _overwrite(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        # What says how large the rest is stands at the beginning of most files.
        place = rng.randrange(min(len(changed), 512) if rng.random() < 0.5 else len(changed))
        changed[place] = rng.choice((0, 127, 255, rng.randrange(256)))
    return bytes(changed)


def damage_tree(content: Any, rng: random.Random) -> tuple[str, Any]:
    """Return plain data with one value replaced, or one key removed or added, and how."""
    places = list(_places(content, ()))
    if not places or rng.random() < 0.05:
        return "another key", {**content, "other": 1} if isinstance(content, dict) else content
    place, value, result = rng.choice(places), rng.choice(BAD_VALUES), copy.deepcopy(content)
    inside = result
    for key in place[:-1]:
        inside = inside[key]
    if rng.random() < 0.1:
        del inside[place[-1]]
        return f"without {'.'.join(map(str, place))}", result
    inside[place[-1]] = value
    return f"{'.'.join(map(str, place))} = {str(value)[:20]!r}", result


def _places(content: Any, before: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    items = content.items() if isinstance(content, dict) else ()
    for key, value in list(enumerate(content))[:3] if isinstance(content, list) else items:
        yield (*before, key)
        yield from _places(value, (*before, key))


OTHER_THINGS: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "a link to itself": lambda one: one.symlink_to(one),
    "a link to nothing": lambda one: one.symlink_to(one.with_name("nothing")),
    "a pipe": os.mkfifo,
    "missing": lambda one: None,
}
