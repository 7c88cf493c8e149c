"""Bad values, and random ways to damage a file."""

import copy
import json
import os
import random
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_WORDS = """true null -1 0 1.5 1e400 .inf .nan abc [] {} [1,[2,[3]]] {a:1} 2020-13-45 1:30 0x_
[red]x[/] ~nobody/x /proc/self/mem .. [true,true,true]"""
BAD_YAML = [
    *_WORDS.split(),
    *("", "!!int x", "!!python/object/apply:os.system [true]", "&a [*a]", "a: b: c", "[" * 2000),
    *('"\\ud800"', '"\\e[31mred"', '"a\\0b"', "\u202e", "1" + "0" * 30, "9" * 5000, "x" * 5000),
]
BAD_OPTIONS = [
    *("", ".", "..", "~nobody/x", "a\n[/b]", "[red]", "-1", "nan", "1e999", "\udce9", "\x1b[2J"),
    *("x" * 300, "x/" * 3000, "9" * 400, "/dev/zero", "/proc/self/mem", "/nowhere/x"),
]
BAD_VALUES = [
    *(None, True, False, -1, 0, 1, 255, 0.5, 10**9, 10**30, -(2**63), 1e300, -1e-300),
    *(float("nan"), float("inf"), "", " ", "abc", "1", "../../x", "/etc/passwd", "\x00\x1b[31m\n"),
    *("9" * 5000, "x" * 100_000, "ü\ud800", [], [1], ["a", None], [[0, 0]] * 300, [[[[[]]]]]),
    *({}, {"a": {"b": [1]}}),
]
BAD_WORDS = ["", "-1", "1e999", "nan", "../x", "\x00", *'0x"<>&:,#[%= \ufeff\n', "9" * 5000]
_BOMB = b"\n".join(b"%c: [%s]" % (98 + i, b", ".join([b"*a"] * 9)) for i in range(9))
_ARRAY = b"\x93NUMPY\x01\x00N\x00{'descr': '<i8', 'fortran_order': False, 'shape': (10000000000,)}"
BAD_TEXTS = [
    *(b"", b"\0", b"\xff\xfe\x00", b"\xef\xbb\xbf", b"null", b"[]", b"{}", b"1", b'"x"', b"NaN"),
    *(b"[" * 20_000, b'{"a":' * 20_000, b'"\\ud800"', b"- " * 5000, b"a: &a [x, x]\n" + _BOMB),
    *(b"x" * 3_000_000, b"a,b\n" * 1000, b"PK\x03\x04" + b"\0" * 30, _ARRAY + b"\n"),
]


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the content cut, overwritten, repeated, swapped, or something else altogether."""
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    before, part, after = content[:start], content[start:end], content[end:]
    ways: list[Callable[[], bytes]] = [
        lambda: before + part,
        lambda: content[:-1],
        lambda: content * 2,
        lambda: before + after,
        lambda: before + bytes(len(part)) + after,
        lambda: before + rng.randbytes(len(part)) + after,
        lambda: before + part * rng.randrange(2, 20) + after,
        lambda: rng.choice(BAD_TEXTS),
    ]
    return rng.choice(ways)() if not content or rng.random() < 0.6 else _overwrite(content, rng)


def _overwrite(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        # What says how large the rest is stands at the beginning of most files.
        place = rng.randrange(min(len(changed), 512) if rng.random() < 0.5 else len(changed))
        changed[place] = rng.choice((0, 127, 255, rng.randrange(256), changed[place] ^ 1))
    return bytes(changed)


def damage_words(content: bytes, rng: random.Random) -> bytes:
    """Return a text with one word or sign exchanged, or some put between."""
    found = list(re.finditer(rb"[\w.]+|[^\w\s]", content))
    start, end = rng.choice(found).span() if found else (0, 0)
    words = [one.encode(errors="surrogatepass") for one in BAD_WORDS]
    new = rng.choice([*words, rng.choice(found)[0] if found else b"x", b"\xff"])
    return content[:start] + new * rng.choice((1, 1, 9)) + content[rng.choice((start, end)) :]


def damage_tree(content: Any, rng: random.Random) -> Any:
    """Return plain data with one value replaced or exchanged, or one key removed or added."""
    result = copy.deepcopy(content)
    places = list(_places(result))
    if not places or rng.random() < 0.05:
        return {**result, "other": 1} if isinstance(result, dict) else [result]
    holder, key = rng.choice(places)
    if rng.random() < 0.1:
        del holder[key]
    else:
        other, place = rng.choice(places)
        holder[key] = rng.choice([*BAD_VALUES, *[copy.deepcopy(other[place])] * 9])
    return result


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what holds a value, and its key; of a long list, the first and the last."""
    items = list(content.items() if isinstance(content, dict) else ())
    if isinstance(content, list):
        items = [*list(enumerate(content))[:3], *list(enumerate(content))[3:][-1:]]
    for key, value in items:
        yield content, key
        yield from _places(value)


def change_header(content: bytes, change: Callable[[Any], Any]) -> bytes:
    """Return a model file with a changed header: what nacre wrote beside the tensors."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    said = header["__metadata__"]
    said["nacre"] = json.dumps(change(json.loads(said["nacre"])))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


PLAIN: dict[str, Callable[[bytes, Callable[[Any], Any]], bytes]] = {
    ".json": lambda content, change: json.dumps(change(json.loads(content))).encode(),
    ".yaml": lambda content, change: yaml.safe_dump(change(yaml.safe_load(content))).encode(),
    ".safetensors": change_header,
}
"""How the plain data of a file are changed."""

OTHER_THINGS: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "a link to itself": lambda one: one.symlink_to(one),
    "a link to nothing": lambda one: one.symlink_to(one.with_name("nothing")),
    "a pipe": os.mkfifo,
    "missing": lambda one: None,
}


def damage_file(path: Path, rng: random.Random) -> str:
    """Damage a file in a way that its kind has; return how."""
    content, kind = path.read_bytes(), rng.random()
    if kind < 0.1:
        how = rng.choice(list(OTHER_THINGS))
        path.unlink()
        OTHER_THINGS[how](path)
        return how
    if kind < 0.6 and path.suffix in PLAIN:
        try:
            path.write_bytes(PLAIN[path.suffix](content, lambda plain: damage_tree(plain, rng)))
            return "another value"
        except (ValueError, KeyError, yaml.YAMLError):  # it was damaged before
            pass
    if kind < 0.6 and path.suffix in (".xml", ".yaml", ".txt", ".csv"):
        path.write_bytes(damage_words(content, rng))
        return "another word"
    path.write_bytes(damage_bytes(content, rng))
    return "other bytes"
