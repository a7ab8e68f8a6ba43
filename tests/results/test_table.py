import math

import pandas as pd
import pytest

from probekit.errors import DataError, MissingError
from probekit.results.selection import chosen_row
from probekit.results.table import PAGE_TABLES, load_table, page_table, placed, same_features, ticks


def at(*sites: str, head: float | None = None) -> pd.DataFrame:
    return placed(pd.DataFrame({"site": sites, "head": [head] * len(sites)}))


def test_what_was_written_is_read_back(make_run, table):
    read = load_table(make_run(table) / "results.csv")
    assert list(read.columns) == list(table.columns)
    assert read["fold"].isna().all()
    assert set(read["positive"]) == {""}
    assert read["value"].tolist() == table["value"].tolist()
    assert read["site"].tolist() == table["site"].tolist()
    assert read["converged"].isna().tolist() == table["converged"].isna().tolist()


def test_text_that_pandas_takes_for_a_missing_value_stays_text(make_run, table):
    assert set(load_table(make_run(table.assign(dataset="NA")) / "results.csv")["dataset"]) == {
        "NA"
    }


def test_a_missing_column_is_named(make_run, table):
    with pytest.raises(DataError, match=r"results\.csv, line 1: no column 'ci_low', 'C'\."):
        load_table(make_run(table.drop(columns=["ci_low", "C"])) / "results.csv")


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
def test_a_cell_that_cannot_be_read_is_named_with_its_line(make_run, table, column, cell):
    table = table.astype(object)
    table.loc[4, column] = cell
    with pytest.raises(DataError, match=rf"line 6, column '{column}': '{cell}' cannot be read"):
        load_table(make_run(table) / "results.csv")


def test_a_table_without_rows_and_a_folder_without_table_are_refused(make_run, table, tmp_path):
    with pytest.raises(DataError, match="no rows"):
        load_table(make_run(table.iloc[:0]) / "results.csv")
    with pytest.raises(MissingError, match="does not exist"):
        load_table(tmp_path / "results.csv")


@pytest.mark.parametrize(
    ("name", "column", "cell"),
    [
        ("confusion.csv", "n", "many"),
        ("confusion.csv", "n", "-3"),
        ("confusion.csv", "n", "2.5"),
        ("confusion.csv", "n", "1e300"),
        ("confusion.csv", "n", ""),
        ("scatter.csv", "x", "inf"),
        ("cosines.csv", "n_features", "-1"),
        ("reliability.csv", "accuracy", "high"),
        ("features.csv", "rank", "first"),
    ],
)
def test_a_table_of_the_page_is_read_as_written(tmp_path, name, column, cell):
    assert page_table(tmp_path, name) is None
    filled = {"text": "NA", "number": "", "finite": "0.5", "count": "3"}
    cells = pd.DataFrame([{key: filled[of] for key, of in PAGE_TABLES[name].items()}] * 2)
    cells.to_csv(tmp_path / name, index=False)
    first = page_table(tmp_path, name).iloc[0].to_dict()
    read = {"text": "NA", "number": pytest.approx(math.nan, nan_ok=True), "finite": 0.5, "count": 3}
    assert first == {key: read[of] for key, of in PAGE_TABLES[name].items()}
    cells.drop(columns=column).to_csv(tmp_path / name, index=False)
    with pytest.raises(DataError, match=f"no column '{column}'"):
        page_table(tmp_path, name)
    cells.loc[1, column] = cell
    cells.to_csv(tmp_path / name, index=False)
    with pytest.raises(DataError, match=f"line 3, column '{column}': '{cell}' cannot be read"):
        page_table(tmp_path, name)
    cells.iloc[:0].to_csv(tmp_path / name, index=False)
    if name == "reliability.csv":  # no kind of probe has probabilities
        assert page_table(tmp_path, name) is None
        return
    with pytest.raises(DataError, match="has no rows"):
        page_table(tmp_path, name)


def test_the_residual_stream_is_one_line_from_the_embedding_to_the_final_norm():
    rows = at(
        "ln_final.hook_normalized",
        "blocks.2.hook_resid_post",
        "blocks.2.hook_resid_pre",
        "blocks.0.hook_resid_pre",
        "hook_embed",
    )
    assert set(rows["line"]) == {"residual stream"}
    assert rows["depth"].tolist() == [-1, -1, 1, 2, 3]
    assert ticks(rows) == {-1: "embed", 0: "0", 1: "1", 2: "2", 3: "final norm"}


@pytest.mark.parametrize(
    ("site", "head", "line"),
    [
        ("blocks.1.hook_resid_mid", None, "resid_mid"),
        ("blocks.1.hook_attn_out", None, "attn_out"),
        ("blocks.1.attn.hook_z", 2.0, "attn.z head 2"),
        ("blocks.1.attn.hook_z[head=2]", 2.0, "attn.z head 2"),
        ("blocks.1.mlp.hook_post", None, "mlp.post"),
        ("blocks.1.mlp.hook_post[neuron=3]", None, "mlp.post neuron 3"),
    ],
)
def test_every_other_component_head_and_neuron_is_a_line_at_its_block(site, head, line):
    rows = at(site, head=head)
    assert rows[["line", "depth"]].to_numpy().tolist() == [[line, 1]]


def test_a_neuron_keeps_apart_from_its_whole_site_and_from_other_neurons():
    sites = [
        f"blocks.{layer}.mlp.hook_post{neuron}"
        for neuron in ("[neuron=3]", "", "[neuron=10]")
        for layer in (0, 2)
    ]
    lines = {str(line): rows["depth"].tolist() for line, rows in at(*sites).groupby("line")}
    assert set(lines) == {"mlp.post", "mlp.post neuron 10", "mlp.post neuron 3"}
    assert all(depths == [0, 2] for depths in lines.values())


def test_a_neuron_shares_features_only_with_itself(table):
    sites = ("blocks.1.mlp.hook_post", "blocks.1.mlp.hook_post[neuron=3]")
    rows = placed(
        pd.concat([table[table["site"] == table["site"][0]].assign(site=s) for s in sites])
    )
    for site in sites:
        row = rows[rows["site"] == site].iloc[0]
        assert set(same_features(rows, row)["site"]) == {site}


def test_ticks_are_only_at_depths_with_rows():
    assert list(ticks(at("blocks.1.hook_mlp_out", "blocks.3.hook_mlp_out")).values()) == list("123")
    assert ticks(at("hook_embed")) == {-1: "embed"}


def test_the_layer_is_selected_by_validation_not_by_test_rows(table):
    test = (table["split"] == "test") & (table["target"] == "task")
    before = chosen_row(table)["site"]
    table.loc[test, "value"] = table.loc[test, "value"].to_numpy()[::-1]
    assert chosen_row(table)["site"] == before == "blocks.2.hook_resid_post"
    assert chosen_row(table[table["split"] == "test"]) is None


def test_among_equals_the_shallowest_is_chosen(table):
    table.loc[table["split"] == "validation", "value"] = 0.9
    assert chosen_row(table.iloc[::-1])["site"] == "blocks.0.hook_resid_pre"
