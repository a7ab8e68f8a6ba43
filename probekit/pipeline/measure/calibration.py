"""Calibration of a run's probes: the rows of reliability.csv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from probekit.probes.prober import Prober
from probekit.probes.score.calibration import ReliabilityBin, reliability_bins
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictions, Predictor, SiteResult
from probekit.results.selection import ranked_rows

PLACE = ("site", "head", "position")
COLUMNS = ("probe", *PLACE, *ReliabilityBin.__dataclass_fields__)


def reliability_rows(
    results: Sequence[SiteResult], table: pd.DataFrame, prober: Prober
) -> pd.DataFrame:
    """Return the reliability bins of each probabilistic kind of probe at its best site.

    The best site has the best cross-validated score; test rows are not used for the selection.
    """
    best = ranked_rows(table).drop_duplicates("probe")
    bins = [
        {"probe": row["probe"], **{name: row[name] for name in PLACE}, **asdict(reliability_bin)}
        for _, row in best.iterrows()
        for predictions in _predictions(results, row)
        for reliability_bin in reliability_bins(predictions, prober.resamples_of(row["probe"]))
    ]
    return pd.DataFrame(bins, columns=list(COLUMNS))


def _predictions(results: Sequence[SiteResult], row: pd.Series) -> list[ClassPredictions]:
    """Return the predictions of a table row's probe as a list; [] unless they are probabilities."""
    predictor = Predictor(row["probe"], "task")
    predictions: list[Predictions] = [
        site.predictions[predictor]
        for site in results
        if predictor in site.predictions and _is_at(site, row)
    ]
    return [
        one
        for one in predictions
        if isinstance(one, ClassPredictions) and one.scores_are_log_probabilities
    ]


def _is_at(site: SiteResult, row: pd.Series) -> bool:
    own = pd.Series(site.rows[0])[list(PLACE)]
    return bool((own.eq(row[list(PLACE)]) | (own.isna() & row[list(PLACE)].isna())).all())
