from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import ConfigError, DataError
from probekit.probes.controls.control_task import control_labels
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.scored import Predictor
from probekit.probes.settings import ProbeSettings, ProbeSpec
from tests.probes.made_rows import N_TRAIN, SETTINGS, baselines, make_data, pick, signal, site


def test_a_strong_signal_is_found_and_measured_with_all_its_facts():
    data = make_data()
    measured = site(Prober(data, SETTINGS), signal(data, 5))
    task = pick(measured)
    assert task.value > 0.99
    assert task.ci_low <= task.value <= task.ci_high
    assert (task.n_train, task.n_test, task.n_groups) == (300, 150, 50)
    labels, counts = np.unique(data.y[data.train], return_counts=True)
    assert task.chance == np.mean(data.y[data.test] == labels[counts.argmax()])
    assert task.C in SETTINGS.C
    assert task.converged is True
    assert task.n_iter > 0
    assert task.gradient_norm < 1e-4
    assert pick(measured, metric="balanced_accuracy").chance == 0.5
    assert pick(measured, metric="auroc").chance == 0.5
    assert pick(measured, split="validation").value > 0.99
    assert pick(measured, split="validation").n_test == 300


def test_every_target_split_and_metric_occurs_once():
    data = make_data()
    prober = Prober(data, SETTINGS)
    metrics = ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "auprc"]

    def names(measured):
        return [(m.target, m.split, m.metric) for m in measured]

    def fitted(target):
        return [
            *((target, "test", m) for m in (*metrics, "brier", "ece")),
            (target, "validation", "accuracy"),
        ]

    X = signal(data, 1)
    whole = [*fitted("task"), *fitted("control"), ("task", "test", "selectivity")]
    assert names(site(prober, X)) == whole
    both = prober.random_site([X, signal(data, 0)], n_networks=2)
    assert names(both.measurements) == [
        *fitted("random_weights"),
        ("random_weights_0", "validation", "accuracy"),
        ("random_weights_1", "validation", "accuracy"),
    ]
    assert names(baselines(prober)) == [
        (target, "test", metric)
        for target in ("majority", "word_identity")
        for metric in metrics[:3]
    ]
    alone = Prober(data, replace(SETTINGS, control_draws=0))
    assert names(site(alone, X)) == fitted("task")


def test_pure_noise_gives_an_interval_that_covers_chance():
    data = make_data()
    prober = Prober(data, SETTINGS)
    covered = 0
    for seed in range(20):
        found = prober.random_site([signal(data, 0, seed)], n_networks=1).measurements
        auroc = pick(found, "random_weights", "auroc")
        covered += auroc.ci_low <= 0.5 <= auroc.ci_high
    assert covered >= 16


def test_networks_with_random_weights_are_averaged_and_keep_their_own_validation_scores():
    data = make_data()
    prober = Prober(data, SETTINGS)
    networks = [signal(data, 0), signal(data, 1)]
    both = prober.random_site(networks, n_networks=2)
    alone = [prober.random_site([X], n_networks=1) for X in networks]
    for metric in ("accuracy", "auroc", "brier"):
        values = [pick(one.measurements, "random_weights", metric).value for one in alone]
        assert pick(both.measurements, "random_weights", metric).value == pytest.approx(
            np.mean(values)
        )
    for n, one in enumerate(alone):
        own = pick(one.measurements, "random_weights_0", split="validation")
        assert pick(both.measurements, f"random_weights_{n}", split="validation").value == own.value
        assert np.array_equal(
            both.predictions[Predictor("logistic", f"random_weights_{n}")].guess,
            one.predictions[Predictor("logistic", "random_weights_0")].guess,
        )


def test_labels_looked_up_by_word_have_no_selectivity():
    data = make_data(n_rows=900)
    types = data.types
    looked_up = control_labels(types, np.array(["no", "yes"]), seed=99, draw=0)
    data = replace(data, y=looked_up)
    words, place = np.unique(types, return_inverse=True)
    X = np.random.default_rng(0).normal(size=(len(words), 64))[place].astype(np.float32)
    prober = Prober(data, replace(SETTINGS, C=(0.1, 10.0)))
    measured = site(prober, X)
    assert pick(measured).value > 0.99
    assert pick(measured, "control").value > 0.99
    assert abs(pick(measured, metric="selectivity").value) < 0.02
    assert pick(baselines(prober), "word_identity").value > 0.99


