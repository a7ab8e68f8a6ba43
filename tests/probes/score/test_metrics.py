import tracemalloc
import warnings

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    roc_auc_score,
)

from probekit.probes.score.metric_table import metric_functions
from probekit.probes.score.metrics import (
    BLOCK,
    ClassPredictions,
    Resamples,
    accuracy,
    auroc,
    percentile_interval,
)

METRICS = metric_functions("class", frozenset({"scores"}))


def answers(n_classes: int, n_rows: int = 120, seed: int = 0) -> ClassPredictions:
    """Scores on a coarse grid, so that many of them tie; the last class is rare."""
    generator = np.random.default_rng(seed)
    share = np.append(np.full(n_classes - 1, 0.97 / (n_classes - 1)), 0.03)
    truth = generator.choice(n_classes, size=n_rows, p=share)
    scores = generator.integers(0, 4, size=(n_rows, n_classes)).astype(float)
    scores[np.arange(n_rows), truth] += 1
    if n_classes == 2:
        scores[:, 0] = -scores[:, 1]
    return ClassPredictions(truth, scores.argmax(axis=1), n_classes, scores)


def by_scikit_learn(name: str, given: ClassPredictions, rows: np.ndarray) -> float:
    """The metric on the resampled rows, by scikit-learn."""
    truth, guess, scores = given.truth[rows], given.guess[rows], given.scores[rows]
    with warnings.catch_warnings():
        # It warns of guesses of a class that was not drawn, and then does what we do.
        warnings.simplefilter("ignore", UserWarning)
        if name == "accuracy":
            return accuracy_score(truth, guess)
        if name == "balanced_accuracy":
            return balanced_accuracy_score(truth, guess)
        if name == "macro_f1":
            return f1_score(truth, guess, average="macro")
    classes = [1] if given.n_classes == 2 else range(given.n_classes)
    areas = [
        roc_auc_score(truth == code, scores[:, code])
        for code in classes
        if 0 < np.sum(truth == code) < len(truth)
    ]
    return np.mean(areas) if areas else np.nan


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_every_draw_equals_a_plain_loop_over_groups_with_scikit_learn(name, n_classes):
    given = answers(n_classes)
    groups = np.random.default_rng(1).choice([f"g{i}" for i in range(15)], size=120)
    resamples = Resamples.draw(groups, draws=BLOCK + 20, seed=0)
    names = np.unique(groups)
    expected = []
    for counts in resamples.counts.T.astype(int):
        drawn = np.repeat(names, counts)
        rows = np.concatenate([np.flatnonzero(groups == name) for name in drawn])
        expected.append(by_scikit_learn(name, given, rows))
    values = METRICS[name](given, resamples)
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    interval = percentile_interval(values)
    low, high = np.nanpercentile(expected[1:], [2.5, 97.5])
    assert (interval.value, interval.low, interval.high) == pytest.approx(
        (expected[0], low, high), abs=1e-12
    )


def test_binary_auroc_ranks_margins_whose_probabilities_round_to_one():
    margins = np.array([34.0, 38.0, 45.0, 60.0])
    scores = np.stack([-np.logaddexp(0, margins), -np.logaddexp(0, -margins)], axis=1)
    given = ClassPredictions(np.array([0, 0, 1, 1]), np.ones(4, dtype=int), 2, scores)
    assert auroc(given, Resamples.draw(np.arange(4), draws=0, seed=0)).tolist() == [1.0]


