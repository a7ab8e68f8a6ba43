"""Random labels of words, and the rows on which task and control are compared."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.probes.controls import comparable_rows, control_labels
from probekit.probes.data import ProbeData, sample_groups
from probekit.probes.prober import Prober
from probekit.probes.score.scored import Predictor
from probekit.probes.settings import ProbeSettings, ProbeSpec
from tests.stored import each_row

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
    for seed, draw in ((1, 0), (0, 1)):
        other = control_labels(WORDS, TRAIN, seed=seed, draw=draw)
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
    parts = {"y": np.where(types % 2, "yes", "no"), "types": types.astype(str)}
    parts |= {"groups": (np.arange(N_ROWS) // 3).astype(str)}
    parts |= {"train": EVERYTHING, "test": np.arange(N_TRAIN, N_ROWS)}
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


IS_NEW = np.arange(150) >= 25
DATA = make_data()


@each_row("data, settings")
def test_pitfall_44_without_a_control_the_reason_is_given(data, settings, snapshot):
    prober = Prober(data, SETTINGS.changed(**settings))
    assert prober.why_no_control == snapshot
    targets = {one.target for one in prober.site(one_hot(DATA.types)).measurements}
    assert targets == ({"task", "control"} if prober.has_control else {"task"})
    assert prober.has_control == (not prober.why_no_control and prober.settings.control_draws > 0)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_draw_may_lack_the_positive_label(kind):
    y = DATA.y.astype("<U5")
    y[np.r_[:6, 300:310]] = "zebra"
    kinds = (ProbeSpec(kind=kind),)
    settings = SETTINGS.changed(kinds=kinds, C=(0.1, 1.0), metric="macro_f1")
    prober = Prober(replace(DATA, y=y, positive="zebra"), settings)
    targets = {one.target for one in prober.site(one_hot(DATA.types)).measurements}
    assert "control" in targets


def test_a_control_whose_labels_hardly_ever_differ_is_refused(refused):
    y = np.where(np.isin(np.arange(N_ROWS), [7, 400]), "yes", "no")
    data = replace(DATA, y=y, types=(np.arange(N_ROWS) % 11).astype(str))
    refused(Prober, data, SETTINGS.changed(control_draws=90))
