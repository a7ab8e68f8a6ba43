"""Probes of a site: what is measured on which rows, and nested cross-validation."""

from dataclasses import replace

import numpy as np
import pytest

from probekit import lazy_rows
from probekit.pipeline.experiment.plan import sample_of
from probekit.probes.aggregation import text_sides
from probekit.probes.controls import control_labels
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, class_scores, detected
from probekit.probes.score.scored import Predictor
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve import design
from tests.stored import each_line

N_TRAIN, ROWS = 300, np.arange(450)
SETTINGS = ProbeSettings(C=(1e-3, 1e-1), folds=3, control_draws=2, description=False)


def make_data(n_rows=450, **changes):
    """Three rows a group, forty word types, labels that do not depend on either."""
    generator = np.random.default_rng(0)
    labels, words = ["no", "yes"], [f"w{i}" for i in range(40)]
    parts = {
        "y": generator.choice(labels, size=n_rows),
        "types": generator.choice(words, size=n_rows),
    }
    parts |= {"groups": np.array([f"g{row // 3}" for row in range(n_rows)])}
    parts |= {"train": np.arange(N_TRAIN), "test": np.arange(N_TRAIN, n_rows)}
    return ProbeData(**(parts | changes))


DATA = make_data()


def signal(strength, seed=1, data=DATA):
    noise = np.random.default_rng(seed).normal(size=(len(data.y), 8))
    noise[:, 2] += strength * np.where(data.y == "yes", 1, -1)
    return noise.astype(np.float32)


def probed(X, data=DATA, **settings):
    """The measurements of a site."""
    return Prober(data, SETTINGS.changed(**settings)).site(X).measurements


def pick(measured, target="task", metric="accuracy", split="test"):
    (found,) = [m for m in measured if (m.target, m.metric, m.split) == (target, metric, split)]
    return found


def test_a_strong_signal_is_found_and_measured_with_all_its_facts():
    strong = probed(signal(5))
    task, held_out = pick(strong), pick(strong, split="validation")
    assert task.value > 0.99
    assert task.ci_low <= task.value <= task.ci_high
    assert (task.n_train, task.n_test, task.n_groups) == (300, 150, 50)
    labels, counts = np.unique(DATA.y[DATA.train], return_counts=True)
    assert task.chance == np.mean(DATA.y[DATA.test] == labels[counts.argmax()])
    assert task.C in SETTINGS.C
    assert task.converged is True
    assert task.n_iter > 0
    assert 0 < task.gradient_norm < 1e-4
    assert pick(strong, metric="balanced_accuracy").chance == 0.5
    assert pick(strong, metric="auroc").chance == 0.5
    assert held_out.value > 0.99
    # 34 of 100 groups of three are held out.
    assert (held_out.n_train, held_out.n_test) == (198, 300)


def test_every_target_split_and_metric_occurs_once(snapshot):
    prober, X = Prober(DATA, SETTINGS), signal(1)
    without = Prober(DATA, SETTINGS.changed(control_draws=0))
    measured = {"site": prober.site(X), "baselines": prober.baselines()}
    measured |= {"random networks": prober.random_site([X, signal(0)], n_networks=2)}
    measured |= {"without control": without.site(X)}
    found = {
        name: [f"{m.target} {m.split} {m.metric}" for m in one.measurements]
        for name, one in measured.items()
    }
    assert found == snapshot


@pytest.mark.parametrize("label", ["no", "yes"])
def test_test_rows_of_one_class_have_no_score_that_ranks_rows_of_both(label):
    test = [row for row in DATA.test if DATA.y[row] == label]
    measured = probed(signal(5), make_data(test=np.array(test)))
    assert pick(measured).n_test == len(test)
    tested = {m.metric for m in measured if (m.target, m.split) == ("task", "test")}
    assert not {"auroc", "auprc"} & tested


def test_pure_noise_gives_an_interval_that_covers_chance():
    aurocs = [pick(probed(signal(0, seed)), metric="auroc") for seed in range(20)]
    assert sum(auroc.ci_low <= 0.5 <= auroc.ci_high for auroc in aurocs) >= 16


