"""The results of a scenario in sentences with the numbers in them."""

from nacre.report.numbers import percent
from nacre.report.results.aggregate import Row, ScenarioResults

Sentences = list[str]

MOST_NAMED = 4
"""Methods that a sentence compares one by one."""


def summary(results: ScenarioResults) -> Sentences:
    """Say what the rows of a scenario show, best first."""
    ranked = _rank(results)
    parts = [_task(results)]
    if ranked:
        parts.append(_winner(results, ranked))
        parts += [sentence for sentence in (_bound(results, ranked[0]), _kept(ranked)) if sentence]
        parts += [sentence for sentence in (_new(results, ranked),) if sentence]
    return parts


def join_names(names: list[str]) -> str:
    """Write ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _rank(results: ScenarioResults) -> list[Row]:
    scored = [(row.mean(results.final, "all"), row) for row in results.incremental]
    held = [(score, row) for score, row in scored if score is not None]
    return [row for _, row in sorted(held, key=lambda pair: -pair[0])]


def _task(results: ScenarioResults) -> str:
    sizes = [str(len(names)) for names in results.groups]
    classes = len(results.classes)
    if len(sizes) == 1:
        return f"All {classes} classes are learnt in one step."
    dealt = join_names(sizes)
    if len(sizes) > 3 and len(set(sizes[1:])) == 1:
        dealt = f"{sizes[0]}, then {len(sizes) - 1} times {sizes[1]}"
    return f"{classes} classes are learnt in {len(sizes)} steps: {dealt}."


def _winner(results: ScenarioResults, ranked: list[Row]) -> str:
    scores = [row.mean(results.final, "all") or 0.0 for row in ranked]
    text = (
        f"After the last step {ranked[0].name} reaches {percent(scores[0])} % mIoU over all classes"
    )
    rest = [
        f"{percent(scores[0] - score)} points above {row.name} ({percent(score)} %)"
        for row, score in list(zip(ranked, scores, strict=True))[1:]
    ]
    if len(rest) > MOST_NAMED:
        rest = [f"{rest[0]}, the next", f"{rest[-1]}, the last"]
    return f"{text}, {join_names(rest)}." if rest else f"{text}."


def _bound(results: ScenarioResults, best: Row) -> str:
    bounds = [row for row in results.rows if row.merged]
    if not bounds:
        return ""
    bound, score = bounds[0].mean(results.final, "all"), best.mean(results.final, "all")
    if bound is None or score is None:
        return ""
    parts = f"{bounds[0].name} training, which sees every class at once, reaches {percent(bound)} %"
    gap = f", {percent(bound - score)} points more than {best.name}" if bound > score else ""
    return f"{parts}{gap}."


def _kept(ranked: list[Row]) -> str:
    shares = [(row, row.kept()) for row in ranked]
    parts = [f"{row.name} keeps {percent(kept, 0)} %" for row, kept in shares if kept is not None]
    if len(parts) > MOST_NAMED:
        parts = [*parts[:2], parts[-1]]
    return f"Of what step 0 knew, {join_names(parts)}." if parts else ""


def _new(results: ScenarioResults, ranked: list[Row]) -> str:
    if results.final == 0:
        return ""
    best = max(ranked, key=lambda row: row.mean(results.final, "new") or 0.0)
    score = best.mean(results.final, "new")
    classes = (
        join_names(list(results.groups[-1])) if len(results.groups[-1]) <= 6 else "its classes"
    )
    if score is None:
        return ""
    parts = f"The classes of the last step ({classes}) are known best by {best.name}"
    return f"{parts}: {percent(score)} %."
