"""How sure the probes of a run are, and how right: the rows of reliability.csv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from probekit.probes.curve import Prober
from probekit.probes.score.calibration import ReliabilityBin, reliability_bins
from probekit.probes.score.measurement import Predictions
from probekit.probes.score.metrics import ClassPredictions
from probekit.results.predictions import Predictor
from probekit.results.selection import ranked_rows
from probekit.results.site_results import SiteResult

PLACE = ("site", "head", "position")
COLUMNS = ("probe", *PLACE, *ReliabilityBin.__dataclass_fields__)


def reliability_rows(
    found: Sequence[SiteResult], table: pd.DataFrame, prober: Prober
) -> pd.DataFrame:
    """Return the bins of each kind of probe whose scores are probabilities, at its best site.

    The best is that of the highest cross-validated score, so that test rows have no say in it.
    """
    best = ranked_rows(table).drop_duplicates("probe")
    bins = [
        {"probe": row["probe"], **{name: row[name] for name in PLACE}, **asdict(one)}
        for _, row in best.iterrows()
        for said in _said(found, row)
        for one in reliability_bins(said, prober.resamples_of(row["probe"]))
    ]
    return pd.DataFrame(bins, columns=list(COLUMNS))


def _said(found: Sequence[SiteResult], row: pd.Series) -> list[ClassPredictions]:
    """Return the answers of the probe that a row is about, if they are probabilities of rows."""
    said: list[Predictions] = [
        site.said[speaker]
        for site in found
        if (speaker := Predictor(row["probe"], "task")) in site.said and _is_at(site, row)
    ]
    return [
        one
        for one in said
        if isinstance(one, ClassPredictions) and one.scores_are_log_probabilities
    ]


def _is_at(site: SiteResult, row: pd.Series) -> bool:
    mine = pd.Series(site.rows[0])[list(PLACE)]
    return bool((mine.eq(row[list(PLACE)]) | (mine.isna() & row[list(PLACE)].isna())).all())
