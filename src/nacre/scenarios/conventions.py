"""What papers do differently in the labels that training and testing see."""

from pydantic import BaseModel, ConfigDict, Field

from nacre.scenarios.classes import BorderRule, UnseenRule


class Conventions(BaseModel):
    """What papers do differently; the defaults are the paper's, and all are in the metrics."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    border: BorderRule = Field(
        "background",
        description="ignored-value pixels in training: background (paper) or ignored",
    )
    unseen: UnseenRule = Field(
        "ignored",
        description="classes not learnt yet in testing: ignored (paper) or background",
    )
