"""Every verdict is right on networks whose weights are set by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.data.splits import Split
from probekit.interventions.causes import CauseData, CauseSettings, causes_of
from probekit.interventions.directions import DirectionSet, Responder, directions_of, label_sets
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.verdicts import best_p_values, summary
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection
from tests.interventions.hand_set import IDLE, LAST, N_NOISE, NO, READ, SIZE, YES, hand_set, texts

PRE = SiteSelection("blocks.0.hook_resid_pre")
SETTINGS = CauseSettings(along="mean_difference", draws=99, matched=19)


@pytest.fixture(scope="module")
def model():
    """Answers by READ of position 1."""
    return hand_set()


def data_of(position, at=(1, 2), n=160, flipped=False, folds=1):
    batch, codes, groups = texts(n, at=at)
    answer, wrong = (torch.from_numpy(np.where(codes == code, YES, NO)) for code in (1, 0))
    half = np.unique(groups)[len(np.unique(groups)) // 2]
    train, test = np.flatnonzero(groups < half), np.flatnonzero(groups >= half)
    splits = [Split(train, test)] + ([Split(test, train)] if folds == 2 else [])
    ids = batch.ids.clone()
    for where in at:
        ids[:, where] += N_NOISE * (1 - 2 * torch.from_numpy(codes))
    sources = TokenBatch(ids, batch.mask, batch.offsets)
    return CauseData(
        batch, codes, groups, splits, AnswerMeasure(answer, wrong),
        at=torch.full((n,), position), sources=sources,
    )  # fmt: skip


DATA = data_of(1)


def answers(result):
    """The answers to whether the direction detects, steers and silences."""
    assert [one.question for one in result.verdicts] == ["detects", "steers", "silences"]
    return [one.answer for one in result.verdicts]


USED, UNUSED = ["yes", "yes", "yes"], ["yes", "no", "no"]


def given(model, data, vector):
    """Directions along a vector, then along permuted mean differences, which hold no label."""
    X = Responder(model, data.batch, PRE, data.at, data.measure).features()
    found = []
    labels = label_sets(data.codes, data.groups, 99, 0, data.splits[0].train)
    for split in data.splits:
        own = directions_of("mean_difference", X[split.train], labels[:, split.train])
        unit = own.unit.copy()
        unit[0] = vector.numpy()
        found.append(DirectionSet.of_weights(unit, X[split.train]))
    return found


@pytest.mark.parametrize("folds", [1, 2])
def test_a_direction_that_is_read_and_used(model, folds):
    data = data_of(1, folds=folds)
    result = causes_of(model, data, PRE, SETTINGS, directions=given(model, data, READ))
    assert answers(result) == USED
    steers = result.verdict("steers")
    # OUT receives READ, and the answers differ by twice OUT.
    spread = given(model, data, READ)[0].spread[0]
    assert steers.effect == pytest.approx(2 * spread / SIZE, rel=0.05 if folds == 2 else 1e-3)
    assert result.verdict("silences").effect == pytest.approx(1, abs=1e-3)
    assert result.swap.effect == pytest.approx(1, abs=1e-3)
    assert result.swap.p == 0.01
    assert result.wrong_way == 0
    assert not any(one.exceeds_whole for one in result.verdicts)
    assert summary(result).startswith("The label can be decoded here, and the direction")
    assert result.folds == folds
    assert result.n == 80 * folds


def test_pitfall_29_a_direction_that_is_decodable_and_unused(model):
    result = causes_of(model, DATA, PRE, SETTINGS, directions=given(model, DATA, IDLE))
    assert answers(result) == UNUSED
    assert result.verdict("steers").effect == pytest.approx(0, abs=1e-4)
    assert result.verdict("steers").whole > 0.5
    assert abs(result.swap.effect) < 1e-4
    assert "decodable is not used" in summary(result)
    elsewhere = data_of(2)
    for vector in (READ, IDLE):  # used at another position, if at all
        directions = given(model, elsewhere, vector)
        result = causes_of(model, elsewhere, PRE, SETTINGS, directions=directions)
        assert answers(result) == UNUSED


@pytest.mark.parametrize("method", ["probe", "mean_difference", "leace"])
def test_fitted_directions_are_used_where_the_label_is_read(model, method):
    settings = replace(SETTINGS, along=method)
    result = causes_of(model, DATA, PRE, settings)
    assert answers(result) == USED
    assert len(result.null["steers"]) == 99
    elsewhere = causes_of(model, data_of(2), PRE, settings)
    assert answers(elsewhere) == UNUSED


def test_a_position_without_the_label_is_not_detected(model):
    result = causes_of(model, data_of(3), PRE, SETTINGS)
    detects, *others = answers(result)
    assert detects != "yes"
    assert others == ["no", "no"]


def test_over_folds_intervals_are_wider_by_the_factor(model, monkeypatch):
    def widths():
        found = [
            causes_of(model, data_of(position, folds=2), PRE, SETTINGS).verdict(question)
            for position, question in ((3, "detects"), (1, "steers"))
        ]
        return np.array([one.high - one.low for one in found])

    wide = widths()
    monkeypatch.setattr("probekit.interventions.causes.WIDER_OVER_FOLDS", 1.0)
    np.testing.assert_allclose(wide / widths(), 2**0.5, rtol=0.03)


def test_edits_of_all_positions_reach_the_one_that_is_used(model):
    data = replace(DATA, at=None, measured=torch.full((160,), LAST))
    directions = given(model, DATA, READ)
    result = causes_of(model, data, PRE, SETTINGS, directions=directions)
    assert answers(result)[1:] == ["yes", "yes"]


def test_the_best_of_several_positions_is_adjusted(model):
    results = [causes_of(model, data_of(position), PRE, SETTINGS) for position in (1, 2, 3)]
    null = {name: np.stack([one.null[name] for one in results]) for name in ("steers", "swap")}
    p = best_p_values(np.array([one.verdict("steers").effect for one in results]), null["steers"])
    assert p[0] == 0.01
    assert (p[1:] > 0.05).all()
    p = best_p_values(np.array([one.swap.effect for one in results]), null["swap"])
    assert (p >= [one.swap.p for one in results]).all()


def test_the_effect_of_a_head_and_its_kernel(model):
    z = SiteSelection("blocks.0.attn.hook_z", head=0)
    result = causes_of(model, data_of(LAST), z, SETTINGS)
    assert answers(result) == USED
    assert result.kernel_share == pytest.approx(0, abs=1e-6)


def same_direction(vector):
    """Directions on permuted labels that all are the observed one."""
    unit = np.tile(vector.numpy(), (100, 1))
    return [DirectionSet(unit, unit, np.ones(100), np.zeros(len(vector)))]


def test_controls_that_are_the_same_direction_refuse(model):
    """A site with a single direction leaves nothing to compare it with."""
    result = causes_of(model, DATA, PRE, SETTINGS, directions=same_direction(READ))
    assert result.verdict("steers").p == result.verdict("silences").p == 1
    assert result.verdict("steers").answer == "undecided"


def test_a_direction_in_the_kernel_of_the_output_matrix_is_flagged():
    model = hand_set()
    model.h[0].attn.c_proj.weight -= torch.outer(READ, READ) + torch.outer(IDLE, IDLE)
    model.h[0].attn.c_attn.weight.view(3, *IDLE.shape, *IDLE.shape)[2] += torch.outer(IDLE, IDLE)
    z = SiteSelection("blocks.0.attn.hook_z", head=0)
    result = causes_of(model, data_of(LAST), z, SETTINGS, directions=same_direction(IDLE))
    assert result.kernel_share == pytest.approx(1, abs=1e-5)
    assert answers(result) == UNUSED
    assert "kernel" in summary(result)


def test_the_dose_response_has_its_controls_and_the_loss_on_other_texts(model):
    data = replace(DATA, other=DATA.batch[torch.arange(10)])
    result = causes_of(model, data, PRE, SETTINGS)
    effects = [dose["effect"] for dose in result.doses]
    assert effects == sorted(effects)
    for dose in result.doses:
        assert dose["null_low"] <= dose["null_high"]
        assert dose["matched_low"] <= dose["matched_high"]
        assert dose["low"] <= dose["effect"] <= dose["high"]
    losses = [dose for dose in result.doses if "other_loss" in dose]
    assert [dose["by"] for dose in losses] == [-2, 2]
    assert all(one["other_low"] <= one["other_loss"] <= one["other_high"] for one in losses)


def test_without_a_difference_between_the_classes_silencing_is_undecided():
    model = hand_set(copies=False)
    result = causes_of(model, DATA, PRE, SETTINGS)
    verdict = result.verdict("silences")
    assert verdict.answer == "undecided"
    for text in (verdict.reason, summary(result)):
        assert "does not differ between the classes" in text


@pytest.mark.parametrize(
    "call",
    [
        "replace(DATA, codes=DATA.codes[1:])",
        "replace(DATA, measure=AnswerMeasure(DATA.measure.answer, DATA.measure.wrong, 'kl'))",
        "replace(DATA, splits=[*DATA.splits, *DATA.splits])",
        "causes_of(model, DATA, SiteSelection('blocks.0.attn.hook_q'), SETTINGS)",
        "causes_of(model, replace(DATA, codes=0 * DATA.codes), PRE, SETTINGS)",
    ],
)
def test_data_that_do_not_fit_are_refused(model, call, refused):
    refused(eval, call, globals() | {"model": model})
