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
        chooses: whether each outer fold of a nested cross-validation chooses a site for it, by the
            validation scores of its own training rows.
        choice_of: for a nested choice, the target whose predictions each outer fold contributes at
            the site, kind and position that it chose itself; "" for other targets. If that target
            does not choose, the site is that of the task. A nested choice has no site either.
    """

    name: str
    title: str
    phrase: str
    is_baseline: bool = False
    chooses: bool = False
    choice_of: str = ""


_ROWS = (
    Target("task", "task", "the task", chooses=True),
    Target("control", "control task", "control task"),
    Target("random_weights", "random weights", "a random network", chooses=True),
    Target("majority", "majority", "the majority label", is_baseline=True),
    Target("word_identity", "word identity", "the words alone", is_baseline=True),
    Target("bag_of_words", "bag of words", "the bag of words", is_baseline=True),
    Target("length", "length", "the length alone", is_baseline=True),
    Target("chosen", "nested choice", "the nested choice", choice_of="task"),
    Target("chosen_control", "control task, nested choice", "control task", choice_of="control"),
    Target(
        "chosen_random_weights",
        "random weights, nested choice",
        "a random network",
        choice_of="random_weights",
    ),
    Target("chosen_embedding", "embedding, nested choice", "the embedding", choice_of="embedding"),
)
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _ROWS})

BASELINES = tuple(target.name for target in _ROWS if target.is_baseline)
# The nested choice of each target, by the name of that target.
NESTED = MappingProxyType({target.choice_of: target.name for target in _ROWS if target.choice_of})
# The score that a nested cross-validation reports: that of its own choices of the task.
HEADLINE = NESTED["task"]
NESTED_PROBE = "chosen"  # kind of probe of a nested choice, whose folds may choose several kinds

# Type checkers cannot evaluate the table; the schema of experiment files needs the exact names.
if TYPE_CHECKING:
    Baseline = str
else:
    Baseline = Literal[BASELINES]
