"""How figures are written."""


def percent(share: float | None, digits: int = 1) -> str:
    """Write a share of 1 in per cent, without the sign; nothing where there is none."""
    if share is None:
        return ""
    written = f"{100 * share:.{digits}f}"
    # Rounding must not leave a minus before nothing.
    return written.replace("-", "−") if float(written) else written.removeprefix("-")
