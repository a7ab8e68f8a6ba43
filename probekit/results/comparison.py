"""What distinguishes runs, the comparison of two, and a transfer between data sets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Literal

import pandas as pd

from probekit.amounts import FEWEST_UNITS, LEVEL, counted, one_line, widening_of
from probekit.model.weights.sources import name_in_memory
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import HEADLINE, TARGETS
from probekit.results.record import RunRecord
from probekit.results.site_results import NESTED_SITE
from probekit.results.table import only

# These settings and sections, such as names and paths, do not affect the results.
WITHOUT_EFFECT = re.compile(
    r"(name|question|data\.(root|card|memory)|model\.memory|attention\.texts)(\..+)?"
)
ABSENT = "–"
MOST_SETTINGS = 3  # settings that the title of a run names
LONGEST_VALUE = 30  # characters of a value in a title


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that affect the results as text, by their dotted names.

    Args:
        config: the settings of a run, as nested mappings.
    """
    texts = flat(config)
    settings = {name: texts[name] for name in texts if not WITHOUT_EFFECT.fullmatch(name)}
    memory = config.get("model", {}).get("memory")
    if memory:
        settings["model.source"] = name_in_memory(**memory)
    return settings


def run_facts(config: Mapping[str, Any], record: RunRecord) -> dict[str, str]:
    """Return the settings that affect the results, digests and versions of a run, as text by name.

    Args:
        config: the settings of the run, as nested mappings.
        record: its run.json.
    """
    return {
        **settings_of(config),
        **({"activations": record.identity} if record.identity else {}),
        **{f"digest of {name}": text[:12] for name, text in record.digests.items()},
        **{f"version of {name}": text for name, text in record.versions.items()},
    }


