import math

import pandas as pd
import pytest

from probekit.errors import DataError
from probekit.results.scores import Scores
from probekit.results.table import (
    DIFFERENCES,
    PAGE_TABLES,
    by_depth,
    load_table,
    page_table,
    read_columns,
    same_features,
    ticks,
)
from tests.report.conftest import difference, make_table


def at(*sites: str, head: float | None = None) -> pd.DataFrame:
    return by_depth(pd.DataFrame({"site": sites, "head": [head] * len(sites)}))


TABLE = make_table()


def changed(column, cell):
    """The table of results with another cell in line 6."""
    table = TABLE.astype(object)
    table.loc[4, column] = cell
    return table


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("value", "high"),
        ("site", "blocks.9999999.hook_resid_post"),
        ("n_test", "1,039"),
        ("target", "tusk"),
        ("metric", ""),
        ("split", "train"),
    ],
)
def test_a_cell_that_cannot_be_read_is_named_with_its_line(make_run, refused, column, cell):
    refused(load_table, make_run(changed(column, cell)) / "results.csv")


def test_missing_columns_rows_and_files_are_named(make_run, tmp_path, refused):
    for damaged in (TABLE.drop(columns=["ci_low", "C"]), TABLE.iloc[:0]):
        refused(load_table, make_run(damaged) / "results.csv")
    refused(load_table, tmp_path / "none.csv")
    path = tmp_path / "differences.csv"
    for row in (difference("majority") | {"p": "x"}, {"a": "a", "b": "b"}):
        pd.DataFrame([row]).to_csv(path, index=False)
        refused(read_columns, path, DIFFERENCES)


# A cell of each type, and the value that is read.
FILLED = {"text": ("NA", "NA"), "number": ("", pytest.approx(math.nan, nan_ok=True))}
FILLED |= {"finite": ("0.5", 0.5), "count": ("3", 3), "boolean": ("True", True)}


def page_cells(name):
    return pd.DataFrame([{key: FILLED[of][0] for key, of in PAGE_TABLES[name].items()}] * 2)


@pytest.mark.parametrize("name", PAGE_TABLES)
def test_a_table_of_the_page_is_read_as_written(tmp_path, name):
    assert page_table(tmp_path, name) is None
    page_cells(name).to_csv(tmp_path / name, index=False)
    assert page_table(tmp_path, name).iloc[0].to_dict() == {
        key: FILLED[of][1] for key, of in PAGE_TABLES[name].items()
    }
    page_cells(name).iloc[:0].to_csv(tmp_path / name, index=False)
    if name == "reliability.csv":  # no kind of probe has probabilities
        assert page_table(tmp_path, name) is None
        return
    with pytest.raises(DataError, match="has no rows"):
        page_table(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "column", "cell"),
    [
        *(("confusion.csv", "n", cell) for cell in ("many", "-3", "2.5", "1e300", "")),
        ("scatter.csv", "x", "inf"),
        ("cosines.csv", "n_features", "-1"),
        ("reliability.csv", "accuracy", "high"),
        ("features.csv", "rank", "first"),
        ("scatter.csv", "x", None),
    ],
)
def test_a_damaged_table_of_the_page_is_refused(tmp_path, refused, name, column, cell):
    cells = page_cells(name)
    cells.loc[1, column] = cell
    cells.drop(columns=[column] * (cell is None)).to_csv(tmp_path / name, index=False)
    refused(page_table, tmp_path, name)


LINES = {
    None: [
        "hook_embed",
        "blocks.0.hook_resid_pre",
        "blocks.2.hook_resid_pre",
        "blocks.2.hook_resid_post",
        "ln_final.hook_normalized",
        "blocks.1.hook_resid_mid",
        "blocks.1.hook_attn_out",
        "blocks.1.mlp.hook_post",
        *(f"blocks.{layer}.mlp.hook_post[neuron={n}]" for n in (3, 10) for layer in (0, 2)),
    ],
    2.0: ["blocks.1.attn.hook_z", "blocks.1.attn.hook_z[head=2]"],
}


def test_sites_of_one_component_head_or_neuron_are_a_line_over_depth(snapshot):
    parts = [at(*sites, head=head) for head, sites in LINES.items()]
    rows = pd.concat(parts).sort_values(["line", "depth"])
    text = rows[["line", "depth", "site", "head"]].to_csv(index=False)
    from_block_1 = at("blocks.1.hook_mlp_out", "blocks.3.hook_mlp_out")
    assert f"{text}{ticks(parts[0])}\n{ticks(from_block_1)}" == snapshot


def test_a_neuron_shares_features_only_with_itself():
    sites = ("blocks.1.mlp.hook_post", "blocks.1.mlp.hook_post[neuron=3]")
    rows = by_depth(
        pd.concat([TABLE[TABLE["site"] == TABLE["site"][0]].assign(site=s) for s in sites])
    )
    for site in sites:
        row = rows[rows["site"] == site].iloc[0]
        assert set(same_features(rows, row)["site"]) == {site}


def test_the_layer_is_selected_by_validation_not_by_test_rows(table):
    test = (table["split"] == "test") & (table["target"] == "task")
    before = Scores.of(table).chosen["site"]
    table.loc[test, "value"] = table.loc[test, "value"].to_numpy()[::-1]
    assert Scores.of(table).chosen["site"] == before == "blocks.2.hook_resid_post"
    assert Scores.of(table[table["split"] == "test"]).chosen is None


def test_among_equals_the_shallowest_is_chosen(table):
    table.loc[table["split"] == "validation", "value"] = 0.9
    assert Scores.of(table.iloc[::-1]).chosen["site"] == "blocks.0.hook_resid_pre"
