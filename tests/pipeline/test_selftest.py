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


def replaced(monkeypatch, owner, name, change):
    """Replace a function of the engine by another one, which is given the original first."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **named: change(original, *args, **named))


def other_weights(load, source, dtype):
    model = load(source, dtype)
    for parameter in model.parameters():
        parameter.data *= 1.001
    return model


def without_mask(forward, model, batch, sites):
    """Padding counts as tokens."""
    every = TokenBatch(batch.ids.clamp(min=0), torch.ones_like(batch.mask), batch.offsets)
    return forward(model, every, sites)


def turned(forward, model, batch, sites):
    """Texts of a batch are in the reverse order."""
    logits, cache = forward(model, batch, sites)
    return logits, {site: cache[site].flip(0) for site in sites}


def mixed_up(site, prober, X, **named):
    """Probes read rows in a different order from their labels."""
    return site(prober, X[np.random.default_rng(0).permutation(len(X))], **named)


def leaked(make, n_rows, seed):
    """Rows contain their label."""
    X, data = make(n_rows, seed)
    return X + 50 * (data.y == "yes")[:, None], data


def other_tokens(encode, tokenizer, text, bos):
    return encode(tokenizer, text + ".", bos=bos)


def equally_good(run, *args, **named):
    """All sites of a run have one score."""
    return SimpleNamespace(table=run(*args, **named).table.assign(value=0.7))


BROKEN = [
    (parity, verification, "load_model", other_weights),
    (parity, verification.Tokenizer, "encode", other_tokens),
    (padding, GPT2, "run_with_cache", without_mask),
    (padding, GPT2, "run_with_cache", turned),
    (planted_signal, selftest, "run", equally_good),
    (planted_signal, Prober, "site", mixed_up),
    (few, selftest, "noise_rows", leaked),
]


@pytest.mark.parametrize("check", [parity, padding, planted_signal, few])
def test_every_line_of_a_check_fails_on_an_engine_that_is_broken_there(sound, check):
    failed = set()
    for _, *broken in (row for row in BROKEN if row[0] is check):
        with pytest.MonkeyPatch.context() as monkeypatch:
            replaced(monkeypatch, *broken)
            failed.update(keys(v for v in check() if not v.ok))
    assert failed == set(keys(sound[check]))


@pytest.mark.parametrize("by", [-1, 1])
def test_scores_of_an_adjacent_layer_fail(monkeypatch, by):
    def shifted(run, *args, **named):
        table = run(*args, **named).table
        parts = table["site"].str.extract(r"blocks\.(\d)(.*)")
        layers = parts[0].astype(int) + by
        sites = "blocks." + layers.astype(str) + parts[1]
        return SimpleNamespace(table=table.assign(site=sites)[layers.between(0, 3)])

    replaced(monkeypatch, selftest, "run", shifted)
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
