"""Fixtures: runs of the planted experiment, and a saved probe of the bundled data."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from probekit.activations.capture import capture
from probekit.activations.store import ActivationStore
from probekit.experiment.loader import load_experiment
from probekit.experiment.schema import Experiment
from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.experiment.prepare import TextRows, prepare
from probekit.pipeline.experiment.source import captured_facts
from probekit.pipeline.measure.probing import save_probe
from probekit.probes.kinds.logistic import LinearProbe
from probekit.probes.saved_probe import SavedProbe
from tests.pipeline.planted import Planted

SITES = ("blocks.1.attn.hook_z[head=3]", "blocks.2.hook_resid_post", "blocks.2.mlp.hook_post")


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    """The planted experiment, whose runs are made once; tests copy what they change."""
    shared = Planted(tmp_path_factory.mktemp("planted"))
    shared.run = cache(shared.run)
    return shared


@pytest.fixture
def own(planted, tmp_path):
    """The planted experiment in a folder of the test, with the shared activations."""
    return Planted(tmp_path, planted.cache)


@dataclass(frozen=True)
class Kept:
    """A capture of several sites, with the data that its probes are fitted on."""

    folder: Path
    experiment: Experiment
    prepared: TextRows
    store: ActivationStore

    def rows(self, *sites):
        """Return the concatenated rows of sites from the store."""
        parts = []
        for site in sites:
            name, _, head = site.partition("[head=")
            values = self.store.read(name)
            values = values[:, int(head[:-1])] if head else values
            parts.append(values.reshape(len(values), -1))
        return np.concatenate(parts, axis=1)

    def keep(self, *sites, view="raw", change=lambda rows: rows):
        """Fit and save a probe; return it with the estimator and its rows."""
        X = change(self.rows(*sites))
        train = self.prepared.train
        probe = LinearProbe(C=0.01).fit(X[train], self.prepared.labels[train])
        layers = ((probe.coef_, probe.intercept_),)
        facts = {
            **captured_facts(self.experiment, self.store.identity),
            "kind": "logistic",
            "scores_are_logits": True,
            "hyperparameters": {"C": probe.C_},
            "sites": sites,
            "view": view,
            "seed": self.experiment.probe.seed,
        }
        path = self.folder / f"{'+'.join(sites)}.{view}"
        path = save_probe(path, layers, tuple(probe.classes_), facts, measured=[])
        return SavedProbe.load(path), probe, X


@pytest.fixture(scope="session")
def make_kept(tmp_path_factory, repository):
    """A function that captures 240 bundled examples, with some settings changed."""

    def make(*overrides):
        folder = tmp_path_factory.mktemp("kept")
        lines = (repository / "data" / "subject_number.csv").read_text().splitlines()
        rows = lines[:1] + lines[1::18]
        (folder / "subject_number.csv").write_text("\n".join(rows) + "\n")
        experiment = load_experiment(
            repository / "experiments" / "quickstart.yaml",
            (f"data.root={folder}", "data.card=null", f"capture.sites={list(SITES)}", *overrides),
        )
        prepared = prepare(experiment)
        captured = capture(
            GPT2.from_pretrained("mini", getattr(torch, experiment.model.dtype)),
            prepared.tokenizer.digest,
            prepared.ids,
            prepared.plan,
            prepared.sites,
            root=folder / "cache",
            dtype=experiment.capture.dtype,
        )
        return Kept(folder, experiment, prepared, captured.store)

    return make


@pytest.fixture(scope="session")
def kept(make_kept):
    """The capture of the bundled data at the last token."""
    return make_kept()


@pytest.fixture(scope="session")
def number_probe(kept):
    """The probe of subject number at the residual stream."""
    return kept.keep("blocks.2.hook_resid_post")[0]
