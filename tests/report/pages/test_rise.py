"""From which layer on a run is above chance, and as good as the selected probe."""

from types import SimpleNamespace

import pandas as pd
import pytest

from probekit.report.pages.rise import rise
from probekit.results.scores import Scores
from probekit.results.table import only
from tests.report.conftest import SITES, difference, judged, make_table
from tests.report.sentences.cases import with_p

ASKED, OTHER = "From which block on is number decodable?", "Is number decodable?"
TABLE = make_table()


def told(folder, p_values, worse, question=ASKED, table=TABLE, is_asked=True):
    """The sentence of a run with these p-values by site, and sites that are significantly worse."""
    table = with_p(table, 0.001)
    rows = only(table, metric="p_best").index
    table.loc[rows, "value"] = table.loc[rows, "site"].map(dict(zip(SITES, p_values, strict=True)))
    differences = [difference("majority", p=0.001, score=0.5)]
    for number, site in enumerate(SITES):
        p = 0.01 if number in worse else 0.3
        differences.append(difference(f"{site} last logistic task", p=p, score=0.6))
    pd.DataFrame(differences).to_csv(folder / "differences.csv", index=False)
    record = SimpleNamespace(question=question)
    numbers = table.astype({"head": float, "layer": float, "value": float})
    v = judged(table, differences)
    run = SimpleNamespace(folder=folder, record=record, verdict=v, scores=Scores.of(numbers))
    return [one.text for one in rise(run, is_asked=is_asked)]


@pytest.mark.parametrize(
    ("p_values", "worse", "words"),
    [
        (
            (0.4, 0.01, 0.01, 0.01, 0.01, 0.01),
            (0, 1),
            "block 0 on (accuracy 80 %, adjusted p < 0.05); from block 1 on",
        ),
        # A site in between counts: from it on, not all are.
        (
            (0.01, 0.4, 0.01, 0.01, 0.01, 0.01),
            (1, 4),
            "block 1 on (accuracy 88 %, adjusted p < 0.05); from the final",
        ),
        ((0.01,) * 6, (), "Above chance from the embedding on (accuracy 71 %, adjusted p < 0.05)."),
    ],
)
def test_all_sites_from_there_on_are_meant(tmp_path, p_values, worse, words):
    (text,) = told(tmp_path, p_values, worse)
    assert words in text
    assert ("not significantly worse than the chosen probe." in text) == bool(worse)


def test_nothing_is_said_where_the_last_site_is_not_above_chance_or_other_things_are_asked(
    tmp_path,
):
    high = (0.01,) * 6
    assert not told(tmp_path, (*high[:5], 0.4), (0,))
    assert not told(tmp_path, high, (5,))
    assert not told(tmp_path, high, (0,), OTHER)
    assert told(tmp_path, high, (0,), OTHER, is_asked=False)
    assert not told(tmp_path, high, (), OTHER, is_asked=False)