def test_networks_with_random_weights_are_averaged_and_keep_their_own_validation_scores():
    prober, networks = Prober(DATA, SETTINGS), [signal(0), signal(1)]
    both = prober.random_site(networks, n_networks=2)
    alone = [prober.random_site([X], n_networks=1) for X in networks]
    for metric in ("accuracy", "auroc", "brier"):
        mean = np.mean([pick(one.measurements, "random_weights", metric).value for one in alone])
        found = pick(both.measurements, "random_weights", metric).value
        assert found == pytest.approx(mean)
    for n, one in enumerate(alone):
        scores, guesses = [], []
        for result, name in ((both, f"random_weights_{n}"), (one, "random_weights_0")):
            scores.append(pick(result.measurements, name, split="validation").value)
            guesses.append(result.predictions[Predictor("logistic", name)].guess)
        assert scores[0] == scores[1]
        assert np.array_equal(*guesses)


def test_labels_looked_up_by_word_have_no_selectivity():
    data = make_data(n_rows=900)
    looked_up = control_labels(data.types, np.array(["no", "yes"]), seed=99, draw=0)
    data = replace(data, y=looked_up)
    words, place = np.unique(data.types, return_inverse=True)
    X = np.random.default_rng(0).normal(size=(len(words), 64))[place].astype(np.float32)
    measured = probed(X, data, C=(0.1, 10.0))
    assert pick(measured).value > 0.99
    assert pick(measured, "control").value > 0.99
    assert abs(pick(measured, metric="selectivity").value) < 0.02
    assert pick(Prober(data, SETTINGS).baselines().measurements, "word_identity").value > 0.99


def test_a_signal_apart_from_the_word_is_selective_with_a_paired_interval():
    # The mean of several draws varies less than the accuracy of one.
    measured = probed(signal(5), control_draws=1)
    selectivity = pick(measured, metric="selectivity")
    task, control = pick(measured), pick(measured, "control")
    assert selectivity.value == pytest.approx(task.value - control.value)
    assert selectivity.chance == 0
    assert selectivity.ci_low > 0.2
    # The task is right everywhere, so that the difference spreads as the control alone does.
    width = selectivity.ci_high - selectivity.ci_low
    assert width == pytest.approx(control.ci_high - control.ci_low, rel=0.05)


def test_control_labels_and_chance_come_from_the_training_labels_alone():
    y = np.repeat(["no", "yes", "yes", "no"], [270, 30, 140, 10])
    data = make_data(y=y)
    measured = probed(signal(5, data=data), data)
    assert pick(measured).chance == 10 / 150
    # Drawn from all rows, four labels in ten would be "yes".
    assert pick(measured, "control").chance > 0.8


def test_test_rows_do_not_touch_the_scaling():
    X = signal(1)
    enlarged = X.copy()
    enlarged[-1] *= 1e6
    first, second = (pick(probed(rows)) for rows in (X, enlarged))
    for name in ("C", "n_iter", "gradient_norm"):
        assert getattr(first, name) == getattr(second, name)
    assert abs(first.value - second.value) <= 1 / first.n_test


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    X, prober = signal(0.5), Prober(DATA, SETTINGS)
    prober.site(X[::-1])  # sites probed before do not matter
    measured = probed(X)
    assert measured == prober.site(X).measurements
    assert pick(probed(X, seed=1), "control").value != pick(measured, "control").value


def test_the_order_of_rows_does_not_matter():
    X, order = signal(0.5), np.random.default_rng(3).permutation(450)
    place = np.argsort(order)
    columns = (getattr(DATA, name)[order] for name in ("y", "groups", "types"))
    shuffled = ProbeData(*columns, place[DATA.train], place[DATA.test])
    for ours, theirs in zip(probed(X), probed(X[order], shuffled), strict=True):
        assert (ours.metric, ours.C) == (theirs.metric, theirs.C)
        expected = theirs.value, theirs.ci_low, theirs.ci_high
        assert (ours.value, ours.ci_low, ours.ci_high) == pytest.approx(expected, abs=1e-9)
    first, second = (Prober(data, SETTINGS).baselines() for data in (DATA, shuffled))
    assert first.measurements == second.measurements


def test_fit_rows_bounds_the_probe_but_not_the_baselines():
    prober = Prober(DATA, SETTINGS.changed(fit_rows=100))
    assert pick(prober.site(signal(5)).measurements).n_train == 99  # whole groups of three
    assert pick(prober.baselines().measurements, "majority").n_train == 300
    assert pick(probed(signal(5), fit_rows=300)).n_train == 300


def test_fit_rows_bounds_the_texts_of_every_fit_of_a_nested_run():
    fitted = [texts for texts, _ in text_sides(nested(fit_rows=100))]
    assert [len(texts.rows) for texts in fitted] == [99] * 4  # three folds, and all of them


