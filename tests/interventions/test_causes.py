"""Every verdict is right on networks whose weights are set by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.data.splits import Split
from probekit.errors import ConfigError, DataError
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


def answers(result):
    return {one.question: one.answer for one in result.verdicts}


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
    assert answers(result) == {"detects": "yes", "steers": "yes", "silences": "yes"}
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
    data = data_of(1)
    result = causes_of(model, data, PRE, SETTINGS, directions=given(model, data, IDLE))
    assert answers(result) == {"detects": "yes", "steers": "no", "silences": "no"}
    assert result.verdict("steers").effect == pytest.approx(0, abs=1e-4)
    assert result.verdict("steers").whole > 0.5
    assert abs(result.swap.effect) < 1e-4
    assert "decodable is not used" in summary(result)
    elsewhere = data_of(2)
    for vector in (READ, IDLE):  # used at another position, if at all
        result = causes_of(
            model, elsewhere, PRE, SETTINGS, directions=given(model, elsewhere, vector)
        )
        assert answers(result) == {"detects": "yes", "steers": "no", "silences": "no"}


@pytest.mark.parametrize("method", ["probe", "mean_difference", "leace"])
def test_fitted_directions_are_used_where_the_label_is_read(model, method):
    data = data_of(1)
    result = causes_of(model, data, PRE, replace(SETTINGS, along=method))
    assert answers(result) == {"detects": "yes", "steers": "yes", "silences": "yes"}
    assert len(result.null["steers"]) == 99
    elsewhere = causes_of(model, data_of(2), PRE, replace(SETTINGS, along=method))
    assert answers(elsewhere) == {"detects": "yes", "steers": "no", "silences": "no"}


def test_a_position_without_the_label_is_not_detected(model):
    result = causes_of(model, data_of(3), PRE, SETTINGS)
    assert answers(result)["detects"] != "yes"
    assert answers(result)["steers"] == answers(result)["silences"] == "no"


def test_over_folds_intervals_are_wider_by_the_factor(model, monkeypatch):
    def widths():
        results = [
            causes_of(model, data_of(position, folds=2), PRE, SETTINGS) for position in (3, 1)
        ]
        found = [results[0].verdict("detects"), results[1].verdict("steers")]
        return np.array([one.high - one.low for one in found])

    wide = widths()
    monkeypatch.setattr("probekit.interventions.causes.WIDER_OVER_FOLDS", 1.0)
    np.testing.assert_allclose(wide / widths(), 2**0.5, rtol=0.03)


def test_edits_of_all_positions_reach_the_one_that_is_used(model):
    data = replace(data_of(1), at=None, measured=torch.full((160,), LAST))
    directions = given(model, data_of(1), READ)
    result = causes_of(model, data, PRE, SETTINGS, directions=directions)
    assert answers(result)["steers"] == answers(result)["silences"] == "yes"


def best_of(results, question):
    found = [one.swap if question == "swap" else one.verdict(question) for one in results]
    effects = np.array([one.effect for one in found])
    return best_p_values(effects, np.stack([one.null[question] for one in results]))


def test_the_best_of_several_positions_is_adjusted(model):
    results = [causes_of(model, data_of(position), PRE, SETTINGS) for position in (1, 2, 3)]
    p = best_of(results, "steers")
    assert p[0] == 0.01
    assert (p[1:] > 0.05).all()
    assert (best_of(results, "swap") >= [one.swap.p for one in results]).all()


def test_the_effect_of_a_head_and_its_kernel(model):
    z = SiteSelection("blocks.0.attn.hook_z", head=0)
    result = causes_of(model, data_of(LAST), z, SETTINGS)
    assert answers(result) == {"detects": "yes", "steers": "yes", "silences": "yes"}
    assert result.kernel_share == pytest.approx(0, abs=1e-6)


def same_direction(vector):
    """Directions on permuted labels that all are the observed one."""
    unit = np.tile(vector.numpy(), (100, 1))
    return [DirectionSet(unit, unit, np.ones(100), np.zeros(len(vector)))]


def test_controls_that_are_the_same_direction_refuse(model):
    """A site with a single direction leaves nothing to compare it with."""
    result = causes_of(model, data_of(1), PRE, SETTINGS, directions=same_direction(READ))
    assert result.verdict("steers").p == result.verdict("silences").p == 1
    assert answers(result)["steers"] == "undecided"


def test_a_direction_in_the_kernel_of_the_output_matrix_is_flagged():
    model = hand_set()
    model.h[0].attn.c_proj.weight -= torch.outer(READ, READ) + torch.outer(IDLE, IDLE)
    model.h[0].attn.c_attn.weight.view(3, *IDLE.shape, *IDLE.shape)[2] += torch.outer(IDLE, IDLE)
    z = SiteSelection("blocks.0.attn.hook_z", head=0)
    result = causes_of(model, data_of(LAST), z, SETTINGS, directions=same_direction(IDLE))
    assert result.kernel_share == pytest.approx(1, abs=1e-5)
    assert answers(result) == {"detects": "yes", "steers": "no", "silences": "no"}
    assert "kernel" in summary(result)


def test_the_dose_response_has_its_controls_and_the_loss_on_other_texts(model):
    data = data_of(1)
    result = causes_of(model, replace(data, other=data.batch[torch.arange(10)]), PRE, SETTINGS)
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
    result = causes_of(model, data_of(1), PRE, SETTINGS)
    verdict = result.verdict("silences")
    assert verdict.answer == "undecided"
    assert "does not differ between the classes" in verdict.reason
    assert "does not differ between the classes" in summary(result)


def test_data_that_do_not_fit_are_refused(model):
    data = data_of(1)
    with pytest.raises(DataError, match="159 labels"):
        replace(data, codes=data.codes[1:])
    with pytest.raises(ConfigError, match="kl has none"):
        replace(data, measure=AnswerMeasure(data.measure.answer, data.measure.wrong, "kl"))
    with pytest.raises(DataError, match="test row of two folds"):
        replace(data, splits=[*data.splits, *data.splits])
    with pytest.raises(ConfigError, match=r"hook_q is not a part of the residual stream"):
        causes_of(model, data, SiteSelection("blocks.0.attn.hook_q"), SETTINGS)
    with pytest.raises(DataError, match=r"codes \[0\]"):
        causes_of(model, replace(data, codes=0 * data.codes), PRE, SETTINGS)
