"""Page of a run that has only interventions."""

from __future__ import annotations

from pathlib import Path

from probekit.amounts import counted
from probekit.files import write_atomic
from probekit.report.causes.edits import n_in_words
from probekit.report.pages.causes.section import CausesSection
from probekit.report.pages.template import render
from probekit.report.texts import capitalised, model_title
from probekit.results.causes import CausesRecord

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
    causes = CausesSection.open(run_dir)
    record = causes.record
    return render(
        "causes_page.html",
        causes=causes,
        model=model_title(record.model),
        size=n_in_words(record),
        method=METHOD,
        facts={"": _facts(record)},
    )


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
