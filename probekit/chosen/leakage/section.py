"""The section `leakage` of an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from probekit.experiment.data import local_file
from probekit.section import Section, rule_error

if TYPE_CHECKING:
    from probekit.experiment.schema import Experiment

SPANS = "spans"  # in place of a file of cues


class LeakageSection(Section):
    """Scores of the chosen probe on test texts without cues, words that may reveal the label.

    Attributes:
        drop: the cues: a file in `data.root` with a word or phrase in each line, or `spans` for the
            labelled spans of the data
        draws: number of random draws of as many other words, whose scores are compared
    """

    drop: str = Field(min_length=1, examples=["words.txt", "spans"])
    draws: int = Field(5, ge=1, le=100)

    _file_is_local = field_validator("drop")(local_file)

    @property
    def files(self) -> tuple[str, ...]:
        """The files in `data.root` that it names."""
        return () if self.drop == SPANS else (self.drop,)


def check(settings: LeakageSection, experiment: Experiment) -> None:
    """Check the rules of an experiment with cues."""
    data, tokens, position = experiment.data, experiment.tokens, experiment.tokens.position
    if experiment.capture.requests is not None:
        raise rule_error(
            "`leakage` needs texts that the serving engine has not read: remove `capture.requests`",
            "leakage",
        )
    is_plain = not tokens.chat and tokens.ask is None
    if not is_plain or "all" in (position.at, position.pieces) or position.at == "index":
        raise rule_error(
            "`leakage` needs plain texts with one row each, at a word and not at an index: "
            "not `tokens.chat`, `tokens.ask`, `at: all`, `at: index` or `pieces: all`",
            "leakage",
        )
    has_spans = data.has_words or data.columns.start is not None
    if settings.drop == SPANS and (position.at in ("span", "word") or not has_spans):
        raise rule_error(
            "`drop: spans` requires `data.columns.start` and `end`, and a position that is not the "
            "span, such as `at: last`",
            "leakage.drop",
        )
