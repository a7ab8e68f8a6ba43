"""Verdicts are right on networks set by hand; batches of directions equal one pass for each."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.data.splits import Split
from probekit.interventions import directions as module
from probekit.interventions import edits
from probekit.interventions.causes import CauseData, CauseSettings, causal_test
from probekit.interventions.directions import DirectionSet, Responder, directions_of, label_sets
from probekit.interventions.edits import run_edited
from probekit.interventions.erasure import leace
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.verdicts import best_p_values, summary
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection
from probekit.probes.kinds.logistic import LinearProbe
from tests.interventions.hand_set import IDLE, LAST, N_NOISE, NO, READ, SIZE, YES, hand_set, texts
from tests.interventions.tiny import differences, measure_of, pairs
from tests.model.reference import TINY

PRE = SiteSelection("blocks.0.hook_resid_pre")
SETTINGS = CauseSettings(along="mean_difference", draws=99, matched=19)


@pytest.fixture(scope="module")
def network():
    """Answers by READ of position 1."""
    return hand_set()


def data_of(position, at=(1, 2), n=160, folds=1):
    batch, codes, groups = texts(n, at=at)
    answer, wrong = (torch.from_numpy(np.where(codes == code, YES, NO)) for code in (1, 0))
    half = np.unique(groups)[len(np.unique(groups)) // 2]
    train, test = np.flatnonzero(groups < half), np.flatnonzero(groups >= half)
    splits = [Split(train, test)] + ([Split(test, train)] if folds == 2 else [])
    ids = batch.ids.clone()
    for where in at:
        ids[:, where] += N_NOISE * (1 - 2 * torch.from_numpy(codes))
    return CauseData(
        batch, codes, groups, splits, AnswerMeasure(answer, wrong),
        at=torch.full((n,), position), sources=TokenBatch(ids, batch.mask, batch.offsets),
    )  # fmt: skip


DATA = data_of(1)


def answers(result):
    """The answers to whether the direction detects, steers and silences."""
    assert [one.question for one in result.verdicts] == ["detects", "steers", "silences"]
    return [one.answer for one in result.verdicts]


USED, UNUSED = ["yes", "yes", "yes"], ["yes", "no", "no"]


def given(network, data, vector):
    """Directions along a vector, then along permuted mean differences, which hold no label."""
    X = Responder(network, data.batch, PRE, data.at, data.measure).features()
    found = []
    labels = label_sets(data.codes, data.groups, 99, 0, data.splits[0].train)
    for split in data.splits:
        unit = directions_of("mean_difference", X[split.train], labels[:, split.train]).unit.copy()
        unit[0] = vector.numpy()
        found.append(DirectionSet.of_weights(unit, X[split.train]))
    return found


@pytest.mark.parametrize("folds", [1, 2])
def test_a_direction_that_is_read_and_used(network, folds):
    data = data_of(1, folds=folds)
    result = causal_test(network, data, PRE, SETTINGS, directions=given(network, data, READ))
    assert answers(result) == USED
    steers = result.verdict("steers")
    # OUT receives READ, and the answers differ by twice OUT.
    spread = given(network, data, READ)[0].spread[0]
    assert steers.effect == pytest.approx(2 * spread / SIZE, rel=0.05 if folds == 2 else 1e-3)
    assert result.verdict("silences").effect == pytest.approx(1, abs=1e-3)
    assert (result.swap.effect, result.swap.p) == (pytest.approx(1, abs=1e-3), 0.01)
    assert result.wrong_way == 0
    assert not any(one.exceeds_whole for one in result.verdicts)
    assert summary(result).startswith("The label can be decoded here, and the direction")
    assert (result.folds, result.n) == (folds, 80 * folds)


def test_pitfall_29_a_direction_that_is_decodable_and_unused(network):
    result = causal_test(network, DATA, PRE, SETTINGS, directions=given(network, DATA, IDLE))
    assert answers(result) == UNUSED
    assert result.verdict("steers").effect == pytest.approx(0, abs=1e-4)
    assert result.verdict("steers").whole > 0.5
    assert abs(result.swap.effect) < 1e-4
    assert "decodable is not used" in summary(result)
    elsewhere = data_of(2)
    for vector in (READ, IDLE):  # used at another position, if at all
        directions = given(network, elsewhere, vector)
        result = causal_test(network, elsewhere, PRE, SETTINGS, directions=directions)
        assert answers(result) == UNUSED


@pytest.mark.parametrize("method", ["probe", "mean_difference", "leace"])
def test_fitted_directions_are_used_where_the_label_is_read(network, method):
    settings = replace(SETTINGS, along=method)
    result = causal_test(network, DATA, PRE, settings)
    assert answers(result) == USED
    assert len(result.verdict("steers").null) == 99
    assert answers(causal_test(network, data_of(2), PRE, settings)) == UNUSED
    detects, *others = answers(causal_test(network, data_of(3), PRE, settings))  # no label there
    assert detects != "yes"
    assert others == ["no", "no"]


def test_over_folds_intervals_are_wider_by_the_factor(network, monkeypatch):
    def widths():
        found = [
            causal_test(network, data_of(position, folds=2), PRE, SETTINGS).verdict(question)
            for position, question in ((3, "detects"), (1, "steers"))
        ]
        return np.array([one.high - one.low for one in found])

    wide = widths()
    monkeypatch.setattr("probekit.interventions.causes.WIDER_OVER_FOLDS", 1.0)
    np.testing.assert_allclose(wide / widths(), 2**0.5, rtol=0.03)


def test_edits_of_all_positions_reach_the_one_that_is_used(network):
    data = replace(DATA, at=None, measured=torch.full((160,), LAST))
    result = causal_test(network, data, PRE, SETTINGS, directions=given(network, DATA, READ))
    assert answers(result)[1:] == ["yes", "yes"]


def test_the_best_of_several_positions_is_adjusted(network):
    results = [causal_test(network, data_of(position), PRE, SETTINGS) for position in (1, 2, 3)]
    steers, swaps = ([one.verdict("steers") for one in results], [one.swap for one in results])

    def best(verdicts):
        effects = np.array([one.effect for one in verdicts])
        return best_p_values(effects, np.stack([one.null for one in verdicts]))

    p = best(steers)
    assert p[0] == 0.01
    assert (p[1:] > 0.05).all()
    assert (best(swaps) >= [one.p for one in swaps]).all()


def same_direction(vector):
    """Directions on permuted labels that all are the observed one."""
    unit = np.tile(vector.numpy(), (100, 1))
    return [DirectionSet(unit, unit, np.ones(100), np.zeros(len(vector)))]


def test_use_is_undecided_without_other_directions_or_a_difference_between_the_classes(network):
    result = causal_test(hand_set(copies=False), DATA, PRE, SETTINGS)
    assert result.verdict("silences").answer == "undecided"
    assert "does not differ between the classes" in summary(result)
    # A site with a single direction leaves nothing to compare it with.
    result = causal_test(network, DATA, PRE, SETTINGS, directions=same_direction(READ))
    assert result.verdict("steers").p == result.verdict("silences").p == 1
    assert result.verdict("steers").answer == "undecided"


Z = SiteSelection("blocks.0.attn.hook_z", head=0)


def test_a_direction_of_a_head_in_the_kernel_of_the_output_matrix_is_flagged(network):
    result = causal_test(network, data_of(LAST), Z, SETTINGS)
    assert answers(result) == USED
    assert result.kernel_share == pytest.approx(0, abs=1e-6)
    network = hand_set()
    network.h[0].attn.c_proj.weight -= torch.outer(READ, READ) + torch.outer(IDLE, IDLE)
    network.h[0].attn.c_attn.weight.view(3, *IDLE.shape, *IDLE.shape)[2] += torch.outer(IDLE, IDLE)
    result = causal_test(network, data_of(LAST), Z, SETTINGS, directions=same_direction(IDLE))
    assert result.kernel_share == pytest.approx(1, abs=1e-5)
    assert answers(result) == UNUSED
    assert "kernel" in summary(result)


def test_the_dose_response_has_its_controls_and_the_loss_on_other_texts(network):
    result = causal_test(network, replace(DATA, other=DATA.batch[torch.arange(10)]), PRE, SETTINGS)
    effects = [dose["effect"] for dose in result.doses]
    assert effects == sorted(effects)
    for dose in result.doses:
        assert dose["null_low"] <= dose["null_high"]
        assert dose["matched_low"] <= dose["matched_high"]
        assert dose["low"] <= dose["effect"] <= dose["high"]
    losses = [dose for dose in result.doses if "other_loss" in dose]
    assert [dose["by"] for dose in losses] == [-2, 2]
    assert all(one["other_low"] <= one["other_loss"] <= one["other_high"] for one in losses)


@pytest.mark.parametrize(
    "call",
    [
        "replace(DATA, codes=DATA.codes[1:])",
        "replace(DATA, measure=AnswerMeasure(DATA.measure.answer, DATA.measure.wrong, 'kl'))",
        "replace(DATA, splits=[*DATA.splits, *DATA.splits])",
        "causal_test(network, DATA, SiteSelection('blocks.0.attn.hook_q'), SETTINGS)",
        "causal_test(network, replace(DATA, codes=0 * DATA.codes), PRE, SETTINGS)",
        "directions_of('leece', np.eye(4), np.tile([0, 1], (1, 2)))",
        "directions_of('probe', np.eye(4), np.tile([0, 2], (1, 2)))",
    ],
)
def test_data_that_do_not_fit_are_refused(network, call, refused):
    refused(eval, call, globals() | {"network": network})


def sample(n=200, seed=0):
    generator = np.random.default_rng(seed)
    codes = generator.integers(2, size=n)
    mixing = generator.normal(size=(6, 6))
    return generator.normal(size=(n, 6)) @ mixing + 2 * codes[:, None] * np.eye(6)[2], codes


def test_the_probe_direction_is_that_of_a_single_fit():
    X, codes = sample()
    labels = label_sets(codes, np.arange(200), draws=4, seed=0)
    found = directions_of("probe", X, labels, C=0.1)
    for own, unit in zip(labels, found.unit, strict=True):
        weights = LinearProbe(C=0.1).fit(X, own).coef_[0]
        np.testing.assert_allclose(unit, weights / np.linalg.norm(weights), atol=1e-4)
    np.testing.assert_allclose(found.spread, (X @ found.unit.T).std(axis=0))


def test_a_feature_that_is_rounding_of_another_one_is_no_direction():
    codes = np.arange(40) % 2
    X = np.random.default_rng(0).normal(size=(40, 3))
    X[:, 0] += 2 * codes
    X[:, 2] = 1e-9 * codes  # separates the classes, as any feature that is standardised
    found = directions_of("probe", X, codes[None])
    assert found.unit[0, 2] == 0
    assert found.spread[0] > 0.1


def test_leace_of_one_direction_erases_like_the_eraser():
    X, codes = sample()
    found = directions_of("leace", X, codes[None])
    erased = X - np.outer((X - found.mean) @ found.reading[0], found.unit[0])
    np.testing.assert_allclose(erased, leace(X, codes)(X), atol=1e-8)


def test_whole_groups_and_only_the_given_rows_exchange_labels():
    codes, rows = np.arange(40) % 2, np.arange(40)
    sets = label_sets(codes, rows, draws=20, seed=0, rows=rows[:20])
    assert (sets[:, 20:] == codes[20:]).all()
    assert (sets[0] == codes).all()
    assert (sets[1:, :20] != codes[:20]).any(axis=1).all()
    groups = np.repeat(np.arange(10), 4)
    by_group = label_sets(groups % 2, groups, draws=20, seed=0).reshape(21, 10, 4)
    assert (by_group == by_group[:, :, :1]).all()


def test_matched_directions_have_the_covariance_of_the_features():
    X = np.random.default_rng(0).normal(size=(2000, 3)) * [10, 3, 0.1]
    found = module.matched_directions(X, draws=4000, seed=1)
    np.testing.assert_allclose(np.linalg.norm(found.unit, axis=1), 1)
    assert np.median(np.abs(found.unit[:, 1] / found.unit[:, 0])) == pytest.approx(0.3, rel=0.1)


def test_doses_depend_on_all_directions_alike():
    X, codes = sample()
    found = directions_of("probe", X, label_sets(codes, np.arange(200), 9, 0))
    turned = DirectionSet(found.unit[::-1], found.reading[::-1], found.spread[::-1], found.mean)

    def doses(directions, X):
        return module.allowed_doses(module.dose_limit([directions], [X]), (-4, -2, -1, 1, 2, 4))

    assert doses(found, X) == doses(turned, X)
    assert doses(found, 0 * X + found.mean) == (-1, 1)


def test_a_class_that_is_missing_has_no_direction():
    X, codes = sample(20)
    labels = np.stack([codes, np.ones(20, dtype=int)])
    for along in ("probe", "mean_difference", "leace"):
        found = directions_of(along, X, labels)
        assert found.unit[0].any()
        assert not found.unit[1].any()


AT = torch.tensor([7, 6, 2, 5])
SITES = [
    SiteSelection("blocks.1.hook_resid_post"),
    SiteSelection("blocks.3.hook_resid_mid"),
    SiteSelection("blocks.2.attn.hook_z", head=1),
    SiteSelection("blocks.0.mlp.hook_post"),
]


BATCH, SOURCES = pairs(lengths=[5, 3, 8, 4])


def responder_of(model, site, at):
    return Responder(model, BATCH, site, at, measure_of(n=4), sources=SOURCES)


def directions_at(width, n=3):
    X = np.random.default_rng(0).normal(size=(50, width)) + 1
    found = directions_of("leace", X, label_sets(np.arange(50) % 2, np.arange(50), n - 1, 0))
    assert not np.allclose(found.unit, found.reading)
    return found


def whole_pass(responder, tap):
    logits = run_edited(responder.model, responder.batch, [(responder.selection, tap)])
    return differences(logits, responder.batch, responder.measure)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("at", [AT, None])
@pytest.mark.parametrize("site", SITES, ids=lambda site: site.text)
def test_every_direction_equals_a_whole_pass(model, site, at, monkeypatch):
    monkeypatch.setattr(module, "_CHANGE_BYTES", 4000)  # several blocks
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", 3)
    responder = responder_of(model, site, at)
    directions = directions_at(responder.features().shape[1])
    steered, erased = responder.steered(directions, (-2, 1)), responder.erased(directions)
    swapped = responder.swapped(directions)
    _, cache = model.run_with_cache(SOURCES, [site.site])
    other = cache[site.site]
    other = (other if site.head is None else other[:, :, site.head]).double()
    mean = torch.from_numpy(directions.mean)
    for n in range(3):
        unit, reading = (torch.from_numpy(x[n]) for x in (directions.unit, directions.reading))
        for place, dose in enumerate((-2, 1)):
            tap = edits.add(dose * directions.spread[n] * unit, at)
            close(steered[:, n, place], whole_pass(responder, tap))

        def moved(x, given, r=reading, u=unit):
            return x + ((given - x) @ r.to(x))[..., None] * u.to(x)

        for found, values in ((erased, mean), (swapped, other)):
            close(found[:, n], whole_pass(responder, edits.Edit(moved, values, at)))
    close(responder.without(directions.mean), whole_pass(responder, edits.replace(mean, at)))
    close(responder.exchanged(), whole_pass(responder, edits.replace(other, at)))


def test_unedited_texts_and_a_direction_of_zeros_have_the_measure_of_a_plain_pass(model):
    responder = responder_of(model, SITES[0], AT)
    for found, batch in ((responder.base(), BATCH), (responder.of_sources(), SOURCES)):
        close(found, differences(model(batch), batch, responder.measure))
    zero = DirectionSet.of_weights(np.zeros((1, TINY.n_embd)), np.ones((2, TINY.n_embd)))
    close(responder.erased(zero)[:, 0], responder.base())
    close(responder.steered(zero, (4,))[:, 0, 0], responder.base())


def test_features_are_those_of_the_positions_that_are_read(model):
    _, cache = model.run_with_cache(BATCH, [SITES[0].site])
    expected, read = cache[SITES[0].site], torch.tensor([6, 7, 1, 4])
    everywhere, rows = responder_of(model, SITES[0], None), torch.arange(4)
    close(everywhere.features(), expected[:, -1].numpy())
    close(responder_of(model, SITES[0], AT).features(), expected[rows, AT].numpy())
    there = replace(everywhere, read=read)
    close(there.features(), expected[rows, read].numpy())
    directions = directions_at(TINY.n_embd)
    np.testing.assert_array_equal(there.erased(directions), everywhere.erased(directions))
