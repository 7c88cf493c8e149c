"""What papers do differently in the labels that training and testing see."""

from pydantic import Field

from nacre.scenarios.classes import BorderRule, UnseenRule
from nacre.utils.config import Config


class Conventions(Config):
    """What papers do differently; the defaults are those of MiB's released implementation."""

    border: BorderRule = Field(
        "background",
        description="pixels of the ignored label (255) in training: background, as the paper makes "
        "VOC's border, or ignored, which is the default for a folder of one's own",
    )
    unseen: UnseenRule = Field(
        "ignored",
        description="classes not learnt yet in testing: ignored (paper) or background",
    )
