"""Table of the analyses of the selected probe.

The folder of each analysis has a file for some floors of the package:

section.py  its section of the experiment file, and the rules of its keys: `check(settings,
            experiment)`, and of the rows: `check_rows(settings, experiment, dataset, has_texts)`.
            It imports no numerics
measure.py  `texts(settings, experiment, rows, read)`: the further texts that it captures;
            `tables(settings, chosen)`: the contents of its files; `transferred(...)`: the rows of a
            transfer between data sets; `work(source, ...)`: a part of its fits at all sites,
            which is timed to predict the time of a run; `further_findings(source)`: warnings about
            the data before a run; `identity(source)`: a digest of the columns that results depend
            on in addition to the examples
page.py     what the page of a run shows, by place: `answers(run)` before the answer of the probe
            and `remarks(run)` after it; `screen(run)`, figures and tables before the layer curve
            and the comparisons of the first screen; `figures(run)` after all other figures;
            `sections(run)` and `curves(run)` before the table of all sites, `details(run)` and
            `examples(run)` after the figures that are folded; `doubts(v)` yields warnings about its
            verdict

Each of these doors is found by its name, and an analysis has those that it needs. No module outside
of the folders names an analysis. This one imports no libraries, so that files and commands are
checked at once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from probekit.memory import importing

RATES = "tpr tpr_low tpr_high test_fpr test_fpr_low test_fpr_high"
TEST_ROWS = "predictions.csv"  # has the test rows of every run, which comparisons pair
DIFFERENCE = "difference difference_low difference_high p"


@dataclass(frozen=True, eq=False)
class Analysis:
    """One analysis of the selected probe.

    Attributes:
        name: the name of its folder.
        tables: names of the columns that are read of each of its files, by their type.
        key: the key that requests it: its name if it has a section, or another one such as
            `probe.layers`, null in an experiment without it; "" for none, if every run has it.
        tasks: tasks of the kinds of probe that it allows; see `ProbeSpec.task`.
        needs: what these kinds do, for a message.
        texts: name of its further texts in the record of a run; "" if it captures none.
        is_of_any_run: whether runs that select no probe have its tables, too.
        over_folds: whether it also allows several outer folds.
    """

    name: str
    tables: Mapping[str, Mapping[str, str]]
    key: str = ""
    tasks: str = ""
    needs: str = ""
    texts: str = ""
    is_of_any_run: bool = False
    over_folds: bool = False

    @property
    def file(self) -> str:
        """The name of its first table."""
        return next(iter(self.tables))

    def settings(self, experiment: Any) -> Any:
        """Return the value of its key; None if an experiment does not request it."""
        path = self.key.split(".") if self.key else []
        return reduce(lambda value, name: getattr(value, name, None), path, experiment)

    @cache  # noqa: B019, as the table is never dropped
    def door(self, file: str, name: str) -> Callable[..., Any] | None:
        """Return a function of a module of its folder; None if it has none of this name."""
        module = f"{__package__}.{self.name}.{file}"
        with importing():
            return getattr(import_module(module), name, None) if find_spec(module) else None


# In the order of what they show at the same place of a page.
ANALYSES = (
    Analysis("unselected", {}, is_of_any_run=True),
    Analysis("replies", {}),  # what it shows is in results.csv
    Analysis("kinds", {}),  # and in differences.csv
    Analysis("predictions", {TEST_ROWS: {"text": "id line text group truth"}}, is_of_any_run=True),
    Analysis("sources", {"sources.csv": {}}),  # its columns are documented, with `RESULTS`
    Analysis(
        "monitor",
        {
            "monitor.csv": {
                "finite": "fpr threshold fpr_bound",
                "count": "false_positives n_negatives n_groups n_positive n_test_negative",
                "number": RATES,
            },
            "negatives.csv": {"text": "group", "finite": "score"},
        },
        key="monitor",
        tasks="classification aggregated",
        needs="classify each row, or `probe.aggregate`",
        texts="negatives",
    ),
    Analysis(
        "stack",
        {
            "stack.csv": {
                "text": "metric",
                "number": f"value ci_low ci_high single {DIFFERENCE} C",
                "count": "n_sites n_test",
            },
            "cascade.csv": {
                "text": "setting",
                "finite": "fpr passed_1 passed_2 cost",
                "number": RATES,
                "count": "n_positive n_negative",
            },
        },
        key="probe.layers",
        tasks="classification regression",
        needs="read each row",
    ),
    Analysis(
        "leakage",
        {
            "leakage.csv": {
                "text": "metric cues",
                "number": "value value_low value_high without_cues without_cues_low "
                "without_cues_high without_others without_others_low without_others_high "
                f"{DIFFERENCE}",
                "count": "n_draws n_changed n_test n_left_out",
            }
        },
        key="leakage",
        tasks="classification",
        needs="classify each row",
        texts="dropped",
    ),
    Analysis(
        "left",
        {
            "left.csv": {
                "text": "confounds known categories metric",
                "number": "p gain gain_low gain_high known_score known_score_low known_score_high "
                "joint_score joint_score_low joint_score_high partial matched_score "
                "n_matched n_effective within p_within C",
                "count": "n_terms n_test n_groups",
            }
        },
        key="confounds",
        tasks="classification regression",
        needs="read each row",
        over_folds=True,
    ),
    Analysis(
        "unasked",
        {
            "unasked.csv": {
                "text": "column message metric",
                "boolean": "is_warned",
                "number": "p_of_column p_holm auroc value_b difference ci_low ci_high p p_adjusted "
                "adjusted_low adjusted_high",
            }
        },
        is_of_any_run=True,
    ),
    Analysis("errors", {"confusion.csv": {"text": "truth guess", "count": "n"}, "wrong.json": {}}),
    Analysis(
        "directions",
        {
            "features.csv": {"text": "site feature label", "count": "rank k", "number": "share"},
            "scatter.csv": {"text": "method axis_x axis_y label", "finite": "x y"},
            "cosines.csv": {
                "text": "site_a site_b",
                "finite": "cosine",
                "count": "n_directions n_features n_halvings",
                "number": "null_high half_cosine certainty",
            },
        },
    ),
    Analysis(
        "projections",
        {
            "tokens_of_direction.csv": {
                "text": "direction token",
                "finite": "cosine",
                "number": "null_high",
                "count": "token_id n_null",
            },
            "projections.csv": {
                "text": "direction label site metric",
                "boolean": "is_selected",
                "count": "n",
                "finite": "mean low high",
                "number": "value ci_low ci_high",
            },
        },
    ),
    Analysis(
        "aggregation",
        {
            "aggregation.csv": {
                "text": "rule metric",
                "boolean": "is_selected",
                "count": "n_texts",
                "number": "C value n_equal auroc auroc_low auroc_high equal equal_low equal_high "
                f"rho rho_low rho_high {DIFFERENCE}",
            },
            "flagged.csv": {"text": "label", "count": "tokens n_texts", "finite": "score share"},
        },
    ),
)
TABLES = {file: types for one in ANALYSES for file, types in one.tables.items()}


def asked(experiment: Any) -> Iterator[tuple[Analysis, Any]]:
    """Yield each analysis that an experiment requests, with the value of its key."""
    pairs = ((analysis, analysis.settings(experiment)) for analysis in ANALYSES)
    return ((analysis, settings) for analysis, settings in pairs if settings is not None)


def doors(file: str, name: str) -> Iterator[tuple[Analysis, Callable[..., Any]]]:
    """Yield the analyses that have a function of this name in such a file, with the function."""
    pairs = ((analysis, analysis.door(file, name)) for analysis in ANALYSES)
    return ((analysis, door) for analysis, door in pairs if door is not None)


def without_analyses(experiment: Any) -> Any:
    """Return an experiment without the analyses that it requests."""
    for analysis, _ in asked(experiment):
        section, _, option = analysis.key.partition(".")
        value = getattr(experiment, section).model_copy(update={option: None}) if option else None
        if section:
            experiment = experiment.model_copy(update={section: value})
    return experiment