def test_a_signal_apart_from_the_word_is_selective_with_a_paired_interval():
    data = make_data()
    # The mean of several draws varies less than the accuracy of one.
    measured = site(Prober(data, replace(SETTINGS, control_draws=1)), signal(data, 5))
    selectivity = pick(measured, metric="selectivity")
    task, control = pick(measured), pick(measured, "control")
    assert selectivity.value == pytest.approx(task.value - control.value)
    assert selectivity.chance == 0
    assert selectivity.ci_low > 0.2
    # The task is right everywhere, so that the difference spreads as the control alone does.
    width = selectivity.ci_high - selectivity.ci_low
    assert width == pytest.approx(control.ci_high - control.ci_low, rel=0.05)


def test_control_labels_and_chance_come_from_the_training_labels_alone():
    y = make_data().y
    y[:300], y[300:] = np.repeat(["no", "yes"], [270, 30]), np.repeat(["yes", "no"], [140, 10])
    measured = site(Prober(make_data(y=y), SETTINGS), signal(make_data(y=y), 5))
    assert pick(measured).chance == 10 / 150
    # Drawn from all rows, four labels in ten would be "yes".
    assert pick(measured, "control").chance > 0.8


def test_test_rows_do_not_touch_the_scaling():
    data = make_data()
    X = signal(data, 1)
    enlarged = X.copy()
    enlarged[data.test[-1]] *= 1e6
    first, second = (pick(site(Prober(data, SETTINGS), x)) for x in (X, enlarged))
    assert (first.C, first.n_iter, first.gradient_norm) == (
        second.C,
        second.n_iter,
        second.gradient_norm,
    )
    assert abs(first.value - second.value) <= 1 / first.n_test


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    data = make_data()
    X = signal(data, 0.5)
    first = site(Prober(data, SETTINGS), X)
    assert first == site(Prober(data, SETTINGS), X)
    prober = Prober(data, SETTINGS)
    site(prober, X[::-1])
    assert first == site(prober, X)  # sites probed before do not matter
    other = pick(site(Prober(data, replace(SETTINGS, seed=1)), X), "control")
    assert other.value != pick(site(Prober(data, SETTINGS), X), "control").value


def test_the_order_of_rows_does_not_matter():
    data = make_data()
    X = signal(data, 0.5)
    order = np.random.default_rng(3).permutation(len(data.y))
    place = np.argsort(order)
    shuffled = ProbeData(
        data.y[order], data.groups[order], data.types[order], place[data.train], place[data.test]
    )
    first, second = Prober(data, SETTINGS), Prober(shuffled, SETTINGS)
    for ours, theirs in zip(site(first, X), site(second, X[order]), strict=True):
        assert (ours.metric, ours.C) == (theirs.metric, theirs.C)
        assert (ours.value, ours.ci_low, ours.ci_high) == pytest.approx(
            (theirs.value, theirs.ci_low, theirs.ci_high), abs=1e-9
        )
    assert baselines(first) == baselines(second)


def test_fit_rows_bounds_the_probe_but_not_the_baselines():
    data = make_data()
    prober = Prober(data, replace(SETTINGS, fit_rows=100))
    task = pick(site(prober, signal(data, 5)))
    assert task.n_train == 99  # whole groups of three
    assert pick(baselines(prober), "majority").n_train == 300
    whole = site(Prober(data, replace(SETTINGS, fit_rows=300)), signal(data, 5))
    assert pick(whole).n_train == 300


def test_held_out_accuracy_records_the_number_of_fitted_rows():
    data = make_data()
    task = pick(site(Prober(data, SETTINGS), signal(data, 5)), split="validation")
    assert (task.n_train, task.n_test) == (198, 300)  # 34 of 100 groups of three held out


