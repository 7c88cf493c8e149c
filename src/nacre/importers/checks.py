"""What must hold before and after painting, so that no mask is silently wrong."""

from collections import defaultdict
from collections.abc import Sequence

from nacre.errors import NacreError
from nacre.importers.catalog import NUM_SPECIAL, Catalog, Picture
from nacre.importers.painting.paint import MISSING, Outcome
from nacre.importers.problems import Unusable, brief, counted, some

_WHERE = "say where they are with --images FOLDER"


def check_catalog(catalog: Catalog, title: str) -> None:
    """Refuse an export that names no picture or holds none."""
    pictures = catalog.pictures
    if not pictures:
        raise NacreError(f"the export ({title}) names no picture")
    problem = next((one.problem for one in pictures if one.problem is not None), None)
    if len(catalog.names) == NUM_SPECIAL and problem is not None:
        # Where nothing could be read there are no classes either, and that is not the reason.
        name = brief(next(one.name for one in pictures if one.problem is problem))
        raise NacreError(f"nothing of the export ({title}) can be imported; {name}: {problem}")
    is_there = any(one.match or one.embedded or one.problem for one in pictures)
    if not is_there:
        names = some((one.name for one in pictures), 3)
        raise NacreError(
            f"the export ({title}) names {counted(len(pictures), 'picture')} ({names}) but holds "
            f"none of their files; {_WHERE}"
        )


def settle_claims(catalog: Catalog) -> None:
    """See that no file is taken for two pictures: a whole matching path goes before a last part."""
    claims: dict[tuple[int, str], list[Picture]] = defaultdict(list)
    for picture in catalog.pictures:
        if picture.match is not None:
            claims[picture.match.file.tree, picture.match.file.path].append(picture)
    for claimants in claims.values():
        full = [one for one in claimants if one.match is not None and one.match.is_full]
        rivals = full or claimants
        for picture in claimants:
            if picture not in rivals:
                picture.match = None
            elif len(rivals) > 1 and picture.problem is None:
                # Nobody can say which of them was drawn on it.
                other = next(one.name for one in rivals if one is not picture)
                picture.problem = Unusable(
                    "two annotations name its file", f"the other one as {brief(other)}"
                )


def settle_masks(catalog: Catalog) -> None:
    """See that no mask is taken for two pictures: nobody can say for which it was made."""
    owner: dict[tuple[int, str], int] = {}
    for index, picture in enumerate(catalog.pictures):
        if picture.mask is None:
            continue
        file = picture.mask.file
        first = owner.setdefault((file.tree, file.path), index)
        if first != index:
            for i in (first, index):
                problem = Unusable("its mask is that of another picture as well", brief(file.path))
                catalog.spoil(i, problem)


def check_masks(catalog: Catalog, outcomes: Sequence[Outcome]) -> None:
    """Refuse masks with values that have no class: names and masks do not belong together."""
    bad = [one for one in outcomes if one.unknown]
    if not bad:
        return
    values = bad[0].unknown or {}
    mask = catalog.pictures[bad[0].index].mask
    assert mask is not None
    value, count = max(values.items(), key=lambda item: item[1])
    what = f"the value {value}"
    if mask.coding.kind == "colors":
        what = f"the colour {value & 255},{value >> 8 & 255},{value >> 16}"
    more = f" and {counted(len(values) - 1, 'other')}" if len(values) > 1 else ""
    raise NacreError(
        f"{counted(len(bad), 'mask')} hold what no class stands for; first "
        f"{brief(mask.file.path)}: {what} in {counted(count, 'pixel')}{more}; nothing was imported"
    )


def nothing_written(catalog: Catalog, outcomes: Sequence[Outcome], title: str) -> NacreError:
    """Return the error for an export of which no picture could be imported."""
    first = outcomes[0]
    assert first.problem is not None
    reason = first.problem.reason
    same = sum(one.problem is not None and one.problem.reason == reason for one in outcomes)
    name = brief(catalog.pictures[first.index].name)
    why = f"{first.problem}; {_WHERE}" if reason == MISSING else str(first.problem)
    if len(outcomes) == 1:
        return NacreError(f"the only picture of the export ({title}), {name}, is left out: {why}")
    return NacreError(
        f"none of the {len(outcomes):,} pictures of the export ({title}) can be imported; "
        f"{same:,} of them, such as {name}: {why}"
    )
