"""What a network costs, for the terminal."""

from rich.table import Table

from nacre.models.describe import Description


def table(description: Description) -> Table:
    """Lay a description out for people."""
    d = description
    result = Table(title=f"{d.config.backbone}, output stride {d.stride}, norm {d.config.norm}")
    result.add_column("what")
    result.add_column("how much", justify="right")
    for part, count in d.parameters.items():
        result.add_row(f"parameters of the {part}", f"{count / 1e6:.2f} M")
    result.add_row(f"forward pass of one {d.crop} x {d.crop} crop", f"{d.flops / 1e9:.1f} GFLOP")
    result.add_section()
    result.add_row(f"kept for the backward pass of {d.batch} crops, {d.precision}", _gib(d.kept))
    if d.kept_inplace is not None:
        result.add_row("  with batch norm + leaky ReLU", _gib(d.kept_plain))
        result.add_row("  with in-place ABN", _gib(d.kept_inplace))
    result.add_row("parameters, gradients, momentum", _gib(d.state))
    result.add_row("teacher", _gib(d.teacher))
    result.add_row(f"full-size logits of {d.num_classes} classes", _gib(d.logits))
    return result


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
