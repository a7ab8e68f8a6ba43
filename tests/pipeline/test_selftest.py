"""The self-test passes, and each of its lines fails on an engine that is broken there."""

from itertools import takewhile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from probekit.analysis import verification
from probekit.model.families.gpt2 import GPT2
from probekit.model.passes.inputs import TokenBatch
from probekit.pipeline import selftest
from probekit.pipeline.experiment.run import run
from probekit.pipeline.selftest import padding, parity, planted_signal, pure_noise
from probekit.probes.prober import Prober
from tests.pipeline.scale import Heard


def few():
    return pure_noise(4)


def keys(verdicts):
    return [(v.check, v.kind, v.expected) for v in verdicts]


@pytest.fixture(scope="module")
def sound():
    """The verdicts of each check on the engine as it is."""
    return {check: list(check()) for check in (parity, padding, planted_signal, few)}


def test_the_engine_passes(sound):
    for verdicts in sound.values():
        assert verdicts
        assert [verdict for verdict in verdicts if not verdict.ok] == []


def other_weights(monkeypatch):
    load = verification.load_model

    def broken(source, dtype):
        model = load(source, dtype)
        for parameter in model.parameters():
            parameter.data *= 1.001
        return model

    monkeypatch.setattr(verification, "load_model", broken)


def other_tokens(monkeypatch):
    encode = verification.Tokenizer.encode

    def broken(self, text, bos):
        return encode(self, text + ".", bos=bos)

    monkeypatch.setattr(verification.Tokenizer, "encode", broken)


def without_mask(monkeypatch):
    """Padding counts as tokens."""
    forward = GPT2.run_with_cache

    def broken(self, batch, sites):
        every = TokenBatch(batch.ids.clamp(min=0), torch.ones_like(batch.mask), batch.offsets)
        return forward(self, every, sites)

    monkeypatch.setattr(GPT2, "run_with_cache", broken)


def turned(monkeypatch):
    """Texts of a batch are in the reverse order."""
    forward = GPT2.run_with_cache

    def broken(self, batch, sites):
        logits, cache = forward(self, batch, sites)
        return logits, {site: cache[site].flip(0) for site in sites}

    monkeypatch.setattr(GPT2, "run_with_cache", broken)


def with_table(change):
    """Results of a run are changed."""

    def changed(*args, **named):
        return SimpleNamespace(table=change(run(*args, **named)))

    return lambda monkeypatch: monkeypatch.setattr(selftest, "run", changed)


def equally_good(result):
    return result.table.assign(value=0.7)


def mixed_up(monkeypatch):
    """Probes read rows in a different order from their labels."""
    site = Prober.site

    def broken(self, X, **named):
        return site(self, X[np.random.default_rng(0).permutation(len(X))], **named)

    monkeypatch.setattr(Prober, "site", broken)


def leaked(monkeypatch):
    """Rows contain their label."""
    make = selftest.noise_rows

    def broken(n_rows, seed):
        X, data = make(n_rows, seed)
        return X + 50 * (data.y == "yes")[:, None], data

    monkeypatch.setattr(selftest, "noise_rows", broken)


BROKEN = {
    parity: (other_weights, other_tokens),
    padding: (without_mask, turned),
    planted_signal: (with_table(equally_good), mixed_up),
    few: (leaked,),
}


@pytest.mark.parametrize("check", BROKEN)
def test_every_line_of_a_check_fails_on_an_engine_that_is_broken_there(sound, check):
    failed = set()
    for break_engine in BROKEN[check]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            break_engine(monkeypatch)
            failed.update(keys(v for v in check() if not v.ok))
    assert failed == set(keys(sound[check]))


@pytest.mark.parametrize("by", [-1, 1])
def test_scores_of_an_adjacent_layer_fail(monkeypatch, by):
    def shifted(result):
        parts = result.table["site"].str.extract(r"blocks\.(\d)(.*)")
        layers = parts[0].astype(int) + by
        sites = "blocks." + layers.astype(str) + parts[1]
        return result.table.assign(site=sites)[layers.between(0, 3)]

    with_table(shifted)(monkeypatch)
    of_run = takewhile(lambda one: one.check == "planted layer", planted_signal())
    bad = {v.kind for v in of_run if not v.ok}
    assert {"blocks.2.hook_attn_out", f"blocks.{2 + by}.hook_attn_out"} < bad
    assert len(bad) == 4


def test_progress_is_reported_before_each_check(monkeypatch):
    heard = Heard()
    monkeypatch.setattr(selftest, "verify_model", lambda source: pytest.fail("reached"))
    with pytest.raises(pytest.fail.Exception):
        selftest.selftest(quick=True, watcher=heard)
    assert heard.steps == [("selftest", 0, 4)]
