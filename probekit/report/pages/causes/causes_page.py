"""Page of a run that has only interventions."""

from __future__ import annotations

from pathlib import Path

from probekit.amounts import counted
from probekit.files import write_atomic
from probekit.report.causes.cause_answer import cause_answer
from probekit.report.causes.edits import n_in_words
from probekit.report.causes.legible import legible
from probekit.report.pages.causes.section import cause_items, table_files
from probekit.report.pages.page import Group, Item, Page, Section
from probekit.report.texts.headings import capitalised
from probekit.report.texts.machine_paths import model_title
from probekit.results.causes import CausesRecord, CauseTables

METHOD = (
    "The measure is scored for the answer of the unedited text throughout. Intervals are 95 % "
    "intervals of a jackknife over groups of texts; those of patches and ablations allow for "
    "skewed effects of the groups.",
    "P-values of patches and ablations are the larger one of two tests over groups: random signs, "
    "and a bootstrap that allows for skewed effects. p and interval of a patch come from different "
    "methods, so that they can disagree near the limit.",
    "Recovery is a ratio of sums over texts; it is undefined if the interval of the denominator "
    "contains 0.",
    "Directions of each fold are fitted on its training texts and act on its test texts. Erasure "
    "replaces the component along the direction by its mean.",
)


def write_causes_page(run_dir: Path) -> Path:
    """Write causes.html into the folder of a run and return its path.

    Raises:
        MissingError: the run has no interventions.
        DataError: a file of the run cannot be read.
        StoreError: the page cannot be written.
    """
    path = run_dir / "causes.html"
    write_atomic(path, causes_page(run_dir))
    return path


def causes_page(run_dir: Path) -> str:
    """Return the page of a run's interventions as HTML; equal files give equal bytes.

    Raises:
        MissingError: the run has no interventions.
        DataError: a file of the run cannot be read.
    """
    tables = legible(CauseTables.open(run_dir))
    record = tables.record
    shown, folded = cause_items(tables)
    sections: list[Item] = [Group("causes", shown)]
    if folded:
        sections.append(Section("More figures", folded, "folds"))
    return Page(
        eyebrow=["probekit", "interventions", record.name, model_title(record.model)],
        title=record.question or record.name,
        answer=cause_answer(tables),
        sections=[*sections, *table_files(run_dir)],
        method=METHOD,
        facts={"": _facts(record)},
        aside=[n_in_words(record)],
        styles=("report.css", "causes.css"),
    ).html()


def _facts(record: CausesRecord) -> dict[str, str]:
    named = {
        "model": model_title(record.model),
        "data": record.dataset,
        "position": record.position,
        "measures": ", ".join(record.measures),
        **{f"{name} token": words for name, words in record.answers.items()},
        "labels": ", ".join(record.classes),
        "folds": counted(record.folds, "fold") if record.folds else "",
        "permutations": f"{record.draws:,}" if record.draws else "",
        "seed": str(record.seed),
    }
    return {capitalised(name): words for name, words in named.items() if words}
