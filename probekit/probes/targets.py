"""Table of targets: the values of the column `target` in results.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
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
        is_tuned: whether it is a baseline with a penalty, selected by cross-validation from
            `BASELINE_GRIDS`.
        network: for predictions by one network with random weights, the number of that network.
        is_mean_of_networks: whether its scores are the means over all networks with random weights.
        chooses: whether each outer fold of a nested cross-validation chooses a site for it, by
            validation scores on the training rows of that fold.
        choice_of: for a target whose score combines chosen sites, the target that is scored there,
            such as "task"; "embedding" for the task at the embedding of the chosen line; "" for
            targets that combine nothing. In a nested cross-validation each outer fold chooses
            a site, a kind and a position, and the predictions of all folds are scored together.
            Choices are made for the scored target if it `chooses`, else for the task. Networks
            with random weights choose sites for any split, each for itself. Combined scores have no
            site.
    """

    name: str
    title: str
    phrase: str
    is_baseline: bool = False
    is_tuned: bool = False
    network: int | None = None
    is_mean_of_networks: bool = False
    chooses: bool = False
    choice_of: str = ""


# Beginning of messages that explain why there is no control task; the reason follows.
NO_CONTROL_TASK = "No control task: "
MOST_NETWORKS = 9  # maximum number of networks with random weights

_tuned_baseline = partial(Target, is_baseline=True, is_tuned=True)
_ROWS = (
    Target("task", "task", "the task", chooses=True),
    Target("control", "control task", "control task"),
    Target("random_weights", "random weights", "random weights", is_mean_of_networks=True),
    *(
        Target(
            f"random_weights_{n}",
            f"random weights, network {n}",
            f"random network {n}",
            network=n,
            chooses=True,
        )
        for n in range(MOST_NETWORKS)
    ),
    Target("within_sources", "inside the sources", "the same inside the sources", chooses=True),
    Target("majority", "majority", "the majority class", is_baseline=True),
    Target("word_identity", "word identity", "word identity", is_baseline=True),
    _tuned_baseline("bag_of_words", "bag of words", "the bag of words"),
    _tuned_baseline("n_grams", "n-grams", "n-grams of the text"),
    _tuned_baseline("neighbouring_words", "neighbouring words", "the neighbouring words"),
    _tuned_baseline("length", "length", "the length alone"),
    _tuned_baseline("output", "network output", "the network's own confidence"),
    Target("chosen", "chosen", "the chosen probes", choice_of="task"),
    Target("chosen_control", "control task, chosen", "control task", choice_of="control"),
    Target(
        "chosen_random_weights",
        "random weights, own sites",
        "random weights",
        is_mean_of_networks=True,
        choice_of="random_weights",
    ),
    Target("chosen_embedding", "embedding, chosen", "the embedding", choice_of="embedding"),
    Target(
        "chosen_within_sources",
        "inside the sources, chosen",
        "the same inside the sources",
        choice_of="within_sources",
    ),
)
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _ROWS})

# Predictions of single networks with random weights, in the order of their seeds.
NETWORKS = tuple(target.name for target in _ROWS if target.network is not None)

# Name and values of the penalty of tuned baselines, for labels that are classes and numbers.
BASELINE_GRIDS: Mapping[Literal["class", "number"], tuple[str, tuple[float, ...]]] = (
    MappingProxyType(
        {
            "class": ("C", (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)),
            "number": ("alpha", (10000.0, 1000.0, 100.0, 10.0, 1.0, 0.1)),
        }
    )
)

BASELINES = tuple(target.name for target in _ROWS if target.is_baseline)
# Target -> target of the combined score at its chosen sites: "task" -> "chosen".
NESTED = MappingProxyType({target.choice_of: target.name for target in _ROWS if target.choice_of})
# The target of the main score of a nested cross-validation: the task at the chosen sites.
HEADLINE = NESTED["task"]
# The task in a nested cross-validation whose folds mix the sources of `split.leave_out`.
WITHIN = "within_sources"
NESTED_PROBE = "chosen"  # kind of probe of a nested choice, whose folds may choose several kinds

# Type checkers cannot evaluate the table; the schema of experiment files needs the exact names.
if TYPE_CHECKING:
    Baseline = str
else:
    Baseline = Literal[BASELINES]
