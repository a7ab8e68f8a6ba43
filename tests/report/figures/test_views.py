"""Every row is in at least one figure, and no figure has too many lines."""

import pandas as pd

from probekit.report.figures.views import (
    MOST_NEURONS,
    curve_position,
    curve_rows,
    head_tables,
    position_tables,
    shown_position,
)


def test_a_run_without_heads_or_sweep_is_unchanged(table):
    assert curve_rows(table).equals(table)
    assert list(head_tables(table)) == list(position_tables(table)) == []
    assert shown_position(table) is None


def test_several_heads_are_not_in_the_curve_but_a_single_one_is(heads):
    rows = curve_rows(heads)
    assert rows["head"].isna().all()
    assert set(rows["target"]) == {"task", "majority", "word_identity"}  # with concatenated sites
    one = heads[heads["head"].isna() | heads["head"].eq(2)]
    assert curve_rows(one).equals(one)
    assert list(head_tables(one)) == []


def test_each_part_has_a_map_of_its_heads(heads):
    queries = heads.assign(site=heads["site"].str.replace("hook_z", "hook_q"))
    both = pd.concat([heads, queries], ignore_index=True)
    tables = {name: rows for name, _, rows in head_tables(both)}
    assert list(tables) == ["attn.z", "attn.q"]
    assert all(rows["head"].notna().all() for rows in tables.values())
    assert len(tables["attn.z"]) == heads["head"].notna().sum()


def test_heads_of_a_sweep_have_a_map_for_each_position(heads):
    both = [heads.assign(position=position) for position in ("word:last-1", "word:last")]
    table = pd.concat(both, ignore_index=True)
    maps = [(name, is_shown) for name, is_shown, _ in head_tables(table)]
    assert maps == [("attn.z · word:last-1", False), ("attn.z · word:last", True)]
    assert list(position_tables(table)) == []


def test_the_curve_of_a_sweep_of_several_lines_is_at_the_span_or_the_chosen_position(sweep):
    assert curve_position(sweep) is None
    other = sweep.assign(probe="lda")[sweep["site"] != ""]
    sweep = pd.concat([sweep, other], ignore_index=True)
    assert curve_position(sweep) == "word:last"
    assert set(curve_rows(sweep)["position"]) == {"word:last"}
    offsets = sweep[sweep["position"] != "word:last"].copy()
    best = (offsets["position"] == "word:last-1") & (offsets["split"] == "validation")
    offsets.loc[best, "value"] = 1.0
    assert set(curve_rows(offsets)["position"]) == {"word:last-1"}


def test_positions_without_offsets_are_not_a_sweep(table):
    both = pd.concat([table, table.assign(position="index:-3")], ignore_index=True)
    assert curve_rows(both).equals(both)
    assert list(position_tables(both)) == []


def test_many_neurons_are_not_in_the_curve(table):
    site = table[table["site"] == "blocks.1.hook_resid_post"]

    def with_neurons(count):
        rows = [site.assign(site=f"blocks.1.mlp.hook_post[neuron={n}]") for n in range(count)]
        return pd.concat([table, *rows], ignore_index=True)

    few = with_neurons(MOST_NEURONS)
    assert curve_rows(few).equals(few)
    assert curve_rows(with_neurons(MOST_NEURONS + 1)).equals(table)
