"""Tables are read as they were written; columns, metrics and targets are declared once."""

import pandas as pd
import pytest

from probekit.probes.score.metric_table import METRICS, association, metric_functions
from probekit.probes.targets import BASELINES, NESTED, TARGETS
from probekit.report.elements.style import LEVELS, LINES
from probekit.results.table import DIFFERENCES, RESULTS, make_table, read_columns

CELLS = {"text": "a", "number": 0.25, "boolean": True}


@pytest.mark.parametrize("columns", [RESULTS, DIFFERENCES], ids=["results", "differences"])
def test_a_written_table_is_read_with_its_types(tmp_path, columns):
    path = tmp_path / "table.csv"
    full = {c.name: c.allowed[0] if c.allowed else CELLS[c.type] for c in columns}
    make_table([full, {}], columns).astype(object).to_csv(path, index=False)
    if any(c.allowed for c in columns):  # an empty cell is no target and no metric
        with pytest.raises(ValueError, match=r"line 3, column '\w+': '' cannot be read"):
            read_columns(path, columns)
    make_table([full], columns).to_csv(path, index=False)
    read = read_columns(path, columns)
    assert list(read.columns) == [column.name for column in columns]
    assert read.iloc[0].to_dict() == full


def test_empty_cells_have_the_type_of_their_column(tmp_path):
    path = tmp_path / "table.csv"
    free = [column for column in RESULTS if not column.allowed]
    pd.DataFrame([dict.fromkeys([c.name for c in free], "")] * 2).to_csv(path, index=False)
    for column in free:
        cell = read_columns(path, free)[column.name].iloc[0]
        assert cell == "" if column.type == "text" else pd.isna(cell)


def test_every_score_has_a_function_and_nothing_else_has():
    offers = {"class": {"scores", "probabilities", "alarms"}, "tree": {"uuas", "root_accuracy"}}
    families = {family for metric in METRICS.values() for family in metric.families}
    found = {f: metric_functions(f, frozenset(offers.get(f, ()))) for f in families}
    assert {name for functions in found.values() for name in functions} == {
        metric.name for metric in METRICS.values() if metric.kind == "score"
    }
    assert all(callable(f) for functions in found.values() for f in functions.values())


def test_every_target_has_a_line_or_a_level_with_its_title():
    # Single networks are not drawn: the line of random weights is their mean.
    drawn = {name: target for name, target in TARGETS.items() if target.network is None}
    styles = {**LEVELS, **LINES}
    assert {name: styles[name].label for name in drawn} == {
        name: target.title for name, target in drawn.items()
    }
    assert {*BASELINES, *NESTED.values()} == set(drawn) - set(LINES)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_metric_has_functions_if_it_is_a_score_and_a_range_with_0(metric):
    assert bool(metric.families) == (metric.kind == "score")
    # p-values are of scores of the same predictions.
    found = [association(metric.name, family) for family in {*metric.families} - {"tree"}]
    assert all(map(callable, found)) if metric.has_p else not any(found)
    lowest, highest = metric.range
    assert lowest <= 0 <= highest != lowest
