"""Batches of directions equal one whole pass for each direction."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.interventions import directions as module
from probekit.interventions import edits
from probekit.interventions.directions import DirectionSet, Responder, directions_of, label_sets
from probekit.interventions.edits import run_edited
from probekit.interventions.measures import AnswerMeasure
from probekit.model.families.gpt2 import GPT2
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection
from tests.model.reference import TINY, pad, ragged

LENGTHS = [5, 3, 8, 4]
AT = torch.tensor([7, 6, 2, 5])
SITES = [
    SiteSelection("blocks.1.hook_resid_post"),
    SiteSelection("blocks.3.hook_resid_mid"),
    SiteSelection("blocks.2.attn.hook_z", head=1),
    SiteSelection("blocks.0.mlp.hook_post"),
]


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=3).requires_grad_(False)


def batch_of(shift=0):
    ids, mask = pad([(t + shift) % 97 for t in ragged(TINY, LENGTHS)], "left", filler=7)
    return TokenBatch(ids, mask, torch.zeros(*ids.shape, 2))


def responder_of(model, site, at):
    numbers = torch.arange(4)
    return Responder(model, batch_of(), site, at, AnswerMeasure(numbers + 3, numbers + 40))


def directions_at(width, n=3):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, width)) + 1
    found = directions_of("leace", X, label_sets(np.arange(50) % 2, np.arange(50), n - 1, 0))
    assert not np.allclose(found.unit, found.reading)
    return found


def width_of(model, site):
    return responder_of(model, site, AT).features().shape[1]


def whole_pass(responder, tap):
    logits = run_edited(responder.model, responder.batch, [(responder.selection, tap)])[:, -1]
    rows, measure = torch.arange(4), responder.measure
    return (logits[rows, measure.answer] - logits[rows, measure.wrong]).double().numpy()


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("at", [AT, None])
@pytest.mark.parametrize("site", SITES, ids=lambda site: site.text)
def test_every_direction_equals_a_whole_pass(model, site, at, monkeypatch):
    monkeypatch.setattr(module, "_CHANGE_BYTES", 4000)  # several blocks
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", 3)
    responder, sources = responder_of(model, site, at), batch_of(11)
    directions = directions_at(width_of(model, site))
    steered, erased = responder.steered(directions, (-2, 1)), responder.erased(directions)
    swapped = responder.swapped(directions, sources)
    _, cache = model.run_with_cache(sources, [site.site])
    other = cache[site.site]
    other = (other if site.head is None else other[:, :, site.head]).double()
    mean = torch.from_numpy(directions.mean)
    for n in range(3):
        unit, reading = (torch.from_numpy(x[n]) for x in (directions.unit, directions.reading))
        for place, dose in enumerate((-2, 1)):
            tap = edits.add(dose * directions.spread[n] * unit, at)
            close(steered[:, n, place], whole_pass(responder, tap))
        tap = edits.Edit(
            lambda x, given, r=reading, u=unit: x - ((x - given) @ r.to(x))[..., None] * u.to(x),
            mean, at,
        )  # fmt: skip
        close(erased[:, n], whole_pass(responder, tap))
        tap = edits.Edit(
            lambda x, given, r=reading, u=unit: x + ((given - x) @ r.to(x))[..., None] * u.to(x),
            other, at,
        )  # fmt: skip
        close(swapped[:, n], whole_pass(responder, tap))
    close(responder.without(directions.mean), whole_pass(responder, edits.replace(mean, at)))
    close(responder.exchanged(sources), whole_pass(responder, edits.replace(other, at)))


def test_base_and_sources_are_plain_passes(model):
    responder, sources = responder_of(model, SITES[0], AT), batch_of(11)
    rows, measure = torch.arange(4), responder.measure
    for found, batch in ((responder.base(), batch_of()), (responder.of_sources(sources), sources)):
        logits = model(batch)[:, -1]
        close(found, (logits[rows, measure.answer] - logits[rows, measure.wrong]).double().numpy())


def test_a_direction_of_zeros_has_no_effect(model):
    responder = responder_of(model, SITES[0], AT)
    zero = DirectionSet.of_weights(np.zeros((1, TINY.n_embd)), np.ones((2, TINY.n_embd)))
    close(responder.erased(zero)[:, 0], responder.base())
    close(responder.steered(zero, (4,))[:, 0, 0], responder.base())


def test_features_are_those_of_the_positions(model):
    _, cache = model.run_with_cache(batch_of(), [SITES[0].site])
    expected = cache[SITES[0].site]
    close(responder_of(model, SITES[0], AT).features(), expected[torch.arange(4), AT].numpy())
    close(responder_of(model, SITES[0], None).features(), expected[:, -1].numpy())


def test_features_can_be_those_of_another_position_than_the_edit(model):
    site, read = SITES[0], torch.tensor([6, 7, 1, 4])
    everywhere = replace(responder_of(model, site, None), read=read)
    np.testing.assert_array_equal(everywhere.features(), responder_of(model, site, read).features())
    directions = directions_at(width_of(model, site))
    without = responder_of(model, site, None)
    np.testing.assert_array_equal(everywhere.erased(directions), without.erased(directions))
