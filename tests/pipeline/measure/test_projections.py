"""The direction of the selected probe: tokens that it raises, and held-out rows projected on it."""

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.chosen.projections.measure import MOST_DIRECTIONS, N_TOKENS, token_cosines
from probekit.model.families.table import load_model
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.experiment.probe import probe
from probekit.probes.saved_probe import SavedProbe
from probekit.results.table import only
from tests.pipeline.planted import FAST, MIXED, QUICK_SITES

RNG = np.random.default_rng(0)
N, LABELS = 240, np.array(list("abcdef"))
CODES = RNG.integers(6, size=N)
STREAM = [f"blocks.{layer}.hook_resid_post" for layer in range(3)]
# A constant site, one that has the labels, and the same on another scale with noise.
SIGNAL = RNG.normal(size=(N, 8)) + 3 * np.eye(8)[CODES]
LAYERS = dict(
    zip(STREAM, (0 * SIGNAL + 1 / 3, SIGNAL, 100 * (SIGNAL + RNG.normal(size=(N, 8)))), strict=True)
)
QUICK = {"folds": 2, "C": [0.1], "description": False, "permutations": 0}
MEANS = QUICK | {"kinds": [{"kind": "mass_mean"}]}  # has no penalty
NUMBERS = QUICK | {"kinds": [{"kind": "ridge_regression"}]}
RUNS = {
    "two labels": {"labels": CODES > 2},
    "two labels in folds": {"labels": CODES > 2, "split": {"folds": 3}},
    "means in folds": {"labels": CODES > 2, "probe": MEANS, "split": {"folds": 3}},
    "numbers": {"labels": CODES + RNG.normal(size=N) / 9, "probe": NUMBERS},
    "numbers in folds": {"labels": np.float64(CODES), "probe": NUMBERS, "split": {"folds": 2}},
}


def given(out, labels, **options):
    options = {"groups": np.arange(N) // 3, "probe": QUICK, "workers": 1, "page": False} | options
    return probe(LAYERS, labels, out=out, progress=False, **options)


@pytest.mark.parametrize("name", RUNS)
def test_at_the_selected_site_the_direction_ranks_held_out_rows_as_the_probe_does(tmp_path, name):
    result = given(tmp_path, **RUNS[name])
    rows = pd.read_csv(result.folder / "projections.csv")
    assert rows["site"].unique().tolist() == STREAM
    selected = rows[rows["is_selected"]]
    metric = "spearman" if "numbers" in name else "auroc"
    own = only(result.table, site=STREAM[1], metric=metric, target="task", split="test")
    for column in ("value", "ci_low", "ci_high"):
        assert np.allclose(selected[column], own[own["fold"].isna()][column], atol=1e-5)
    # The sign is that of the label, and scales of sites do not matter.
    means = rows.pivot_table("mean", "site", "label", sort=False)
    assert means.loc[STREAM[1]].is_monotonic_increasing
    assert np.allclose(means.loc[STREAM[0]], 0)
    values = only(rows, site=STREAM[0])["value"]
    assert (values.isna() if metric == "spearman" else values == 0.5).all()
    assert np.ptp(means.loc[STREAM[2]]) < np.ptp(means.loc[STREAM[1]]) < 4
    assert not (result.folder / "tokens_of_direction.csv").exists()
    assert "Projections on the probe's direction by layer" in result.figures


def test_projections_are_in_standard_deviations_of_the_training_rows(tmp_path):
    result = given(tmp_path, CODES > 2)
    rows = pd.read_csv(result.folder / "projections.csv")
    (u,) = SavedProbe.load(next(result.folder.glob("probes/*.1.*/**/*.json"))).unit_directions
    tested = result.predictions["line"].to_numpy(dtype=int)
    train = np.setdiff1d(np.arange(N), tested)
    for site, X in LAYERS.items():
        along = (X[tested] @ u - (X[train] @ u).mean()) / ((X[train] @ u).std() or 1)
        for is_label in (True, False):
            inside = along[(CODES > 2)[tested] == is_label]
            own = only(rows, site=site, label=is_label)
            assert own["n"].tolist() == [len(inside)]
            expected = [inside.mean(), *np.quantile(inside, (0.1, 0.9))]
            assert np.allclose(own[["mean", "low", "high"]], [expected], atol=1e-5)


def test_of_many_labels_the_most_frequent_have_a_direction_each(tmp_path):
    rows = pd.read_csv(given(tmp_path, LABELS[CODES]).folder / "projections.csv")
    names, counts = np.unique(LABELS[CODES], return_counts=True)
    frequent = names[np.argsort(-counts, kind="stable")][:MOST_DIRECTIONS]
    assert rows["direction"].unique().tolist() == frequent.tolist()
    assert (rows["direction"] == rows["label"]).all()
    selected = rows[rows["is_selected"]]
    assert (selected["mean"] > 1).all()
    assert (selected["value"] > 0.9).all()


def test_without_a_direction_there_is_nothing(tmp_path):
    mlp = QUICK | {"kinds": [{"kind": "mlp", "hidden": 2}]}
    folder = given(tmp_path, CODES > 2, probe=mlp).folder
    assert not (folder / "projections.csv").exists()


def test_cosines_are_the_effect_of_the_direction_on_the_logits():
    """By finite differences at streams whose scale a small step along the direction keeps."""
    model = load_model("mini")
    direction = RNG.normal(size=model.config.d_model)
    ids = np.arange(3, 900)
    cosines, most = token_cosines(model, ids, direction[None], -direction[None])
    assert most.tolist() == [np.abs(cosines).max()]
    with torch.inference_mode():
        step = torch.tensor(direction - direction.mean(), dtype=torch.float32)
        stream = torch.randn(len(step), generator=torch.Generator().manual_seed(0))
        stream -= stream.mean()
        stream -= (stream @ step) / (step @ step) * step
        up, down = (model.unembed(model.final_norm(stream + 0.01 * k * step)) for k in (1, -1))
        weights = model.unembedding[ids]
        effect = (up - down)[ids] - (up - down)[ids].mean()
        effect /= (weights - weights.mean(0)).norm(dim=1)
    ratio = effect.double().numpy() @ cosines[:, 0] / (cosines[:, 0] @ cosines[:, 0])
    assert np.allclose(effect / ratio, cosines[:, 0], atol=1e-3)
    assert ratio > 0


def test_tokens_are_those_at_both_ends_with_the_bound_of_permuted_labels(planted):
    sites = f"capture.sites={list(QUICK_SITES)}"
    result = planted.run(MIXED, sites, *FAST, page=False)
    rows = pd.read_csv(result.folder / "tokens_of_direction.csv", keep_default_na=False)
    assert len(rows) == 2 * N_TOKENS
    assert rows["cosine"].is_monotonic_decreasing
    assert rows["cosine"].iloc[0] > 0 > rows["cosine"].iloc[-1]
    assert Tokenizer.from_pretrained("mini").strings(rows["token_id"]) == rows["token"].tolist()
    # Labels that follow no rule have tokens like permuted ones.
    assert (rows["cosine"].abs() < rows["null_high"]).all()
    part = result.figure("Tokens of the probe's direction")
    assert "beyond it: none." in part.caption
