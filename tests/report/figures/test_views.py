"""Every row is in at least one figure, and no figure has too many lines."""

from collections import Counter

import pandas as pd
import pytest

from probekit.report.figures import views
from probekit.report.figures.maps import head_tables, position_tables
from probekit.results.scores import Scores
from tests.report.conftest import altered, make_heads, make_sweep, make_table

PLAIN, HEADS, SWEEP = make_table(), make_heads(), make_sweep()
TWO_PROBES = pd.concat([SWEEP, SWEEP[SWEEP["site"] != ""].assign(probe="lda")], ignore_index=True)
OFFSETS = TWO_PROBES[TWO_PROBES["position"] != "word:last"]


def with_neurons(count):
    """Return rows of the residual stream and of this number of neurons."""
    site = PLAIN[PLAIN["site"] == "blocks.1.hook_resid_post"]
    rows = [site.assign(site=f"blocks.1.mlp.hook_post[neuron={n}]") for n in range(count)]
    return pd.concat([PLAIN, *rows], ignore_index=True)


RUNS = {
    "neither heads nor a sweep": PLAIN,
    "heads of one part": HEADS,
    "a single head": HEADS[HEADS["head"].isna() | HEADS["head"].eq(2)],
    "heads of two parts": pd.concat(
        [HEADS, HEADS.assign(site=HEADS["site"].str.replace("hook_z", "hook_q"))], ignore_index=True
    ),
    "heads of a sweep": pd.concat(
        [HEADS.assign(position=name) for name in ("word:last-1", "word:last")], ignore_index=True
    ),
    "a sweep of one line": SWEEP,
    "a sweep of several lines at the span": TWO_PROBES,
    "a sweep of several lines at the chosen position, without the span": altered(
        OFFSETS, "position == 'word:last-1' and split == 'validation'", value=1.0
    ),
    "positions that are no offsets": pd.concat(
        [PLAIN, PLAIN.assign(position="index:-3")], ignore_index=True
    ),
    "not too many neurons": with_neurons(views.MOST_NEURONS),
    "too many neurons": with_neurons(views.MOST_NEURONS + 1),
}


@pytest.mark.parametrize("name", RUNS)
def test_each_figure_has_its_rows(name, snapshot):
    scores = Scores.of(RUNS[name])
    curve = views.curve_rows(scores)
    drawn = {
        "of a sweep is shown": views.shown_position(scores),
        "of the curve": views.curve_position(scores),
        "all rows are in the curve": curve.rows.equals(scores.rows),
        "rows of the curve by position": dict(Counter(curve.rows["position"])),
        "rows of the curve by component": dict(Counter(curve.rows["component"].dropna())),
        "heads of the curve": curve.rows["head"].dropna().unique().tolist(),
        "targets of the curve": list(curve.rows["target"].unique()),
        "maps of heads": [
            (part, is_shown, len(own)) for part, is_shown, own in head_tables(scores)
        ],
        "maps of positions": [(part, len(own)) for part, own in position_tables(scores)],
    }
    assert "\n".join(f"{key}: {value}" for key, value in drawn.items()) == snapshot
    assert all(own["head"].notna().all() for _, _, own in head_tables(scores))