def test_more_classes_and_a_class_too_rare_for_every_fold():
    generator = np.random.default_rng(0)
    y = generator.choice(["a", "b", "c"], size=450)
    y[7] = "rare"
    data = make_data(y=y)
    X = generator.normal(size=(450, 5))
    X[:, :3] += 4 * (y[:, None] == np.array(["a", "b", "c"]))
    measured = site(Prober(data, SETTINGS), X)
    assert pick(measured).value > 0.95
    assert pick(measured, metric="auroc").value > 0.98


def test_the_test_rows_of_all_splits_need_two_groups():
    data = make_data()
    groups = np.where(np.arange(450) < N_TRAIN, data.groups, "one")
    with pytest.raises(DataError, match="All test rows belong to the group 'one', but the inter"):
        Prober(replace(data, groups=groups), SETTINGS)
    # An outer fold may test a single group.
    quarters = np.minimum(np.arange(450) // 110, 3).astype(str)
    folds = [
        replace(
            data,
            groups=quarters,
            train=np.flatnonzero(quarters != fold),
            test=np.flatnonzero(quarters == fold),
        )
        for fold in "0123"
    ]
    assert Prober(folds, replace(SETTINGS, control_draws=0)).is_nested


def test_folds_that_hold_out_a_whole_class_are_refused_before_any_fit():
    data = make_data()
    groups = np.where(np.arange(len(data.y)) < N_TRAIN, data.y, data.groups)
    with pytest.raises(DataError, match="the fitted rows have only one class"):
        Prober(replace(data, groups=groups), replace(SETTINGS, folds=2))


def test_a_few_typical_rows_do_not_scale_all_others():
    data = make_data()
    X = signal(data, 1)
    few = make_data(typical=np.arange(450) % 50 == 0)
    most = make_data(typical=np.arange(450) % 50 != 0)
    X[::50] += 3000
    assert site(Prober(few, SETTINGS), X) == site(Prober(data, SETTINGS), X)
    assert pick(site(Prober(most, SETTINGS), X)).value > pick(site(Prober(data, SETTINGS), X)).value


def test_on_fit_counts_to_the_end():
    data = make_data()
    seen = []
    site(Prober(data, SETTINGS), signal(data, 1), on_fit=lambda *count: seen.append(count))
    assert seen == [(done, 21) for done in range(1, 22)]  # 3 columns x (3 folds x 2 C + 1)


def test_rows_too_few_to_be_coded_online_are_probed_all_the_same():
    y = np.tile(list("abcdef"), 4)
    groups = np.repeat([f"g{n}" for n in range(4)], 6)
    rows = np.arange(24)
    data = ProbeData(y, groups, rows.astype(str), train=rows[:12], test=rows[12:])
    prober = Prober(data, ProbeSettings(C=(0.1,), folds=2, control_draws=0))
    found = prober.site(np.random.default_rng(0).normal(size=(24, 3)))
    assert {m.split for m in found.measurements} == {"test", "validation"}


def test_an_option_that_does_not_fit_the_rows_is_refused_under_the_folds_too():
    kinds = (ProbeSpec("k_sparse", (("k", 9),)),)
    with pytest.raises(ConfigError, match=r"k is 9, but the rows have 8 feature\(s\)"):
        site(Prober(make_data(), replace(SETTINGS, kinds=kinds)), signal(make_data(), 5))


def spoilt():
    X = np.zeros((450, 8), np.float32)
    X[11, 3], X[200, 0] = np.nan, np.inf
    return X


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (spoilt(), "2 of 450 rows of X contain NaN or infinity, first row 11"),
        *(
            (np.zeros(shape, np.float32), r"X has shape .* needs shape \(450, n_features\)")
            for shape in ((449, 8), (450,), (450, 2, 4))
        ),
        *(
            (np.zeros((450, 8), dtype), "X has dtype .* Give activations as float32 or float64")
            for dtype in (int, complex, object)
        ),
    ],
)
def test_rows_that_are_no_activations_of_the_data_are_refused(X, message):
    with pytest.raises(DataError, match=message):
        Prober(make_data(), SETTINGS).site(X)
