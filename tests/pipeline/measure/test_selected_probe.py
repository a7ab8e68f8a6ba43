"""Files of the selected probe are written even if the rows hardly differ."""

from types import SimpleNamespace

import pandas as pd
import pytest

from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment.run import run
from probekit.pipeline.measure.selected_probe import NULL_DRAWS
from tests.pipeline.planted import YAML, write_rows


@pytest.mark.parametrize(
    ("index", "methods"),
    [(0, set()), (1, {"PCA"}), (2, {"PCA"})],
    ids=["all rows are one word", "a word for each label", "the same words under each label"],
)
def test_projections_are_omitted_if_labels_cannot_be_separated(tmp_path, index, methods):
    write_rows(tmp_path / "rows.csv")
    (tmp_path / "planted.yaml").write_text(YAML)
    place = f"tokens.position={{at: index, index: {index}}}"
    sites = "capture.sites=[hook_embed]"
    overrides = (place, sites, "probe.control_draws=0", "model.random_weights=false")
    experiment = load_experiment(tmp_path / "planted.yaml", overrides)
    folder = run(experiment, out=tmp_path / "runs", cache_root=tmp_path / "cache").folder
    path = folder / "scatter.csv"
    found = set(pd.read_csv(path)["method"]) if path.exists() else set()
    assert found == methods


def test_cosines_of_sites_have_a_null_distribution_of_permuted_labels(tmp_path):
    write_rows(tmp_path / "rows.csv")
    (tmp_path / "planted.yaml").write_text(YAML)
    sites = "capture.sites=[blocks.2.hook_resid_post, blocks.3.hook_resid_post]"
    overrides = (sites, "probe.control_draws=0", "model.random_weights=false")
    experiment = load_experiment(tmp_path / "planted.yaml", overrides)
    steps = []
    watcher = SimpleNamespace(progress=lambda *step: steps.append(step), tell=print)
    kept = {"out": tmp_path / "runs", "cache_root": tmp_path / "cache"}
    folder = run(experiment, watcher=watcher, **kept).folder
    assert steps[-2:] == [("probes of permuted labels", n, 2) for n in (1, 2)]
    cosines = pd.read_csv(folder / "cosines.csv")
    assert cosines["n_null"].tolist() == [NULL_DRAWS, 2 * NULL_DRAWS, 2 * NULL_DRAWS, NULL_DRAWS]
    assert cosines["null_high"].between(0.02, 0.98).all()
    assert cosines["null_high"][1] == cosines["null_high"][2]
