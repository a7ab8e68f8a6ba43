"""Random labels of words, and the rows on which task and control are compared."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import ConfigError
from probekit.probes.controls.control_task import comparable_rows, control_labels
from probekit.probes.data import ProbeData, sample_groups
from probekit.probes.prober import Prober
from probekit.probes.score.scored import Predictor
from probekit.probes.settings import ProbeSettings, ProbeSpec

WORDS = np.array([f"word{i}" for i in range(4000)])
TRAIN = np.array(["noun"] * 60 + ["verb"] * 30 + ["adj"] * 10)


def test_labels_are_per_type_and_depend_on_no_other_row():
    words = np.random.default_rng(0).choice(WORDS[:50], size=300)
    labels = control_labels(words, TRAIN, seed=0, draw=0)
    for word in set(words):
        assert len(set(labels[words == word])) == 1
    order = np.random.default_rng(1).permutation(300)[:100]
    assert np.array_equal(control_labels(words[order], TRAIN, seed=0, draw=0), labels[order])


def test_seed_and_draw_each_change_the_labels_and_nothing_else_does():
    first = control_labels(WORDS, TRAIN, seed=0, draw=0)
    assert np.array_equal(control_labels(WORDS, TRAIN[::-1], seed=0, draw=0), first)
    chance = np.square([0.6, 0.3, 0.1]).sum()
    for other in (
        control_labels(WORDS, TRAIN, seed=1, draw=0),
        control_labels(WORDS, TRAIN, seed=0, draw=1),
    ):
        assert abs(np.mean(first == other) - chance) < 0.03


def test_labels_stay_the_same_between_releases():
    words = np.array(["the", "bank", "river", "of", "Zürich"])
    labels = control_labels(words, TRAIN, seed=0, draw=0)
    assert labels.tolist() == ["adj", "verb", "noun", "noun", "verb"]


N_ROWS, N_TRAIN = 450, 300
SETTINGS = ProbeSettings(C=(0.1,), folds=3, control_draws=2, description=False)
EVERYTHING = np.arange(N_TRAIN)


def make_data(**changes):
    """Three rows a group and 40 word types, which determine the label."""
    types = np.random.default_rng(0).integers(40, size=N_ROWS)
    parts = {
        "y": np.where(types % 2, "yes", "no"),
        "groups": (np.arange(N_ROWS) // 3).astype(str),
        "types": types.astype(str),
        "train": EVERYTHING,
        "test": np.arange(N_TRAIN, N_ROWS),
    }
    return ProbeData(**(parts | changes))


def one_hot(types):
    return np.eye(40, dtype=np.float32)[types.astype(int)]


def new_words(data, is_new):
    """The words of the rows, some of the test rows replaced by new ones."""
    words = data.types.astype(object)
    words[data.test[is_new]] = "new"
    return words.astype(str)


def test_rows_are_comparable_if_control_type_and_labelled_word_are_fitted():
    data = make_data()
    is_new = np.arange(150) % 5 == 0
    words = new_words(data, is_new)
    for changed in (replace(data, types=words), replace(data, words=words)):
        assert np.array_equal(comparable_rows(changed, SETTINGS, EVERYTHING), ~is_new)
    few = data.train[sample_groups(data.groups[data.train], 12, 0)]
    seen = np.isin(data.types[data.test], data.types[few])
    assert np.array_equal(comparable_rows(data, SETTINGS, few), seen)


def test_all_words_of_a_text_count_where_no_word_is_labelled():
    texts = np.array([f"Word {n % 7} ends" for n in range(N_ROWS)], dtype=object)
    texts[-2:] = "word 3 begins", "ends, WORD"
    found = comparable_rows(make_data(texts=texts), SETTINGS, EVERYTHING)
    assert found.tolist() == [True] * 148 + [False, True]


def test_selectivity_is_the_difference_of_both_scores_on_comparable_rows():
    data = make_data()
    is_new = np.arange(150) % 5 == 0
    data = replace(data, words=new_words(data, is_new))
    prober = Prober(data, SETTINGS)
    site = prober.site(one_hot(data.types))
    by_name = {(one.target, one.metric): one for one in site.measurements if one.split == "test"}
    control, selectivity = by_name["control", "accuracy"], by_name["task", "selectivity"]
    assert by_name["task", "accuracy"].n_test == 150
    assert control.n_test == selectivity.n_test == 120
    task = site.predictions[Predictor("logistic", "task")]
    own = np.mean((task.guess == task.truth)[~is_new])
    assert selectivity.value == pytest.approx(own - control.value)


def test_pitfall_44_new_words_have_no_control_and_the_reason_is_given():
    data = make_data()
    is_new = np.arange(150) >= 25
    new = replace(data, types=new_words(data, is_new))
    prober = Prober(new, SETTINGS)
    assert not prober.has_control
    assert prober.why_no_control.startswith(
        "No control task: test words are new. A probe can learn random labels only of words that "
        "occur in the training rows. That is the case in 25 of 150 test rows, in "
    )
    targets = {one.target for one in prober.site(one_hot(data.types)).measurements}
    assert targets == {"task"}
    assert Prober(data, SETTINGS).why_no_control == ""
    assert Prober(new, replace(SETTINGS, control_draws=0)).why_no_control == ""


def test_few_test_rows_or_groups_are_the_reason_if_no_word_is_new():
    data = make_data(groups=np.minimum(np.arange(N_ROWS) // 3, 104).astype(str))
    reason = Prober(data, SETTINGS).why_no_control
    assert reason.startswith("No control task: the 150 test rows are in 5 groups; at least 30 rows")


def test_groups_are_always_new_to_the_test_rows():
    prober = Prober(make_data(), replace(SETTINGS, control_by="group"))
    assert prober.why_no_control.startswith("No control task: test groups are new.")


def test_pitfall_44_a_control_of_few_types_is_refused():
    words = make_data().types.astype(int)
    ten, nine = (make_data(types=(words % n).astype(str)) for n in (10, 9))
    assert Prober(nine, SETTINGS).why_no_control.startswith(
        "No control task: the training rows have only 9 word types; random labels of fewer than 10"
    )
    assert Prober(ten, SETTINGS).has_control
    assert Prober(nine, replace(SETTINGS, control_draws=0)).site(one_hot(nine.types)).measurements


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_draw_may_lack_the_positive_label(kind):
    data = make_data()
    y = data.y.astype("<U5")
    y[np.r_[:6, 300:310]] = "zebra"
    prober = Prober(
        replace(data, y=y, positive="zebra"),
        replace(SETTINGS, kinds=(ProbeSpec(kind),), C=(0.1, 1.0), metric="macro_f1"),
    )
    targets = {one.target for one in prober.site(one_hot(data.types)).measurements}
    assert "control" in targets


def test_a_control_whose_labels_hardly_ever_differ_is_refused():
    data = make_data()
    y = np.full(N_ROWS, "no")
    y[[7, 400]] = "yes"
    data = replace(data, y=y, types=(np.arange(N_ROWS) % 11).astype(str))
    with pytest.raises(ConfigError, match=r"11 word types too few draws give different labels"):
        Prober(data, replace(SETTINGS, control_draws=90))
