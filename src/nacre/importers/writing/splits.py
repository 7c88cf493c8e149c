"""The split lists of an export, in the form that nacre's folders have: both of two, or none."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from nacre.importers.problems import counted


def plan_lists(files: Iterable[tuple[str, str | None]]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the lists to write and what people should know of them.

    Args:
        files: Picture file and split (train, val, test, or None).
    """
    by_split: dict[str | None, list[str]] = defaultdict(list)
    for file, split in files:
        by_split[split].append(file)
    train, val, test = (by_split[split] for split in ("train", "val", "test"))
    if not by_split.keys() - {None} or not any((train, val, test)):
        return {}, []
    if not (train and (val or test)):
        there = " and ".join(split for split in ("train", "val", "test") if by_split[split])
        return {}, [
            f"the export has only the split {there}: no lists are written, and one picture in five "
            "is for testing"
        ]
    lists = {"train": train, "val": val or test}
    if val and test:
        lists["test"] = test
    return lists, list(_notes(val, test, by_split[None]))


def _notes(val: Sequence[str], test: Sequence[str], rest: Sequence[str]) -> Iterator[str]:
    if not val:
        yield "the export has no validation split: its test split is val.txt"
    if val and test:
        yield "test.txt keeps the test split; nacre trains on train.txt and tests on val.txt"
    if rest:
        yield f"{counted(len(rest), 'picture')} belong to no split and stand in no list"