def differing(facts: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the names whose values differ between the mappings, with the value in each mapping.

    >>> differing([{"seed": "0", "bos": "no"}, {"seed": "1", "bos": "no", "k": "4"}])
    {'seed': ('0', '1'), 'k': ('–', '4')}
    """
    names = dict.fromkeys(name for one in facts for name in one)
    values = {name: tuple(one.get(name, ABSENT) for one in facts) for name in names}
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def run_titles(runs: Sequence[tuple[RunRecord, Mapping[str, str]]]) -> list[str]:
    """Return a unique title for each run: its name, and settings in which runs of a name differ.

    Only the first `MOST_SETTINGS` settings are listed. The name is left out if there are several
    runs and all have the same name. Equal titles get the number of the run; if no setting differs,
    the title is `run N` alone.

    Args:
        runs: the record of each run, and its settings as `settings_of` returns them.
    """
    has_names = len(runs) == 1 or len({record.run for record, _ in runs}) > 1
    titles = []
    for record, settings in runs:
        differ = differing([facts for other, facts in runs if other.run == record.run])
        parts = [f"{key} {_short(settings.get(key, ABSENT))}" for key in differ][:MOST_SETTINGS]
        titles.append(" · ".join([record.run, *parts] if has_names else parts))
    return [
        title if titles.count(title) == 1 else f"{title} · run {number}".removeprefix(" · ")
        for number, title in enumerate(titles, start=1)
    ]


def _short(text: str) -> str:
    """Return a value, or its end if it is long; an absolute path is reduced to its last part."""
    text = PurePosixPath(text).name if text.startswith("/") else text
    text = re.sub(r"\{kind: (\w+)\}", r"\1", text)  # a kind of probe without settings of its own
    # The ellipsis is one of the `LONGEST_VALUE` characters.
    return text if len(text) <= LONGEST_VALUE else f"…{text[1 - LONGEST_VALUE :]}"


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Return the leaves of nested mappings as text, by their dotted keys; lists are leaves.

    Args:
        value: nested mappings, or a leaf.
        prefix: the dotted key of `value`; "" for the outermost mapping.

    >>> flat({"probe": {"seed": 0, "kinds": [{"kind": "svm", "k": None}]}})
    {'probe.seed': '0', 'probe.kinds': '[{kind: svm}]'}
    """
    if not isinstance(value, dict):
        return {prefix: one_line(value)}
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return found


def _of_both(*names: str) -> list[str]:
    """Return the columns of the two sides: of each name, those with the endings _a and _b."""
    return [f"{name}_{side}" for name in names for side in "ab"]


COLUMNS = (
    *("what", "target", *_of_both("site", "position", "view", "probe")),
    *("metric", *_of_both("value"), "difference", "ci_low", "ci_high"),
    *("p", "p_adjusted", "adjusted_low", "adjusted_high", "holds", "pairing"),
    *(*_of_both("n", "n_groups", "selectivity"), "seed"),
)

Pairing = Literal["paired", "unpaired"]


@dataclass(frozen=True, eq=False)
class RunComparison:
    """Differences between two runs, a minus b.

    Attributes:
        a: the title of the first run.
        b: the title of the second run.
        metric: the metric that is compared.
        pairing: "paired" if both runs were tested on the same rows, else "unpaired".
        rows: one row per comparison, with the columns `COLUMNS`: the selected probes of the two
            runs, baselines, then the sites of both runs from shallow to deep.
        settings: the settings that differ, by name, with the values in a and b.
        notes: remarks on the comparison, in sentences.
        experiment: the name of the experiment of both runs; "" if the names differ.
    """

    a: str
    b: str
    metric: str
    pairing: Pairing
    rows: pd.DataFrame
    settings: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    experiment: str = ""

    @property
    def names(self) -> tuple[str, str]:
        """The titles of the two runs."""
        return self.a, self.b

    @property
    def is_paired(self) -> bool:
        """Whether both runs were tested on the same rows."""
        return self.pairing == "paired"

    @property
    def chosen(self) -> pd.Series | None:
        """The row that compares the selected probes; None if they have no common score."""
        chosen = self.rows[self.rows["what"] == "chosen"]
        return None if chosen.empty else chosen.iloc[0]

    @property
    def sites(self) -> pd.DataFrame:
        """The rows that compare a site of both runs; `chosen` is none of them, even if it does."""
        return self.rows[self.rows["what"] == "site"]

    @property
    def easier_baselines(self) -> pd.DataFrame:
        """The rows of baselines that differ significantly, at least as much as the selected probes.

        They differ in the same direction as the probes. There are none for paired runs, or if the
        selected probes have no common score or do not differ significantly.
        """
        rows, chosen = self.rows, self.chosen
        if self.is_paired or chosen is None or not chosen["holds"]:
            return rows.iloc[:0]
        same_sign = rows["difference"] * chosen["difference"] > 0
        as_much = rows["difference"].abs() >= abs(chosen["difference"])
        is_baseline = (rows["what"] == "baseline") & rows["holds"].astype(bool)
        easier: pd.DataFrame = rows[is_baseline & same_sign & as_much]
        return easier

    @property
    def n_significant(self) -> int:
        """Number of differences that are significant at `LEVEL` after adjustment."""
        return int(self.rows["holds"].sum())

    @property
    def verdict(self) -> str:
        """A sentence with the number of significant differences."""
        return (
            f"{self.n_significant:,} of {len(self.rows):,} differences are significant (p below "
            f"{LEVEL:g}, adjusted for {counted(len(self.rows), 'comparison')})."
        )


def place_name(row: pd.Series, side: Literal["a", "b"]) -> str:
    """Return the name of one side of a row: a baseline, or site, position and probe.

    Views other than "raw" are appended. The nested choice, whose folds have sites of their own, is
    `chosen`.

    >>> place_name(pd.Series({"what": "baseline", "target": "n_grams"}), "a")
    'n-grams'
    >>> place_name(pd.Series({"what": "chosen", "site_a": NESTED_SITE}), "a")
    'chosen'
    """
    if row["what"] == "baseline":
        return TARGETS[row["target"]].title
    if row[f"site_{side}"] == NESTED_SITE:
        return TARGETS[HEADLINE].title
    names = ("site", "position", "probe", "view")
    parts = (row[f"{name}_{side}"] for name in names)
    return " ".join(filter(None, parts)).removesuffix(" raw")


def both_places(row: pd.Series) -> str:
    """Return `place_name` of a row; those of both sides if they differ."""
    a, b = place_name(row, "a"), place_name(row, "b")
    return a if a == b else f"{a} | {b}"


# Verdict on a pair of data sets -> the phrase for the score of the transferred probe.
TRANSFERS = "works"
PARTLY = "works less well"
AT_CHANCE = "is not significantly different from chance"
BELOW = "is below chance"
TOO_FEW = "has too few test groups for a verdict"
UNDEFINED = "has no score"
_PLACE = ("model", "site", "position", "view", "probe", "train", "test")
SCORES = (
    *(*_PLACE, "metric", "value", "ci_low", "ci_high", "chance", "lead_low", "lead_high"),
    *("difference", "difference_low", "difference_high", "n_train", "n_test", "n_groups"),
    *("C", "converged", "known_texts", "known_groups", "seed"),
)
COSINES = (*_PLACE, "space", "cosine", "null_low", "null_high", "p", "n_null")


@dataclass(frozen=True, eq=False)
class Transfer:
    """Transfer scores and cosines for every pair of data sets, site and kind of probe.

    Attributes:
        names: the names of the data sets.
        model: the model that was probed.
        scores: scores, with the columns `SCORES`. A probe is fitted on the data set `train` and
            scored on the test rows of the data set `test`. `difference` is its score minus that of
            the probe fitted on `test` itself.
        cosines: cosine similarities between the directions of two probes, with the columns
            `COSINES`. If one of the two is fitted on permuted labels, 95 % of the cosines lie
            between `null_low` and `null_high`.
        metric: the main metric.
        chosen: the site and kind of probe with the best cross-validated score, averaged over sets.
        notes: remarks on the interpretation of the numbers.
        pooled: names in `train` of the rows of several sets together: of all, and of all but each
            one, which is tested.
        tables: what analyses measure with the probes of the data set `train` on the test rows of
            the data set `test`, by file: after the place, the columns of the file.
    """

    names: tuple[str, ...]
    model: str
    scores: pd.DataFrame
    cosines: pd.DataFrame
    metric: str
    chosen: tuple[str, str]
    notes: tuple[str, ...]
    pooled: tuple[str, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def monitors(self) -> pd.DataFrame:
        """Thresholds from the negatives of `train` with their rates on `test`; empty without."""
        return self.tables.get("monitor.csv", pd.DataFrame())

    def places(self) -> list[tuple[str, str]]:
        """Return each pair of site and kind of probe, in the order of the forward pass."""
        pairs = self.scores[["site", "probe"]].drop_duplicates()
        return list(pairs.itertuples(index=False, name=None))

    def maps(self, site: str, probe: str) -> dict[str, pd.DataFrame]:
        """Return the tables of a kind of probe at a site, each with a row for each pair of sets.

        `score` has the main metric; `raw` and `standardised`, if the kind has directions, cosines
        by space. `value`, `ci_low` and `ci_high` of a cosine are itself and the ends of its null.
        """
        scores = only(self.scores, metric=self.metric, site=site, probe=probe)
        names = {"cosine": "value", "null_low": "ci_low", "null_high": "ci_high"}
        cosines = only(self.cosines, site=site, probe=probe).rename(columns=names)
        by_space = {str(space): rows for space, rows in cosines.groupby("space", sort=False)}
        return {"score": scores} | by_space

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """The scores of the selected probes on other data sets, each with its `verdict`.

        They are in the order of `names`, by training set and then by test set.
        """
        site, probe = self.chosen
        rows = only(self.scores, metric=self.metric, site=site, probe=probe)
        others = rows[(rows["train"] != rows["test"]) & rows["train"].isin(list(self.names))]
        others = others.sort_values(
            ["train", "test"], key=lambda names: names.map(list(self.names).index)
        )
        lower_is_better = METRICS[self.metric].lower_is_better
        wider = widening_of(len(others))
        verdicts = [_transfer_verdict(row, lower_is_better, wider) for _, row in others.iterrows()]
        return others.assign(verdict=verdicts)


def _transfer_verdict(row: pd.Series, lower_is_better: bool, wider: float) -> str:
    """Return how a transferred probe compares with chance and with the test set's own probe.

    Args:
        row: a row of `Transfer.scores` with two different data sets.
        lower_is_better: whether lower scores are better.
        wider: factor of the distances from values to the limits of their intervals.
    """
    sign = -1 if lower_is_better else 1
    if math.isnan(row["value"]):
        return UNDEFINED
    if pd.isna(row["lead_low"]) or pd.isna(row["lead_high"]) or row["n_groups"] < FEWEST_UNITS:
        return TOO_FEW
    # Limits of the widened intervals, signed so that larger values are better.
    lead = row["value"] - row["chance"]
    lowest, highest = sorted(
        sign * (lead + wider * (row[end] - lead)) for end in ("lead_low", "lead_high")
    )
    if highest < 0:
        return BELOW
    if not lowest > 0:
        return AT_CHANCE
    # The upper limit is NaN, which is not below 0, if the test set's own probe has no score.
    _, best_difference = sorted(
        sign * (row["difference"] + wider * (row[end] - row["difference"]))
        for end in ("difference_low", "difference_high")
    )
    return PARTLY if best_difference < 0 else TRANSFERS


def matrix(
    rows: pd.DataFrame, names: tuple[str, ...], column: str, pooled: tuple[str, ...] = ()
) -> pd.DataFrame:
    """Return a column as a matrix with training sets as rows and test sets as columns.

    Args:
        rows: at most one row for each pair of sets; pairs without a row become NaN.
        names: the names of the sets, in the order of the matrix.
        column: the column.
        pooled: further training rows, below those of the sets.

    >>> rows = pd.DataFrame({"train": ["x", "y"], "test": ["y", "x"], "value": [0.5, 0.7]})
    >>> matrix(rows, ("x", "y"), "value").to_numpy().tolist()
    [[nan, 0.5], [0.7, nan]]
    """
    wide = rows.pivot_table(index="train", columns="test", values=column, dropna=False)
    return wide.reindex(index=[*names, *pooled], columns=list(names))
