"""Table of the kinds of probe: name, options, task, penalty and import path.

This module imports no numerical libraries, so that experiment files can be checked quickly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from probekit.errors import ConfigError, UnknownNameError, nearest


def positive_grid(name: str, values: float | Sequence[float]) -> tuple[float, ...]:
    """Return the candidate values of a penalty in ascending order.

    Raises:
        ConfigError: No value is given, a value is not a positive finite number, or a value is
            given twice.

    >>> positive_grid("C", [1.0, 0.1])
    (0.1, 1.0)
    """
    plain = _to_python(values)
    try:
        grid = sorted(map(_number, plain if isinstance(plain, list | tuple) else [plain]))
    except (TypeError, ValueError, OverflowError) as error:  # 10**400 is too large for a float
        raise ConfigError(
            f"{name} is {values!r}. Give at least one number, such as 0.01."
        ) from error
    invalid = [value for value in grid if not 0 < value < math.inf]
    if invalid or not grid:
        raise ConfigError(
            f"{name} must be positive and finite, but is {invalid or 'empty'}. Give at least one "
            "value, such as 0.01 or [0.01, 0.1, 1.0]."
        )
    if len(set(grid)) < len(grid):
        raise ConfigError(f"{name} contains a value twice: {', '.join(map(str, grid))}.")
    return tuple(grid)


def _number(value: Any) -> float:
    """Return a value as a float; raise an error if it is a bool, no number, or too large."""
    plain = _to_python(value)
    if isinstance(plain, bool | str | bytes):  # `float` would accept text such as "0.1"
        raise TypeError(f"{plain!r} is not a number")
    return float(plain)


def _to_python(value: Any) -> Any:
    """Convert NumPy arrays and scalars to Python lists and numbers; return others unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def at_least(estimator: Any, **lower_bounds: int) -> None:
    """Raise ConfigError unless each named parameter is an integer of at least the given value.

    Raises:
        ConfigError: A parameter is smaller or not an integer.

    >>> from types import SimpleNamespace
    >>> at_least(SimpleNamespace(k=0), k=1)
    Traceback (most recent call last):
    probekit.errors.ConfigError: k is 0, but must be an integer of at least 1.
    """
    for name, bound in lower_bounds.items():
        value = getattr(estimator, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or value < bound:
            raise ConfigError(f"{name} is {value!r}, but must be an integer of at least {bound}.")


def parse_rule(text: str) -> tuple[str, float]:
    """Return name and number of a rule such as `rolling:10`; the number is 0 if it has none.

    Raises:
        UnknownNameError: The rule does not exist.
        ConfigError: The number is missing, superfluous, too small, or no number.

    >>> parse_rule("softmax:0.5"), parse_rule("max")
    (('softmax', 0.5), ('max', 0.0))
    """
    name, _, number = text.partition(":")
    if name not in RULES:
        raise UnknownNameError(f"Unknown rule {text!r} of aggregate. {nearest(name, RULES)}")
    try:
        value = float(number or 0)
    except ValueError:
        value = math.nan
    is_fraction = name == "rolling" and value % 1 != 0
    if bool(number) != bool(RULES[name]) or not RULES[name] <= value < math.inf or is_fraction:
        raise ConfigError(
            f"{text!r} is no rule of aggregate. Give {{rolling: N}} an integer of at least 1, "
            f"{{softmax: T}} a number of at least {RULES['softmax']}, and other rules no number."
        )
    return name, value


if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

# Default candidates of the penalties, for standardised features.
C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
ALPHAS = (1.0, 10.0, 100.0, 1e3, 1e4)
MLP_ALPHAS = (0.1, 1.0, 10.0)
POOLED_C = (1e-2, 1e-1, 1.0, 10.0)

# Rules by which a probe of tokens scores a text, with the smallest value of their number; 0 if they
# have none. See `probekit.probes.aggregation`.
_LEAST = {"mean": 0, "max": 0, "rolling": 1, "softmax": 1e-3, "multimax": 0, "attention": 0}
RULES: Mapping[str, float] = MappingProxyType(_LEAST)
OWN_WEIGHTS = frozenset({"multimax", "attention"})  # rules that need a probe of tokens of their own
AGGREGATE = ("mean", "max", "rolling:10", "softmax:1")

Option: TypeAlias = bool | int
Task = Literal["classification", "regression", "tree", "text"]


@dataclass(frozen=True)
class ProbeKind:
    """One kind of probe.

    Attributes:
        name: Name in YAML files and tables.
        summary: Description in one sentence.
        task: Type of prediction. "classification" and "regression" predict each row by itself;
            "tree" and "text" need the sentence or text of each token, passed as its group.
        path: Module and class of its estimator, imported when the estimator is built.
        options: Names of its options with their default values.
        grid: Name and candidate values of the penalty that cross-validation selects; None if there
            is no penalty.
        reference: Reference level that its scores are compared with: "chance", or "chain" for the
            tree in which the head of each word is the previous word.
        offers: What its predictions contain besides predicted labels; see `Metric.needs`. Class
            probabilities are the softmax of the scores.
        can_balance: Whether it can weight rows so that all classes have the same total weight.
        scores_tokens: Whether it scores each token of a text, by blocks of rows, and combines the
            scores by a rule that is selected with C.
        copies_rows: Whether its fit has two copies of all training rows in memory, in float64, and
            does not read them by blocks.
    """

    name: str
    summary: str
    path: str
    task: Task = "classification"
    options: Mapping[str, Option] = field(default_factory=dict)
    grid: tuple[str, tuple[float, ...]] | None = None
    reference: Literal["chance", "chain"] = "chance"
    offers: tuple[str, ...] = ("scores", "alarms")
    can_balance: bool = False
    scores_tokens: bool = False
    copies_rows: bool = False

    @property
    def scores_texts(self) -> bool:
        """Whether it predicts whole texts."""
        return self.task == "text"

    @property
    def scores_rows(self) -> bool:
        """Whether it predicts each row by itself."""
        return self.task in ("classification", "regression")

    @property
    def estimator(self) -> type[BaseEstimator]:
        """The class of the estimator."""
        found: type[BaseEstimator] = resolve_name(self.path)
        return found

    def build(self, options: Mapping[str, Option], **parameters: Any) -> Any:
        """Return an unfitted estimator of this kind.

        Args:
            options: Options of this kind.
            **parameters: Parameters of any kinds, such as `random_state`; those that this kind
                lacks are left out.

        >>> KINDS["k_sparse"].build({"k": 16}, C=[0.1], hidden=3)
        KSparseProbe(C=[0.1], k=16)
        """
        accepted = self.estimator().get_params()
        shared = {name: value for name, value in parameters.items() if name in accepted}
        return self.estimator(**shared, **{**self.options, **options})

    def text(self, options: Mapping[str, Option]) -> str:
        """Return name and options as one word, for tables.

        Flags are named if they are set; of other options, only the values are given.

        >>> KINDS["k_sparse"].text({"k": 16}), KINDS["mass_mean"].text({"covariance": True})
        ('k_sparse:16', 'mass_mean:covariance')
        """
        parts = [self.name]
        for name, value in {**self.options, **options}.items():
            if value is True:
                parts.append(name)
            elif value is not False:
                parts.append(str(value))
        return ":".join(parts)


_ROWS = (
    ProbeKind(
        "logistic",
        "Logistic regression, multinomial for more than two classes.",
        "probekit.probes.kinds.logistic:LinearProbe",
        grid=("C", C_GRID),
        offers=("scores", "probabilities", "alarms"),
        can_balance=True,
    ),
    ProbeKind(
        "ridge",
        "Ridge regression on +1 for each class and -1 for all others.",
        "probekit.probes.kinds.ridge:RidgeProbe",
        grid=("alpha", ALPHAS),
        can_balance=True,
    ),
    ProbeKind(
        "lda",
        "Linear discriminant analysis with Ledoit-Wolf shrinkage of the covariance.",
        "probekit.probes.kinds.class_means:LdaProbe",
    ),
    ProbeKind(
        "mass_mean",
        "Difference of the class means of raw activations, optionally multiplied by the "
        "inverse covariance.",
        "probekit.probes.kinds.class_means:MassMeanProbe",
        options={"covariance": False},
    ),
    ProbeKind(
        "nearest_mean",
        "Nearest class mean on standardised features.",
        "probekit.probes.kinds.class_means:NearestMeanProbe",
    ),
    ProbeKind(
        "svm",
        "Linear support vector machine, one class against all others.",
        "probekit.probes.kinds.svm:SvmProbe",
        grid=("C", C_GRID),
        can_balance=True,
        copies_rows=True,
    ),
    ProbeKind(
        "k_sparse",
        "Logistic regression on the k features that separate the classes best.",
        "probekit.probes.kinds.k_sparse:KSparseProbe",
        options={"k": 16},
        grid=("C", C_GRID),
        offers=("scores", "probabilities", "alarms"),
        can_balance=True,
    ),
    ProbeKind(
        "mlp",
        "Perceptron with one hidden layer: information that is not linearly decodable.",
        "probekit.probes.kinds.mlp:MlpProbe",
        options={"hidden": 64},
        grid=("alpha", MLP_ALPHAS),
        offers=("scores", "probabilities", "alarms"),
        copies_rows=True,
    ),
    ProbeKind(
        "ridge_regression",
        "Ridge regression on numeric labels.",
        "probekit.probes.kinds.ridge:RidgeRegressionProbe",
        task="regression",
        grid=("alpha", ALPHAS),
        offers=(),
    ),
    ProbeKind(
        "structural_distance",
        "Squared distances between projected tokens as distances in the dependency tree.",
        "probekit.probes.kinds.structural:DistanceProbe",
        task="tree",
        options={"rank": 64},
        reference="chain",
        offers=("uuas",),
    ),
    ProbeKind(
        "structural_depth",
        "Squared norms of projected tokens as depths in the dependency tree.",
        "probekit.probes.kinds.structural:DepthProbe",
        task="tree",
        options={"rank": 64},
        reference="chain",
        offers=("root_accuracy",),
    ),
    ProbeKind(
        "attention_pooled",
        "Logistic regression on the mean of a text's tokens, weighted by a learned query.",
        "probekit.probes.kinds.attention_pooled:AttentionPooledProbe",
        task="text",
        grid=("C", POOLED_C),
        offers=("scores",),
    ),
    ProbeKind(
        "aggregated",
        "Logistic regression on tokens, whose scores a rule combines into a score of the text.",
        "probekit.probes.kinds.aggregated:AggregatedProbe",
        task="text",
        grid=("C", C_GRID),
        offers=("scores", "probabilities", "alarms"),
        scores_tokens=True,
    ),
)
KINDS: Mapping[str, ProbeKind] = MappingProxyType({kind.name: kind for kind in _ROWS})


def find_kind(name: str) -> ProbeKind:
    """Return the kind of probe with this name.

    Raises:
        UnknownNameError: It does not exist; the message suggests one or several names.

    >>> find_kind("ksparse")
    Traceback (most recent call last):
    probekit.errors.UnknownNameError: Unknown kind of probe 'ksparse'. Nearest: k_sparse.
    """
    if name not in KINDS:
        raise UnknownNameError(f"Unknown kind of probe {name!r}. {nearest(name, KINDS)}")
    return KINDS[name]


def kind_of(text: str) -> ProbeKind | None:
    """Return the kind of a probe named in a table; None for other names.

    These are "none", for baselines, and "chosen", for nested choices.

    >>> kind_of("k_sparse:16").name, kind_of("none")
    ('k_sparse', None)
    """
    return KINDS.get(text.partition(":")[0])
