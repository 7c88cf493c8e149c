"""The step in which each class of a data set is learned, and so its channel."""

from dataclasses import dataclass
from functools import cached_property

from nacre.errors import NacreError
from nacre.labels.channels import Channels, Growth, first_channels, from_background
from nacre.labels.mapping import LabelMapping, LabelPolicy, mapping_for_tests, mapping_for_training
from nacre.labels.space import BACKGROUND, LabelSpace

StepLabels = tuple[tuple[int, ...], ...]
"""The labels that each step learns."""


@dataclass(frozen=True)
class ClassSchedule:
    """The classes of each step, and so the channel of each class.

    Attributes:
        space: The classes of the labels.
        steps: The labels that each step learns, in order.
    """

    space: LabelSpace
    steps: StepLabels

    def __post_init__(self) -> None:
        """Refuse empty steps, repeated classes and too many channels."""
        if not self.steps:
            raise NacreError("there is no step; at least one is needed")
        learned: set[int] = set()
        for step, labels in enumerate(self.steps):
            if not labels:
                raise NacreError(f"step {step} learns no class; each step needs at least one")
            for label in labels:
                name = self.space.names[self.space.label_of(label)]
                if label in learned:
                    raise NacreError(f"class {name!r} is learned twice; step {step} repeats it")
                learned.add(label)
        _ = self._channels

    def new(self, step: int) -> tuple[int, ...]:
        """Return the labels learned in a step."""
        return self.steps[step]

    def old(self, step: int) -> tuple[int, ...]:
        """Return the labels learned before a step."""
        return tuple(label for labels in self.steps[:step] for label in labels)

    def seen(self, step: int) -> tuple[int, ...]:
        """Return the labels learned up to and including a step, in channel order."""
        return self.old(step) + self.new(step)

    def future(self, step: int) -> tuple[int, ...]:
        """Return the labels learned after a step."""
        return tuple(label for labels in self.steps[step + 1 :] for label in labels)

    @cached_property
    def _channels(self) -> tuple[Channels, ...]:
        """The channels after each step."""
        names, own = self.space.names, dict(self.space.colors)
        colors = {name: own[label] for label, name in names.items() if label in own}
        if self.space.background in own:
            colors[BACKGROUND] = own[self.space.background]
        by_step: list[Channels] = []
        for labels in self.steps:
            new = [names[label] for label in labels]
            if by_step:
                by_step.append(by_step[-1].extended(new, colors))
            else:
                by_step.append(first_channels(new, colors))
        return tuple(by_step)

    def channels(self, step: int) -> Channels:
        """Return the channels of the network after a step."""
        return self._channels[step]

    def names(self, step: int) -> tuple[str, ...]:
        """Return the class names by channel."""
        return self.channels(step).names

    def growth(self, step: int) -> Growth:
        """Return the channels that a step adds."""
        num_old = len(self.channels(step - 1)) if step else 0
        return from_background(num_old, len(self.channels(step)))

    def training_mapping(
        self, step: int, policy: LabelPolicy, *, at: int | None = None
    ) -> LabelMapping:
        """Return the training mapping of a step's images, which label its own classes only.

        Args:
            step: The step that labels the images.
            policy: The rule for labels without a channel.
            at: The step that trains on them, if it is a later one with more channels.
        """
        labeled = {label: self.space.names[label] for label in self.new(step)}
        channels = self.channels(step if at is None else at)
        return mapping_for_training(channels, self.space, policy, labeled)

    def testing_mapping(self, step: int, policy: LabelPolicy) -> LabelMapping:
        """Return the mapping of the test images after a step, which label all classes."""
        never = set(self.space.names) - set(self.seen(len(self.steps) - 1))
        labeled = self.space.names
        return mapping_for_tests(self.channels(step), self.space, policy, labeled, never)

    def merged(self) -> "ClassSchedule":
        """Return the schedule with all classes in one step, for joint training."""
        return ClassSchedule(self.space, (self.seen(len(self.steps) - 1),))


@dataclass(frozen=True)
class NamedTask:
    """A task whose class lists are published, not derived from its numbers.

    Attributes:
        steps: The labels of each step.
        partition_as: The finer steps of the partition rule, if they are not `steps`.
    """

    steps: StepLabels
    partition_as: StepLabels | None = None
