"""Table of targets: the values of the column `target` in results.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True)
class Target:
    """Target of a prediction: the task, a control or a baseline.

    Attributes:
        name: the value in the column `target`.
        title: the name in legends and tables.
        phrase: the name in sentences that compare the chosen probe with it.
        is_baseline: whether it is predicted without activations, and therefore has no site.
    """

    name: str
    title: str
    phrase: str
    is_baseline: bool = False


_ROWS = (
    Target("task", "task", "the task"),
    Target("control", "control task", "control task"),
    Target("random_weights", "random weights", "a random network"),
    Target("majority", "majority", "the majority label", is_baseline=True),
    Target("word_identity", "word identity", "the words alone", is_baseline=True),
    Target("bag_of_words", "bag of words", "the bag of words", is_baseline=True),
    Target("length", "length", "the length alone", is_baseline=True),
)
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _ROWS})

BASELINES = tuple(target.name for target in _ROWS if target.is_baseline)

# Type checkers cannot evaluate the table; the schema of experiment files needs the exact names.
if TYPE_CHECKING:
    Baseline = str
else:
    Baseline = Literal[BASELINES]
