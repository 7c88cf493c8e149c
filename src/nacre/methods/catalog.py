"""The catalog of methods: their names, titles and papers. Importing it imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodEntry:
    """An entry of the catalog.

    Attributes:
        place: ``module:Class``.
        title: Its name in tables.
        summary: What it does, in a line.
        regularizes: What it holds on to.
        paper: Where it is from.
    """

    place: str
    title: str
    summary: str
    regularizes: str
    paper: str


# In the order of the paper's tables, then by year; tables and pages show them so.
ENTRIES: dict[str, MethodEntry] = {
    "ft": MethodEntry(
        "nacre.methods.ft:FineTuning",
        title="FT",
        summary="cross-entropy alone; forgets",
        regularizes="nothing",
        paper="baseline FT",
    ),
    "pi": MethodEntry(
        "nacre.methods.pi:Pi",
        title="PI",
        summary="holds parameters whose movement lowered the loss",
        regularizes="parameters that lowered the loss",
        paper="Zenke et al. 2017",
    ),
    "ewc": MethodEntry(
        "nacre.methods.ewc:Ewc",
        title="EWC",
        summary="holds parameters whose gradients were large",
        regularizes="parameters with large gradients",
        paper="Kirkpatrick et al. 2017",
    ),
    "rw": MethodEntry(
        "nacre.methods.rw:Rw",
        title="RW",
        summary="ewc and a score along the path of learning",
        regularizes="parameters, both ways",
        paper="Chaudhry et al. 2018",
    ),
    "lwf": MethodEntry(
        "nacre.methods.lwf:Lwf",
        title="LwF",
        summary="distillation of the old channels",
        regularizes="outputs of old channels",
        paper="Li and Hoiem 2017",
    ),
    "lwf-mc": MethodEntry(
        "nacre.methods.lwf_mc:LwfMc",
        title="LwF-MC",
        summary="distillation with a sigmoid per class",
        regularizes="outputs of old channels",
        paper="Rebuffi et al. 2017",
    ),
    "lwf-mc-d": MethodEntry(
        "nacre.methods.lwf_mc:LwfMcD",
        title="LwF-MC-D",
        summary="lwf-mc with the background from the teacher",
        regularizes="outputs of old channels",
        paper="Rebuffi et al. 2017",
    ),
    "lwf-mc-c": MethodEntry(
        "nacre.methods.lwf_mc:LwfMcC",
        title="LwF-MC-C",
        summary="lwf-mc with the background from the labels",
        regularizes="outputs of old classes",
        paper="Rebuffi et al. 2017",
    ),
    "ilt": MethodEntry(
        "nacre.methods.ilt:Ilt",
        title="ILT",
        summary="distillation of the old channels and of the features",
        regularizes="outputs of old channels, features",
        paper="Michieli and Zanuttigh 2019",
    ),
    "mib": MethodEntry(
        "nacre.methods.mib:Mib",
        title="MiB",
        summary="losses and initialization that model what the background hides",
        regularizes="outputs of old channels, unbiased",
        paper="Cermelli et al. 2020",
    ),
    "plop": MethodEntry(
        "nacre.methods.plop:Plop",
        title="PLOP",
        summary="pseudo-labels, and features held by the means of their bands",
        regularizes="features of all stages",
        paper="Douillard et al. 2021",
    ),
    "ssul": MethodEntry(
        "nacre.methods.ssul:Ssul",
        title="SSUL",
        summary="a frozen network with a sigmoid per class and a row for what is unknown",
        regularizes="everything: it is frozen",
        paper="Cha et al. 2021",
    ),
    "dkd": MethodEntry(
        "nacre.methods.dkd:Dkd",
        title="DKD",
        summary="a sigmoid per class; logits and their positive and negative parts distilled",
        regularizes="outputs of old classes, and their parts",
        paper="Baek et al. 2022",
    ),
    "ewf": MethodEntry(
        "nacre.methods.ewf:Ewf",
        title="EWF",
        summary="mib, and a fusion of old and new weights after each step",
        regularizes="weights, after the step",
        paper="Xiao et al. 2023",
    ),
    "lgkd": MethodEntry(
        "nacre.methods.lgkd:Lgkd",
        title="LGKD",
        summary="plop, and a distillation of all channels that the labels guide",
        regularizes="features of all stages, outputs",
        paper="Yang et al. 2023",
    ),
    "star": MethodEntry(
        "nacre.methods.star:Star",
        title="STAR",
        summary="a sigmoid per class; statistics of old classes' features are replayed",
        regularizes="features of old classes; their statistics",
        paper="Chen et al. 2023",
    ),
    "dft": MethodEntry(
        "nacre.methods.dft:Dft",
        title="DFT",
        summary="a frozen network, of which only the new rows learn",
        regularizes="everything: it is frozen",
        paper="Revisiting CSS 2025 (DFT*)",
    ),
    "ledger": MethodEntry(
        "nacre.methods.ledger:Ledger",
        title="Ledger",
        summary="frozen backbone; a head in closed form from sums kept per class, in one pass",
        regularizes="everything: the sums of old classes stay",
        paper="nacre's own, after AIR 2024",
    ),
    "duo": MethodEntry(
        "nacre.methods.duo:Duo",
        title="Duo",
        summary="frozen backbone; the ledger and a decoder learned by mib, their scores added",
        regularizes="the sums of old classes stay; outputs of old channels, unbiased",
        paper="nacre's own",
    ),
    "joint": MethodEntry(
        "nacre.methods.joint:Joint",
        title="Joint",
        summary="all classes at once, with all labels; the upper bound",
        regularizes="nothing",
        paper="baseline Joint",
    ),
}
