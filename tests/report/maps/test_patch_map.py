"""Maps of the patches of a pair."""

import numpy as np

from probekit.report.maps.network_maps import (
    estimate_scatter,
    pair_labels,
    patch_head_map,
    patch_position_map,
    site_family,
)
from tests.report.pictures import patched_pair


def of(pair, family):
    rows = pair.of_positions
    return rows[[site_family(site) == family for site in rows["site"]]]


def test_positions_are_across_and_layers_down():
    pair = patched_pair()
    labels = pair_labels(pair.clean, pair.corrupt)
    figure = patch_position_map(of(pair, "residual stream"), labels)
    heat = figure.data[0]
    assert list(figure.layout.yaxis.ticktext) == ["embed", "0", "1"]
    assert figure.layout.xaxis.ticktext[1] == "␣key → ␣keys"
    assert np.array(heat.z).shape == (3, len(labels))
    rows = pair.rows.set_index(["site", "position"])["recovery"]
    assert heat.z[2][1] == rows["blocks.1.hook_resid_post", 1]
    assert heat.zmin == -heat.zmax == -np.abs(np.array(heat.z)).max()
    assert not figure.layout.shapes
    other = patch_position_map(of(pair, "attn_out"), labels, "effect")
    assert list(other.layout.yaxis.ticktext) == ["0", "1"]
    assert "effect, logits" in other.data[0].colorbar.title.text


def test_heads_are_across():
    pair = patched_pair()
    heat = patch_head_map(pair.of_heads).data[0]
    assert np.array(heat.z).shape == (2, 3)
    assert heat.z[1][2] == pair.of_heads["recovery"].iloc[-1]
    assert "L" not in heat.hovertext[1][2].partition("]")[0]
    assert "blocks.1.attn.hook_z[head=2]" in heat.hovertext[1][2]
    assert "all positions" in heat.hovertext[1][2]


def test_verified_estimates_are_framed_and_compared():
    pair = patched_pair(estimated=True)
    labels = pair_labels(pair.clean, pair.corrupt)
    rows = of(pair, "residual stream")
    figure = patch_position_map(rows, labels, "estimate")
    assert len(figure.layout.shapes) == 2 * rows["effect"].notna().sum() > 0  # two outlines each
    assert not np.isnan(np.array(figure.data[0].z)).any()
    points = estimate_scatter(pair.rows).data[1]
    assert len(points.x) == pair.rows["effect"].notna().sum()
    assert set(points.y) == set(pair.rows["effect"].dropna())


def test_long_texts_have_fewer_ticks():
    pair = patched_pair(n_tokens=400)
    figure = patch_position_map(of(pair, "attn_out"), pair_labels(pair.clean, pair.corrupt))
    assert len(figure.layout.xaxis.ticktext) < 200
