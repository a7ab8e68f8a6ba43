"""Every row is in one figure at least, and no figure has more than it can show."""

import pandas as pd

from probekit.report.figures.views import (
    MOST_NEURONS,
    curve_rows,
    head_tables,
    position_tables,
    shown_position,
)


def test_a_plain_run_is_left_as_it_is(table):
    assert curve_rows(table).equals(table)
    assert list(head_tables(table)) == list(position_tables(table)) == []
    assert shown_position(table) is None


def test_several_heads_leave_the_curve_and_one_head_stays(heads):
    left = curve_rows(heads)
    assert left["head"].isna().all()
    assert set(left["target"]) == {"task", "majority", "word_identity"}  # the joined sites too
    one = heads[heads["head"].isna() | heads["head"].eq(2)]
    assert curve_rows(one).equals(one)
    assert list(head_tables(one)) == []


def test_each_part_has_a_map_of_its_heads(heads):
    queries = heads.assign(site=heads["site"].str.replace("hook_z", "hook_q"))
    both = pd.concat([heads, queries], ignore_index=True)
    found = {name: rows for name, _, rows in head_tables(both)}
    assert list(found) == ["attn.z", "attn.q"]
    assert all(rows["head"].notna().all() for rows in found.values())
    assert len(found["attn.z"]) == heads["head"].notna().sum()


def test_heads_of_a_sweep_have_a_map_for_each_position(heads):
    both = [heads.assign(position=position) for position in ("word:last-1", "word:last")]
    table = pd.concat(both, ignore_index=True)
    found = [(name, is_shown) for name, is_shown, _ in head_tables(table)]
    assert found == [("attn.z · word:last-1", False), ("attn.z · word:last", True)]
    assert list(position_tables(table)) == []


def test_the_curve_of_a_sweep_is_that_of_the_span_or_of_the_choice(sweep):
    assert set(curve_rows(sweep)["position"]) == {"word:last"}
    beside = sweep[sweep["position"] != "word:last"].copy()
    best = (beside["position"] == "word:last-1") & (beside["split"] == "validation")
    beside.loc[best, "value"] = 1.0
    assert set(curve_rows(beside)["position"]) == {"word:last-1"}


def test_positions_that_are_no_offsets_are_no_sweep(table):
    both = pd.concat([table, table.assign(position="index:-3")], ignore_index=True)
    assert curve_rows(both).equals(both)
    assert list(position_tables(both)) == []


def test_a_crowd_of_neurons_leaves_the_curve(table):
    site = table[table["site"] == "blocks.1.hook_resid_post"]

    def with_neurons(count):
        rows = [site.assign(site=f"blocks.1.mlp.hook_post[neuron={n}]") for n in range(count)]
        return pd.concat([table, *rows], ignore_index=True)

    few = with_neurons(MOST_NEURONS)
    assert curve_rows(few).equals(few)
    assert curve_rows(with_neurons(MOST_NEURONS + 1)).equals(table)
