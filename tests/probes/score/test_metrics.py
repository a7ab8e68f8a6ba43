import tracemalloc
import warnings

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    roc_auc_score,
)

from probekit.probes.score.intervals import jackknife_variance
from probekit.probes.score.metric_table import metric_functions
from probekit.probes.score.metrics import (
    BLOCK,
    ClassPredictions,
    Resamples,
    accuracy,
    auroc,
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
    # Both classes have the same area under the ROC curve, but not the same average precision.
    classes = [1] if given.n_classes == 2 and name == "auroc" else range(given.n_classes)
    area = {"auroc": roc_auc_score, "auprc": average_precision_score}[name]
    areas = [
        area(truth == code, scores[:, code])
        for code in classes
        if 0 < np.sum(truth == code) < len(truth)
    ]
    return np.mean(areas) if areas else np.nan


def groups_of(given: ClassPredictions) -> np.ndarray:
    """More groups than one block of resamples holds; all rows of the rare class are in one."""
    groups = np.random.default_rng(1).integers(BLOCK + 20, size=len(given.truth))
    groups[given.truth == given.n_classes - 1] = 7
    return np.char.add("g", groups.astype(str))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_each_resample_equals_scikit_learn_on_the_rows_of_the_other_groups(name, n_classes):
    given = answers(n_classes, n_rows=400)
    groups = groups_of(given)
    names = np.unique(groups)
    columns = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, len(names), 1 + names.tolist().index("g7")]
    kept = [np.flatnonzero(groups != names[n - 1]) if n else np.arange(400) for n in columns]
    assert n_classes - 1 not in given.truth[kept[-1]]
    expected = [by_scikit_learn(name, given, rows) for rows in kept]
    values = METRICS[name](given, Resamples.leave_one_out(groups))
    assert len(values) == 1 + len(names) > BLOCK + 1
    np.testing.assert_allclose(values[columns], expected, rtol=1e-12)


def test_binary_auroc_ranks_margins_whose_probabilities_round_to_one():
    margins = np.array([34.0, 38.0, 45.0, 60.0])
    scores = np.stack([-np.logaddexp(0, margins), -np.logaddexp(0, -margins)], axis=1)
    given = ClassPredictions(np.array([0, 0, 1, 1]), np.ones(4, dtype=int), 2, scores)
    assert auroc(given, Resamples.whole(4)).tolist() == [1.0]


def test_a_thousand_classes_need_no_table_of_a_million():
    generator = np.random.default_rng(0)
    truth, guess = generator.integers(1000, size=(2, 3000))
    resamples = Resamples.leave_one_out(np.arange(3000) // 3, most=200)
    tracemalloc.start()
    for name in ("accuracy", "balanced_accuracy", "macro_f1"):
        METRICS[name](ClassPredictions(truth, guess, 1000), resamples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6  # the table would have 1.6 GB


def test_one_against_rest_area_equals_scikit_learns_own():
    generator = np.random.default_rng(0)
    scores = generator.dirichlet(np.ones(4), size=200)
    truth = generator.integers(4, size=200)
    given = ClassPredictions(truth, scores.argmax(axis=1), 4, scores)
    value = auroc(given, Resamples.whole(200))[0]
    assert value == pytest.approx(roc_auc_score(truth, scores, multi_class="ovr"), abs=1e-12)


def test_constant_scores_have_an_area_of_one_half_and_minus_infinity_is_a_score():
    truth = np.array([0, 1, 2, 0, 1, 2])
    resamples = Resamples.whole(6)
    for constant in (0.0, -np.inf):
        scores = np.full((6, 3), constant)
        assert auroc(ClassPredictions(truth, truth, 3, scores), resamples)[0] == 0.5


def test_area_is_undefined_where_one_class_is_alone():
    given = ClassPredictions(np.zeros(4, int), np.zeros(4, int), 2, np.zeros((4, 2)))
    assert np.isnan(auroc(given, Resamples.leave_one_out(np.arange(4)))).all()


def test_area_needs_scores():
    with pytest.raises(ValueError, match="needs scores"):
        auroc(
            ClassPredictions(np.array([0, 1]), np.array([0, 1]), 2),
            Resamples.whole(2),
        )


def test_balanced_accuracy_reveals_what_accuracy_hides():
    truth = np.repeat([0, 1], [95, 5])
    given = ClassPredictions(truth, np.zeros(100, int), 2)
    resamples = Resamples.whole(100)
    assert METRICS["accuracy"](given, resamples)[0] == 0.95
    assert METRICS["balanced_accuracy"](given, resamples)[0] == 0.5


def test_the_order_of_rows_and_the_names_of_groups_do_not_matter():
    given = answers(5)
    groups = np.random.default_rng(1).integers(15, size=120)
    order = np.random.default_rng(2).permutation(120)
    shuffled = ClassPredictions(given.truth[order], given.guess[order], 5, given.scores[order])
    for name, metric in METRICS.items():
        values = metric(given, Resamples.leave_one_out(groups))
        again = metric(shuffled, Resamples.leave_one_out(groups[order] + 100))
        np.testing.assert_allclose(again, values, rtol=1e-12, err_msg=name)


def test_each_group_is_left_out_once():
    counts = Resamples.leave_one_out(np.arange(30) // 2).counts
    assert np.all(counts[:, 0] == 1)
    assert np.array_equal(counts[:, 1:], 1 - np.eye(15))
    assert Resamples.whole(30).counts.tolist() == [[1]] * 30


def test_many_groups_are_left_out_in_units_of_about_equal_numbers():
    groups = np.repeat(np.arange(95), 2)
    counts = Resamples.leave_one_out(groups, most=20).counts
    assert counts.shape == (95, 21)
    assert np.all((counts[:, 1:] == 0).sum(axis=1) == 1)  # each group belongs to one unit
    n_groups = (counts[:, 1:] == 0).sum(axis=0)
    assert set(n_groups.tolist()) == {4, 5}
    assert np.array_equal(counts, Resamples.leave_one_out(groups, most=20).counts)


def test_units_of_many_groups_leave_the_variance_unbiased():
    """Whether the groups are in an order, such as by topic, does not matter."""
    generator, ratios = np.random.default_rng(0), []
    for _ in range(30):
        right = np.sort(generator.random(600) < 0.7).astype(int)
        given = ClassPredictions(np.ones(600, int), right, 2)
        joined, single = (
            jackknife_variance(accuracy(given, Resamples.leave_one_out(np.arange(600), most)))
            for most in (60, 600)
        )
        ratios.append(joined / single)
    assert np.mean(ratios) == pytest.approx(1, abs=0.1)


def test_the_effective_number_of_units_counts_their_rows():
    assert Resamples.leave_one_out(np.arange(60) // 4).n_effective == pytest.approx(15)
    # One group with 90 % of the rows, and ten with 1 % each: 1 / (0.81 + 10 * 0.0001).
    groups = np.repeat(np.arange(11), [90] + [1] * 10)
    assert Resamples.leave_one_out(groups).n_effective == pytest.approx(1 / 0.811)