def test_more_classes_and_a_class_too_rare_for_every_fold():
    generator, names = np.random.default_rng(0), np.array(["a", "b", "c"])
    y = generator.choice(names.astype("<U4"), size=450)
    y[7] = "rare"
    X = generator.normal(size=(450, 5))
    X[:, :3] += 4 * (y[:, None] == names)
    measured = probed(X, make_data(y=y))
    assert pick(measured).value > 0.95
    assert pick(measured, metric="auroc").value > 0.98


def test_an_outer_fold_may_test_a_single_group():
    quarters = np.minimum(ROWS // 110, 3)
    names, sides = quarters.astype(str), [(quarters != n, quarters == n) for n in range(4)]
    folds = [replace(DATA, groups=names, train=ROWS[a], test=ROWS[b]) for a, b in sides]
    assert Prober(folds, SETTINGS.changed(control_draws=0)).is_nested


def test_a_few_typical_rows_do_not_scale_all_others():
    X = signal(1)
    X[::50] += 3000
    of_all, of_few, of_most = (
        probed(X, make_data(typical=typical)) for typical in (None, ROWS % 50 == 0, ROWS % 50 != 0)
    )
    assert of_few == of_all
    assert pick(of_most).value > pick(of_all).value


def test_rows_too_few_to_be_coded_online_are_probed_all_the_same():
    y, rows = np.tile(list("abcdef"), 4), np.arange(24)
    data = ProbeData(y, (rows // 6).astype(str), rows.astype(str), rows[:12], rows[12:])
    prober = Prober(data, ProbeSettings(C=(0.1,), folds=2, control_draws=0))
    found = prober.site(np.random.default_rng(0).normal(size=(24, 3)))
    assert {m.split for m in found.measurements} == {"test", "validation"}


K_OF_9 = (ProbeSpec(kind="k_sparse", k=(9,)),)
SPOILT = np.zeros((450, 8), np.float32)
SPOILT[11, 3], SPOILT[200, 0] = np.nan, np.inf
OF_ONE_GROUP = np.where(ROWS < N_TRAIN, DATA.groups, "one")
OF_LABELS = np.where(ROWS < N_TRAIN, DATA.y, DATA.groups)


@each_line("call")
def test_rows_and_splits_that_cannot_be_probed_are_refused(call, refused):
    refused(eval, call, globals())


def nested(data=DATA, **changes):
    """A prober of three outer folds of all rows, with consecutive groups in each."""
    sides = [(ROWS[outer_fold != n], ROWS[outer_fold == n]) for n in range(3)]
    splits = [replace(data, train=train, test=test) for train, test in sides]
    return Prober(splits, SETTINGS.changed(**({"control_draws": 0} | changes)))


outer_fold = ROWS // 150


def of_fold(result, fold):
    (found,) = [m for m in result.measurements if (m.split, m.fold) == ("validation", fold)]
    return found


def test_each_outer_fold_has_the_validation_score_and_the_c_of_its_own_split():
    X = signal(0.5)
    result = nested().site(X)
    for fold in range(3):
        split = replace(DATA, train=ROWS[outer_fold != fold], test=ROWS[outer_fold == fold])
        # The limits are wider over outer folds.
        without_limits = {"ci_low": None, "ci_high": None, "fold": None}
        own = of_fold(result, fold)
        same = pick(probed(X, split, control_draws=0), split="validation")
        assert replace(own, **without_limits) == replace(same, **without_limits)
        assert own.ci_low < same.ci_low < same.ci_high < own.ci_high
    assert Prober(DATA, SETTINGS).resamples_of("logistic").widening == 1
    assert nested().resamples_of("logistic").widening == WIDER_OVER_FOLDS


@pytest.mark.parametrize("labels", [DATA.y, np.where(ROWS % 7 == 0, "odd", DATA.y)])
def test_all_predictions_over_folds_are_on_the_scale_of_their_training_rows(labels):
    texts = np.array([f"{label} {n}" for n, label in enumerate(DATA.y)], dtype=object)
    data = replace(DATA, y=labels, texts=texts)
    prober = nested(data, metric="auprc", baselines=("majority", "word_identity", "bag_of_words"))
    results = [prober.site(signal(1, data=data)), prober.baselines()]
    for predictor, given in [item for one in results for item in one.predictions.items()]:
        assert given.scaled is not None, predictor
        assert np.isfinite(given.scaled).all()
        # Of rows of a single fit, their order is that of the scores.
        own = np.flatnonzero(given.folds == 1)
        for column, code in zip(given.scaled.T, detected(given), strict=True):
            scores = class_scores(given, code)[own]
            assert (np.diff(column[own][np.argsort(scores)]) >= -1e-9).all()


def test_there_is_no_sample_in_which_folds_have_different_classes():
    labels = DATA.y.copy()
    labels[[10, 160]] = "odd"  # in one training set of three there is only one of them, or both
    samples = [sample_of(nested(replace(DATA, y=labels)), size) for size in (100, 200, 300)]
    for prober in [found[0] for found in samples if found is not None]:
        assert {*prober.data.y} == {*DATA.y}  # none has the label, or all have it
    assert None in samples


def test_test_labels_of_an_outer_fold_choose_nothing_in_it():
    X, y = signal(0.3), DATA.y.copy()
    y[outer_fold == 1] = np.random.default_rng(5).permutation(y[outer_fold == 1])
    first, second = (nested(replace(DATA, y=labels)).site(X) for labels in (DATA.y, y))
    assert of_fold(first, 1) == of_fold(second, 1)
    assert of_fold(first, 0) != of_fold(second, 0)


def test_folds_keep_a_fit_on_all_rows_with_a_c_of_its_own():
    X, prober = signal(0.5), nested()
    result = prober.site(X)
    assert np.array_equal(prober.saved_rows.rows, ROWS)
    # A split of all rows except two groups that no class depends on.
    almost_all = replace(DATA, train=ROWS[:444], test=ROWS[444:])
    whole = Prober(almost_all, prober.settings).site(X)
    scores = [one.fits["logistic"].outputs(X, 2)[:, 1] for one in (result, whole)]
    assert np.corrcoef(*scores)[0, 1] > 0.999
    assert result.penalties["logistic"] in SETTINGS.C
    assert prober.random_site([X], n_networks=1).fits == {}


@pytest.mark.parametrize("is_nested", [False, True])
def test_progress_is_reported_to_the_end(is_nested):
    prober, total, seen = Prober(DATA, SETTINGS), 21, []  # 3 columns x (3 folds x 2 C + 1)
    if is_nested:
        prober, total = nested(), 28  # 4 x (3 folds x 2 C + 1)
    prober.site(signal(1), on_fit=lambda *count: seen.append(count))
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_numbers_are_refitted_on_all_rows_too():
    numbers = replace(DATA, y=np.random.default_rng(0).normal(size=450).round(3).astype(str))
    kinds = (ProbeSpec(kind="ridge_regression"),)
    result = nested(numbers, kinds=kinds, baselines=()).site(signal(1))
    assert result.fits["ridge_regression"].layers
    assert {m.fold for m in result.measurements if m.split == "validation"} == {None, 0, 1, 2}
    assert np.array_equal(result.predictions["ridge_regression", "task"].folds, outer_fold)


KINDS = ("logistic", "ridge", "lda", "mass_mean", "nearest_mean", "k_sparse", "svm")


@pytest.mark.parametrize("kind", [*KINDS, "ridge_regression"])
def test_rows_in_a_file_have_the_results_of_rows_in_memory(tmp_path, monkeypatch, kind):
    """The same bytes for the same blocks, and float64 to rounding for blocks of another size."""
    data = make_data(y=DATA.y if kind in KINDS else (DATA.y == "yes").astype(int).astype(str))
    spec = ProbeSpec(kind=kind, k=(4,) if kind == "k_sparse" else None)
    settings = SETTINGS.changed(kinds=(spec,), baselines=(), control_draws=0)
    X = signal(0.4).astype(np.float64)
    file = np.memmap(tmp_path / "rows", X.dtype, "w+", shape=X.shape)
    file[:] = X

    def fitted(rows, block_rows):
        monkeypatch.setattr(lazy_rows, "BLOCK_ROWS", block_rows)
        (fit,) = Prober(data, settings).site(rows).fits.values()
        return fit.layers[0].weight

    whole, by_blocks = fitted(X, 4096), fitted(X, 64)
    monkeypatch.setattr(lazy_rows, "LOADED_BYTES", 0)
    monkeypatch.setattr(design, "MAPPED_BYTES", 0)
    assert fitted(file, 64).tobytes() == by_blocks.tobytes()
    np.testing.assert_allclose(by_blocks, whole, rtol=1e-10, atol=1e-10 * np.abs(whole).max())
