"""Features of probes equal the activations of the model, and each site is read once."""

from types import SimpleNamespace

import numpy as np
import pytest

from probekit.experiment.loader import load_experiment
from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.engines import network as network_module
from probekit.pipeline.engines.engine import TASK
from probekit.pipeline.engines.network import CapturedRows
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.setup.design import normalized
from probekit.pipeline.setup.texts import find_features
from tests.activations.captures import capture
from tests.model.gpt2_sites import select
from tests.pipeline.texts import text_of

YAML = text_of("features.yaml")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    nouns = ("key", "dog", "house", "old house", "river", "hat", "small hat", "road")
    rows = [f"The {noun} {verb},{verb}" for noun in nouns for verb in ("was", "is")]
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows]))
    (folder / "rows.yaml").write_text(YAML)
    return lambda *overrides: load_experiment(folder / "rows.yaml", overrides)


@pytest.fixture(scope="module")
def store(experiment, tmp_path_factory):
    model, root = GPT2.from_pretrained("mini"), tmp_path_factory.mktemp("cache")
    texts = prepare(experiment()).texts
    return capture(model, "", texts.ids, texts.plan, texts.sites, root=root).store


@pytest.fixture
def source(store, experiment):
    """A source that reads the rows of a store."""
    return CapturedRows(experiment(), {TASK: store})


RESID = "capture.sites=[blocks.1.hook_resid_pre]"


def chosen(*patterns):
    return select(patterns, 6, {"n_heads": 4, "d_mlp": 1024})


def test_normalized_view_equals_the_next_layer_norm(store, experiment):
    source = CapturedRows(experiment("capture.view=normalized", RESID), {TASK: store})
    seen = source.block(*chosen("blocks.1.hook_resid_pre"))
    computed = store.read("blocks.1.ln1.hook_normalized")
    np.testing.assert_allclose(seen, computed, rtol=1e-4, atol=2e-5)
    assert abs(seen - store.read("blocks.1.hook_resid_pre")).max() > 0.1


def test_epsilon_matters_for_rows_of_low_variance():
    row = np.array([[1e-3, -1e-3]])
    np.testing.assert_allclose(normalized(row, 1e-5), row / np.sqrt(1.1e-5), rtol=1e-5)


def test_heads_are_slices_and_are_read_once(source, store, monkeypatch):
    whole = store.read("blocks.1.attn.hook_z")
    read = []
    monkeypatch.setattr(store, "read", lambda site, rows: read.append(site) or whole[rows])
    for selection in chosen("blocks.1.attn.hook_z[head=*]"):
        assert np.array_equal(source.block(selection), whole[:, selection.head])
    assert read == ["blocks.1.attn.hook_z"]


def test_only_rows_of_the_position_are_read(store):
    tokens, capture = SimpleNamespace(positions=(0, -1)), SimpleNamespace(view="raw")
    source = CapturedRows(SimpleNamespace(tokens=tokens, capture=capture), {TASK: store})
    for position in range(2):
        seen = source.block(*chosen("blocks.1.hook_resid_pre"), position)
        assert np.array_equal(seen, store.read("blocks.1.hook_resid_pre")[position::2])


def test_concatenated_features_are_in_forward_order(experiment, source, store):
    lists = "capture.concatenate=[['blocks.1.attn.hook_z[head=3]', blocks.1.hook_resid_pre]]"
    *_, joined = find_features(experiment(lists), GPT2.from_pretrained("mini").config)
    assert joined.text == "blocks.1.hook_resid_pre + blocks.1.attn.hook_z[head=3]"
    resid, z = store.read("blocks.1.hook_resid_pre"), store.read("blocks.1.attn.hook_z")
    assert np.array_equal(source.block(joined), np.hstack([resid, z[:, 3]]))


@pytest.mark.parametrize("view", ["raw", "normalized"])
def test_large_sites_are_read_by_blocks(monkeypatch, experiment, store, view):
    lists = "capture.concatenate=[['blocks.1.attn.hook_z[head=3]', blocks.1.hook_resid_pre]]"
    settings = () if view == "raw" else (f"capture.view={view}", RESID)
    whole = CapturedRows(experiment(*settings), {TASK: store})
    sites = [*chosen("blocks.1.hook_resid_pre")]
    if view == "raw":
        sites += find_features(experiment(lists), GPT2.from_pretrained("mini").config)[-1:]
        sites += chosen("blocks.1.attn.hook_z[head=2]")
    expected = [whole.block(site)[:] for site in sites]
    monkeypatch.setattr(network_module, "LOADED_BYTES", 0)
    for site, values in zip(sites, expected, strict=True):
        rows = whole.block(site)
        assert (rows.is_mapped, rows.dtype) == (True, values.dtype)
        numbers = np.array([3, 0, 1, 2])
        np.testing.assert_array_equal(rows[numbers], values[numbers])
        np.testing.assert_array_equal(rows[1:3], values[1:3])


def test_invalid_sites_are_reported_with_their_line(tmp_path, refused):
    (tmp_path / "rows.csv").write_text("text,label\nThe key,a\nThe dog,b\n")
    pattern = "blocks.*.attn.hook_pattern"
    lists = ("\n    - [hook_embed]", "\n    - [hook_embed, hook_x]", f" [['{pattern}']]")
    for text in ("view: normalized", *(f"concatenate:{one}" for one in lists)):
        (tmp_path / "rows.yaml").write_text(f"{YAML}  {text}\n")
        refused(lambda: prepare(load_experiment(tmp_path / "rows.yaml")))
