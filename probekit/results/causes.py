"""Record and tables of the interventions of a run, declared once for writing and reading.

effects.csv      patches and ablations: a row for each site, head, position and measure
verdicts.csv     a row for each direction and question: does it detect, steer, silence?
doses.csv        dose-response curve of each direction
downstream.csv   probes fitted again at every later site, without and with erasure
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import pandas as pd
from pydantic import BaseModel, ConfigDict

from probekit.interventions.names import METHODS, REPLACEMENTS
from probekit.results import table as run_tables
from probekit.results.cause_verdict import DIRECTION, CauseVerdict
from probekit.results.record import read_record
from probekit.results.table import TableColumn, limits, raise_if

_SITE = (
    TableColumn("site", "edited site, with its head or neuron"),
    TableColumn("layer", "block of the site; empty outside of the blocks", "integer"),
    TableColumn("head", "attention head, if a single one is edited", "integer"),
)
_GROUPS = (
    TableColumn("n", "number of texts", "integer"),
    TableColumn("groups", "number of groups of these texts", "integer"),
)
_AT = TableColumn(
    "at", "edited tokens: `probed`, `all` or `each`", allowed=("probed", "all", "each")
)
_ALONG = TableColumn("along", "method of the direction", allowed=METHODS)
_BANDS = (
    TableColumn("null_low", "2.5 % quantile of directions on permuted labels", "number"),
    TableColumn("null_high", "97.5 % quantile of directions on permuted labels", "number"),
    TableColumn("matched_low", "2.5 % quantile of random directions of equal covariance", "number"),
    TableColumn(
        "matched_high", "97.5 % quantile of random directions of equal covariance", "number"
    ),
)

EFFECTS = (
    TableColumn("do", "type of the edit", allowed=("patch", "ablate")),
    TableColumn("replacement", "what replaces the activations", allowed=tuple(REPLACEMENTS)),
    *_SITE,
    _AT,
    TableColumn("position", "for `each`: position of the edited token, from 0", "integer"),
    TableColumn("measure", "name of the measure"),
    TableColumn("unit", "unit of the measure"),
    TableColumn("base", "mean measure without the edit", "number"),
    TableColumn("source", "mean measure of the counterfactuals, for the same answers", "number"),
    TableColumn("edited", "mean measure with the edit", "number"),
    TableColumn("effect", "`edited` minus `base`", "number"),
    *limits("effect_", "the 95 % interval of the effect"),
    TableColumn(
        "recovery",
        "share of the difference between counterfactual and base, a ratio of sums; empty if the "
        "interval of the difference contains 0",
        "number",
    ),
    *limits("recovery_", "the 95 % interval of the recovery"),
    TableColumn("interchange", "share of the texts that prefer the wrong answer", "number"),
    TableColumn("p", "p-value of no mean effect", "number"),
    TableColumn("p_best", "p-value adjusted for all rows of the same edit and measure", "number"),
    *_GROUPS,
    TableColumn("folds", "number of folds whose test rows are edited", "number"),
)

VERDICTS = (
    *_SITE,
    _AT,
    _ALONG,
    TableColumn(
        "question",
        "the question; `swap` is the exchange along the direction, which has no verdict of its own",
        allowed=("detects", "steers", "silences", "swap"),
    ),
    TableColumn("answer", "the verdict", allowed=("yes", "no", "undecided", "")),
    TableColumn("effect", "size of the effect, in `unit`", "number"),
    *limits("", "its 95 % interval"),
    TableColumn("unit", "unit of the effect"),
    TableColumn("p", "p-value against directions on permuted labels", "number"),
    TableColumn(
        "p_holm", "p-value adjusted for the questions of a direction that have a test", "number"
    ),
    TableColumn("p_best", "p-value adjusted for all sites of the same method", "number"),
    TableColumn("whole", "effect of the whole vector, in `unit`", "number"),
    TableColumn(
        "exceeds_whole", "whether the direction moves more than its whole vector", "boolean"
    ),
    *_BANDS,
    TableColumn("wrong_way", "share of the texts that move against the direction", "number"),
    TableColumn("kernel_share", "share of the direction that cannot reach the stream", "number"),
    TableColumn("reason", "why the verdict is undecided, or the test undefined"),
    TableColumn("summary", "the verdicts of the direction in a sentence"),
    *_GROUPS,
    TableColumn("folds", "number of folds", "number"),
    TableColumn("draws", "number of permutations", "number"),
)

DOSES = (
    *_SITE,
    _AT,
    _ALONG,
    TableColumn("by", "dose, in standard deviations of the projection", "number"),
    TableColumn("effect", "mean change of the measure towards class 1", "number"),
    *limits("", "its 95 % interval"),
    *_BANDS,
    TableColumn("other_loss", "change of the loss on other texts, in nats per token", "number"),
    *limits("other_", "its 95 % interval"),
    TableColumn("unit", "unit of the measure"),
    *_GROUPS,
)

DOWNSTREAM = (
    TableColumn("erased", "site at which the direction is erased"),
    TableColumn("along", "method of erasure", allowed=METHODS),
    TableColumn("at", "erased tokens", allowed=("probed", "all")),
    TableColumn("site", "site of the probe that is fitted again"),
    TableColumn("layer", "block of the site; empty outside of the blocks", "integer"),
    TableColumn("before", "balanced accuracy without erasure", "number"),
    *limits("before_", "its 95 % interval"),
    TableColumn("after", "balanced accuracy with erasure", "number"),
    *limits("after_", "its 95 % interval"),
    TableColumn("chance", "1 / number of classes", "number"),
    *_GROUPS,
)


class LeftOut(BaseModel):
    """Texts that the interventions leave out.

    Attributes:
        n: number of texts.
        reason: why, with the first rows and the remedy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int
    reason: str