def test_a_thousand_classes_need_no_table_of_a_million():
    generator = np.random.default_rng(0)
    truth, guess = generator.integers(1000, size=(2, 3000))
    resamples = Resamples.draw(np.arange(3000) // 3, draws=200, seed=0)
    tracemalloc.start()
    for name in ("accuracy", "balanced_accuracy", "macro_f1"):
        METRICS[name](ClassPredictions(truth, guess, 1000), resamples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6  # the table would have 1.6 GB


def test_some_draws_above_lack_a_class():
    given = answers(5)
    groups = np.random.default_rng(1).choice([f"g{i}" for i in range(15)], size=120)
    resamples = Resamples.draw(groups, draws=BLOCK + 20, seed=0)
    rare = np.bincount(resamples.group_of_row[given.truth == 4], minlength=15)
    assert np.any(rare @ resamples.counts == 0)


def test_one_against_rest_area_equals_scikit_learns_own():
    generator = np.random.default_rng(0)
    scores = generator.dirichlet(np.ones(4), size=200)
    truth = generator.integers(4, size=200)
    given = ClassPredictions(truth, scores.argmax(axis=1), 4, scores)
    value = auroc(given, Resamples.draw(np.arange(200), 0, 0))[0]
    assert value == pytest.approx(roc_auc_score(truth, scores, multi_class="ovr"), abs=1e-12)


def test_constant_scores_have_an_area_of_one_half_and_minus_infinity_is_a_score():
    truth = np.array([0, 1, 2, 0, 1, 2])
    resamples = Resamples.draw(np.arange(6), 0, 0)
    for constant in (0.0, -np.inf):
        scores = np.full((6, 3), constant)
        assert auroc(ClassPredictions(truth, truth, 3, scores), resamples)[0] == 0.5


def test_area_is_undefined_where_one_class_is_alone():
    given = ClassPredictions(np.zeros(4, int), np.zeros(4, int), 2, np.zeros((4, 2)))
    assert np.isnan(auroc(given, Resamples.draw(np.arange(4), 3, 0))).all()


def test_area_needs_scores():
    with pytest.raises(ValueError, match="needs scores"):
        auroc(
            ClassPredictions(np.array([0, 1]), np.array([0, 1]), 2),
            Resamples.draw(np.arange(2), 0, 0),
        )


def test_balanced_accuracy_reveals_what_accuracy_hides():
    truth = np.repeat([0, 1], [95, 5])
    given = ClassPredictions(truth, np.zeros(100, int), 2)
    resamples = Resamples.draw(np.arange(100), 0, 0)
    assert METRICS["accuracy"](given, resamples)[0] == 0.95
    assert METRICS["balanced_accuracy"](given, resamples)[0] == 0.5


def test_intervals_by_groups_of_copies_are_wider_than_by_rows():
    generator = np.random.default_rng(0)
    right = np.repeat(generator.random(60) < 0.7, 10).astype(int)
    given = ClassPredictions(np.ones(600, int), right, 2)
    by_group = percentile_interval(accuracy(given, Resamples.draw(np.arange(600) // 10, 1000, 0)))
    by_row = percentile_interval(accuracy(given, Resamples.draw(np.arange(600), 1000, 0)))
    ratio = (by_group.high - by_group.low) / (by_row.high - by_row.low)
    assert ratio == pytest.approx(np.sqrt(10), rel=0.15)


def test_the_interval_has_its_nominal_coverage():
    generator = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        # Each group has its own rate, 0.7 on average: rows of a group resemble each other.
        rate = np.repeat(generator.beta(7, 3, size=80), 5)
        right = (generator.random(400) < rate).astype(int)
        resamples = Resamples.draw(np.arange(400) // 5, 300, seed)
        interval = percentile_interval(
            accuracy(ClassPredictions(np.ones(400, int), right, 2), resamples)
        )
        covered += interval.low <= 0.7 <= interval.high
    assert 0.90 <= covered / 200 <= 0.985


def test_the_order_of_rows_does_not_matter_and_the_seed_does():
    given = answers(5)
    groups = np.random.default_rng(1).choice([f"g{i}" for i in range(15)], size=120)
    order = np.random.default_rng(2).permutation(120)
    shuffled = ClassPredictions(given.truth[order], given.guess[order], 5, given.scores[order])
    for name, metric in METRICS.items():
        values = metric(given, Resamples.draw(groups, 50, 0))
        again = metric(shuffled, Resamples.draw(groups[order], 50, 0))
        np.testing.assert_allclose(again, values, rtol=1e-12, err_msg=name)
        assert not np.allclose(values[1:], metric(given, Resamples.draw(groups, 50, 1))[1:])


def test_each_draw_has_as_many_groups_as_there_are():
    counts = Resamples.draw(np.arange(30), draws=400, seed=0).counts
    assert np.all(counts[:, 0] == 1)
    assert np.all(counts.sum(axis=0) == 30)
    # A group is absent from a resample with probability (1 - 1/30)^30 = 0.362.
    assert np.mean(counts[:, 1:] == 0) == pytest.approx(0.362, abs=0.01)
