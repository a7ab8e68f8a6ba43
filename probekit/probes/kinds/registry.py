"""Table of the kinds of probe: name, options, task, penalty and import path.

No numerics are imported here: an experiment file is checked against this table alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.probes.bounds import at_least

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

Option: TypeAlias = bool | int
Task = Literal["classification", "regression", "tree", "text"]


@dataclass(frozen=True)
class ProbeKind:
    """One kind of probe.

    Attributes:
        name: What it is called in YAML and tables.
        summary: What it is, in one sentence.
        task: What it answers: "classification" and "regression" read each row by itself, "tree"
            and "text" need the group of a row as the sentence or text that it is a token of.
        path: Module and class of its estimator, which are imported when it is built.
        options: What may be chosen of it, with the defaults.
        grid: The penalty that inner cross-validation chooses, and its values; None for none.
        logits: Whether the softmax of its scores is the probability of each class.
    """

    name: str
    summary: str
    task: Task
    path: str
    options: Mapping[str, Option] = field(default_factory=dict)
    grid: tuple[str, tuple[float, ...]] | None = None
    logits: bool = False

    @property
    def estimator(self) -> type[BaseEstimator]:
        """The class of its estimator."""
        found: type[BaseEstimator] = resolve_name(self.path)
        return found

    def build(
        self,
        *,
        seed: int = 0,
        max_iter: int = 2000,
        folds: int = 5,
        penalties: Sequence[float] | None = None,
        **options: Option,
    ) -> Any:
        """Return an estimator that is not fitted yet.

        Closed forms make no use of `max_iter`, kinds without a grid none of `folds`.

        Args:
            seed: Its `random_state`.
            max_iter: Upper bound on its solver's steps.
            folds: How many folds choose the penalty.
            penalties: Values of the penalty in place of those of the grid.
            **options: What is chosen of it.

        Raises:
            UnknownNameError: It has no such option.
            ConfigError: There are penalties for a kind that has none.

        >>> KINDS["k_sparse"].build(k=16, penalties=[0.1])
        KSparseProbe(C=[0.1], k=16)
        """
        shared = {"random_state": seed, "max_iter": max_iter, "folds": folds}
        taken = self.estimator().get_params()
        parameters = {name: value for name, value in shared.items() if name in taken}
        return self.estimator(**parameters, **self._penalties(penalties), **self.complete(options))

    def complete(self, options: Mapping[str, Option]) -> dict[str, Option]:
        """Return the options with the defaults of those not given.

        Raises:
            UnknownNameError: It has no such option.
            ConfigError: One that counts something is below 1, or no whole number; or one that is
                true or false is neither.

        >>> KINDS["mlp"].complete({})
        {'hidden': 64}
        """
        for name in options:
            if name not in self.options:
                offered = nearest(name, self.options) if self.options else "It has none."
                raise UnknownNameError(f"{self.name} has no option {name!r}. {offered}")
        counts = {}
        for name, value in options.items():
            if not isinstance(self.options[name], bool):
                counts[name] = 1
            elif not isinstance(value, bool):
                raise ConfigError(f"{name} is {value!r}, but must be true or false.")
        at_least(SimpleNamespace(**options), **counts)
        return {**self.options, **options}

    def text(self, options: Mapping[str, Option] | None = None) -> str:
        """Return name and options as one word for tables.

        >>> KINDS["k_sparse"].text({"k": 16}), KINDS["mass_mean"].text({"covariance": True})
        ('k_sparse:16', 'mass_mean:covariance')
        """
        parts = [self.name]
        for name, value in self.complete(options or {}).items():
            if isinstance(value, bool):
                parts += [name] if value else []
            else:
                parts.append(str(value))
        return ":".join(parts)

    def _penalties(self, values: Sequence[float] | None) -> dict[str, Sequence[float]]:
        if self.grid is None:
            if values is not None:
                raise ConfigError(f"{self.name} has no penalty to choose. Leave `penalties` out.")
            return {}
        name, defaults = self.grid
        return {name: defaults if values is None else values}


_C = ("C", (1e-4, 1e-3, 1e-2, 1e-1, 1.0))
_ALPHA = ("alpha", (1.0, 10.0, 100.0, 1e3, 1e4))

KINDS: Mapping[str, ProbeKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            ProbeKind(
                "logistic",
                "Logistic regression, multinomial for more than two classes.",
                "classification",
                "probekit.probes.kinds.logistic:LinearProbe",
                grid=_C,
                logits=True,
            ),
            ProbeKind(
                "ridge",
                "Ridge regression on +1 for a class and -1 for the rest.",
                "classification",
                "probekit.probes.kinds.ridge:RidgeProbe",
                grid=_ALPHA,
            ),
            ProbeKind(
                "lda",
                "Linear discriminant analysis with a Ledoit-Wolf covariance.",
                "classification",
                "probekit.probes.kinds.lda:LdaProbe",
            ),
            ProbeKind(
                "mass_mean",
                "The difference of the class means in raw space, tilted by the inverse covariance "
                "if asked.",
                "classification",
                "probekit.probes.kinds.mass_mean:MassMeanProbe",
                options={"covariance": False},
            ),
            ProbeKind(
                "nearest_mean",
                "The class with the nearest mean, with features on one scale.",
                "classification",
                "probekit.probes.kinds.nearest_mean:NearestMeanProbe",
            ),
            ProbeKind(
                "svm",
                "Linear support vector machine, one class against the rest.",
                "classification",
                "probekit.probes.kinds.svm:SvmProbe",
                grid=_C,
            ),
            ProbeKind(
                "k_sparse",
                "Logistic regression on the k features that tell the classes apart best.",
                "classification",
                "probekit.probes.kinds.k_sparse:KSparseProbe",
                options={"k": 16},
                grid=_C,
                logits=True,
            ),
            ProbeKind(
                "mlp",
                "Perceptron with one hidden layer: what is there, but not linearly.",
                "classification",
                "probekit.probes.kinds.mlp:MlpProbe",
                options={"hidden": 64},
                grid=("alpha", (0.1, 1.0, 10.0)),
                logits=True,
            ),
            ProbeKind(
                "ridge_regression",
                "Ridge regression on a number.",
                "regression",
                "probekit.probes.kinds.ridge:RidgeRegressionProbe",
                grid=_ALPHA,
            ),
            ProbeKind(
                "structural_distance",
                "Squared distances between tokens as distances in the dependency tree.",
                "tree",
                "probekit.probes.kinds.structural.probes:DistanceProbe",
                options={"rank": 64},
            ),
            ProbeKind(
                "structural_depth",
                "Squared norms of tokens as depths in the dependency tree.",
                "tree",
                "probekit.probes.kinds.structural.probes:DepthProbe",
                options={"rank": 64},
            ),
            ProbeKind(
                "attention_pooled",
                "Logistic regression on a text's tokens, weighted by a query that is learned.",
                "text",
                "probekit.probes.kinds.attention_pooled:AttentionPooledProbe",
                grid=("C", (1e-2, 1e-1, 1.0, 10.0)),
                logits=True,
            ),
        )
    }
)


def find_kind(name: str) -> ProbeKind:
    """Return the kind of that name.

    Raises:
        UnknownNameError: There is none; the text offers the nearest.

    >>> find_kind("ksparse")
    Traceback (most recent call last):
    probekit.errors.UnknownNameError: Unknown kind of probe 'ksparse'. Nearest: k_sparse.
    """
    if name not in KINDS:
        raise UnknownNameError(f"Unknown kind of probe {name!r}. {nearest(name, KINDS)}")
    return KINDS[name]