class CausesRecord(BaseModel):
    """Facts about the interventions of a run.

    Attributes:
        name: name of the experiment.
        question: research question; None without one.
        model: model as given in the experiment.
        dataset: name of the data set.
        classes: the two labels, the one that directions point away from first; empty if no step
            uses directions.
        position: probed token, such as `last`.
        measures: names of the measures, the first one for verdicts.
        answers: the answers in words, such as `column verb` or `" is"`, by `answer` and `wrong`.
        tokens: tokens of the first text, for the axis of positions; empty if the texts differ in
            their numbers of tokens or no step edits each position.
        same_tokens: for each position, whether all texts have the token of the first text.
        n: number of texts that are tested.
        groups: number of their groups.
        folds: number of folds.
        draws: number of permutations of the labels.
        seed: random seed.
        left_out: texts that were left out, by reason.
        sites: the sites of verdicts in the order of the forward pass.
        preferred: share of the test texts in which the unedited network prefers the right answer
            over the wrong one; None without texts in pairs or without a wrong answer.
        warnings: sentences on doubts about the results, such as doses that were left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    question: str | None
    model: str
    dataset: str
    classes: tuple[str, ...]
    position: str
    measures: tuple[str, ...]
    answers: dict[str, str]
    tokens: tuple[str, ...]
    same_tokens: tuple[bool, ...]
    n: int
    groups: int
    folds: int
    draws: int
    seed: int
    left_out: tuple[LeftOut, ...]
    sites: tuple[str, ...]
    preferred: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def answers_rarely(self) -> bool:
        """Whether right answers are so rarely preferred that the first warning is about it."""
        return self.preferred is not None and self.preferred < MOSTLY


MOSTLY = 0.75  # share of preferred right answers, below which there is a warning
FOLDER = "causes"  # name within the folder of a run
RECORD = "causes.json"
TABLES: Mapping[str, tuple[TableColumn, ...]] = MappingProxyType(
    {"effects": EFFECTS, "verdicts": VERDICTS, "doses": DOSES, "downstream": DOWNSTREAM}
)


@dataclass(frozen=True, eq=False)
class CauseTables:
    """Record and tables of the interventions of a run; a table without a file has no rows.

    Attributes:
        run_dir: folder of the run.
        record: facts about the interventions.
        effects: patches and ablations.
        verdicts: a row for each direction and question.
        doses: dose-response curves of directions.
        downstream: probes that were fitted again at later sites.
    """

    run_dir: Path
    record: CausesRecord
    effects: pd.DataFrame
    verdicts: pd.DataFrame
    doses: pd.DataFrame
    downstream: pd.DataFrame

    @classmethod
    def open(cls, run_dir: Path) -> CauseTables:
        """Return the interventions of a run.

        Args:
            run_dir: folder of the run, which contains the folder `causes`.

        Raises:
            MissingError: there is no causes/causes.json.
            DataError: a file cannot be read, a column is missing, a cell is invalid, or a
                direction has two rows for one question.
        """
        folder = run_dir / FOLDER
        record = read_record(folder / RECORD, CausesRecord, is_sealed=False)
        tables = {name: _table(folder / f"{name}.csv", columns) for name, columns in TABLES.items()}
        verdicts, path = tables["verdicts"], folder / "verdicts.csv"
        answers, questions = verdicts["answer"], verdicts["question"]
        twice = verdicts.duplicated([*DIRECTION, "question"])
        raise_if(twice, questions, path, "The direction has another row for this question.")
        unanswered = answers.eq("") & questions.ne("swap")
        raise_if(unanswered, answers, path, "Allowed: yes, no, undecided.")
        return cls(run_dir, record, **tables)

    @cached_property
    def verdict(self) -> CauseVerdict:
        """What the interventions show."""
        return CauseVerdict.of(self.record.measures, self.effects, self.verdicts)


def _table(path: Path, columns: Sequence[TableColumn]) -> pd.DataFrame:
    """Return the validated table in a file; without a file, a table without rows."""
    if not path.exists() and not path.is_symlink():  # reading a broken link raises an error
        # Columns of integers may have empty cells, which are NaN.
        types = {"text": "str", "boolean": "boolean", "number": "float64", "integer": "float64"}
        return run_tables.make_table([], columns).astype(
            {one.name: types[one.type] for one in columns}
        )
    table = run_tables.read_columns(path, columns)
    for name in ("site", "erased"):
        if name in table:
            raise_if(table[name] == "", table[name], path, "Give the name of a site.")
            run_tables.check_layers(table[name], path)
    return table


def open_causes(run_dir: Path) -> CauseTables | None:
    """Return the interventions of a run; None without interventions.

    Raises:
        DataError: a file cannot be read.
    """
    return CauseTables.open(run_dir) if (run_dir / FOLDER / RECORD).exists() else None
