"""Many pairs of picture and mask, made when they are looked at: a million take no memory."""

from collections.abc import Callable, Sequence
from typing import overload

from nacre.data.index.scan import Pair


class Pairs(Sequence[Pair]):
    """Pairs by the names of their images.

    Args:
        names: The names, in the order of the pairs.
        find: Returns the pair of a name.
    """

    def __init__(self, names: Sequence[str], find: Callable[[str], Pair]) -> None:
        self.names, self.find = names, find

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, i: int) -> Pair: ...
    @overload
    def __getitem__(self, i: slice) -> "Pairs": ...
    def __getitem__(self, i: int | slice) -> "Pair | Pairs":
        if isinstance(i, slice):
            return Pairs(self.names[i], self.find)
        return self.find(self.names[i])


def sort_pairs(pairs: Sequence[Pair]) -> Pairs:
    """Return pairs in the order of their names."""
    if isinstance(pairs, Pairs):
        return Pairs(sorted(pairs.names), pairs.find)
    by_name = {pair.name: pair for pair in pairs}
    return Pairs(sorted(by_name), by_name.__getitem__)
