"""Leakage: scores of the selected probe on test texts without cues, and without other words."""

import re

import numpy as np
import pytest

from probekit.chosen.leakage.measure import leakage_rows
from probekit.errors import DataError, MissingError, ProbekitError
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.finished import inputs_digest
from probekit.probes.score.metrics import ClassPredictions
from probekit.results.table import PAGE_TABLES, only
from tests.pipeline.planted import NOUNS, QUICK, QUICK_SITES, VERBS

# Rows as groups: a p-value needs six. At a single site there are no cosines.
OVERRIDES = (*QUICK, f"capture.sites=[{QUICK_SITES[1]}]", "probe.description=false")
OVERRIDES += ("data.columns.group=null", "leakage={drop: words.txt}")


TRUTH, GROUPS = np.tile([0, 1], 6), np.arange(12)


def with_words(planted, words, rows=None):
    """Write the file of cues and, instead of the planted ones, other rows; return the overrides."""
    (planted.folder / "words.txt").write_text(words)
    if rows is not None:
        rows.to_csv(planted.folder / "rows.csv", index=False)
    return OVERRIDES


def test_without_the_word_that_decides_the_label_the_score_is_that_of_chance(own):
    words = with_words(own, "# colours\nRED\nblack\n")
    result = own.run(*words, "tokens.position={at: mean}")
    assert set(result.leakage) == set(PAGE_TABLES["leakage.csv"])
    row = result.leakage.iloc[0]
    tested = only(result.table, target="task", split="test", metric=row["metric"])
    assert [row["value"]] == pytest.approx(tested["value"].tolist())  # all test rows are compared
    assert row["n_changed"] == row["n_test"] == tested["n_test"].iloc[0] == 24
    assert row["without_others"] > 0.9
    for name in ("value", "without_cues", "without_others"):
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
    assert sorted(row["cues"].split(", ")) == ["black", "red"]
    assert row["without_cues"] < 0.6
    assert row["difference"] == pytest.approx(row["without_cues"] - row["without_others"])
    assert row["difference_high"] < 0
    assert row["p"] < 0.01
    page = result.report.read_text()
    assert "Scores without the cues" in page
    assert "24 of the 24 texts have cues; 0 more are left out" in page


def test_words_that_do_not_decide_the_label_matter_as_little_as_others(own):
    rows = own.rows[own.rows["text"].str.endswith((" was", " is"))]
    rows = rows.assign(label=rows["text"].str.split().str[-1])
    # These phrases leave no other word, so that their texts are left out.
    phrases = [f"the black {noun}" for noun in NOUNS[:6]]
    overrides = with_words(own, "\n".join(["red", *phrases]), rows)
    row = own.run(*overrides, page=False).leakage.iloc[0]
    tested = rows["text"].iloc[prepare(own.load(*overrides)).design.splits[0].test].str.lower()
    n_left_out = tested.str.contains("|".join(phrases)).sum()
    counts = [row["n_changed"], row["n_left_out"], row["n_test"]]
    assert counts == [tested.str.contains("red").sum(), n_left_out, len(tested) - n_left_out]
    assert counts[0] < counts[2] < len(tested)
    assert (row["value"], row["difference"]) == (1, pytest.approx(0, abs=0.05))
    assert row["p"] > 0.2


def leakage_of(without, *random, truth=TRUTH, groups=GROUPS):
    """Return difference, limits and p of the accuracy of guesses without cues and other words."""
    variants = [ClassPredictions(truth, np.asarray(one), 2) for one in (without, *random)]
    (row,) = leakage_rows(variants[0], variants[0], variants[1:], groups, "accuracy")
    return tuple(row.values())[-4:]


def test_the_p_value_of_cues_is_exact():
    # The mean of three equal accuracies differs from each of them by rounding.
    one_wrong = np.where(np.arange(12) < 1, 1 - TRUTH, TRUTH)
    assert leakage_of(one_wrong, one_wrong, one_wrong, one_wrong) == (0, 0, 0, 1)
    # One of six variants is unlike the others in a single text: any of them may be the first.
    difference, low, high, p = leakage_of(one_wrong, *[TRUTH] * 5)
    assert difference == pytest.approx(-1 / 12)
    assert p == pytest.approx(1 / 6, abs=0.04)
    assert low <= difference <= 0 <= high
    difference, low, high, p = leakage_of(1 - TRUTH, *[TRUTH] * 5)
    assert (difference, p) == (-1, pytest.approx(1 / 996))
    assert low == difference < high < 0
    # The texts of a group are exchanged together.
    p = leakage_of(1 - TRUTH, *[TRUTH] * 5, groups=np.repeat([0, 1], 6))[-1]
    assert p == pytest.approx(1 / 36, abs=0.02)


def test_random_words_are_as_many_others_and_the_probed_word_stays(own):
    rows = prepare(own.load(*with_words(own, "the red\nhouse\nwas")))
    design, dropped = rows.design, rows.further["dropped"].dataset
    tested = design.example[design.splits[0].test]
    texts, ids = (design.dataset.column(name)[tested] for name in ("text", "id"))
    # The last word is probed, and "The red house" leaves no other word.
    cannot_lose = [text.endswith("was") or text.startswith("The red") for text in texts]
    has_cue = [bool(re.search("The red|house|was", text)) for text in texts]
    changed = [has and not cannot for has, cannot in zip(has_cue, cannot_lose, strict=True)]
    assert set(dropped.column("id")) == set(ids[changed])
    without_cues, *draws = dropped.column("text").reshape(-1, sum(changed))
    assert len(draws) == 5
    for number, index in enumerate(np.flatnonzero(changed)):
        words = texts[index].split()
        assert without_cues[number].split() == [word for word in words if word != "house"]
        for draw in draws:
            left = draw[number].split()
            assert len(left) == len(words) - 1
            assert {"house", words[-1]} <= set(left) <= set(words)


@pytest.mark.parametrize("at", ["span", "word"])
def test_the_probed_span_is_the_same_word_in_every_variant(own, at):
    nouns = own.rows["text"].str.split().str[2]
    start = [text.index(noun) for text, noun in zip(own.rows["text"], nouns, strict=True)]
    with_words(own, "red\nblack", own.rows.assign(start=start, end=start + nouns.str.len()))
    position = (f"tokens.position={{at: {at}}}", "data.columns.start=start", "data.columns.end=end")
    prepared = prepare(own.load(*OVERRIDES, *position))
    dropped, test = prepared.further["dropped"], prepared.design.splits[0].test
    nouns_of_rows = nouns.iloc[prepared.design.example[test]].tolist()  # each can be changed
    for number, example in enumerate(dropped.dataset.examples):
        noun = nouns_of_rows[number % len(test)]
        assert example.text[slice(*example.span)] == noun
        first, stop = dropped.plan.offsets[number : number + 2]
        characters = dropped.tokens[number].offsets[dropped.plan.positions[first:stop]]
        assert example.text[characters[0][0] : characters[-1][1]].strip() in noun
        assert "  " not in example.text


def test_a_text_in_which_the_probed_token_would_change_is_left_out(own):
    nouns = own.rows["text"].str.split().str[2]
    texts = own.rows["label"] + " " + nouns + " of all"  # no space is before without the first word
    start = own.rows["label"].str.len() + 1
    rows = own.rows.assign(text=texts, start=start, end=start + nouns.str.len())
    with_words(own, "red\nblack", rows.assign(text=texts + own.rows.index.astype(str)))
    position = ("tokens.position={at: span}", "data.columns.start=start", "data.columns.end=end")
    with pytest.raises(DataError, match="24 more are not compared"):
        prepare(own.load(*OVERRIDES, *position))


def test_spans_are_dropped_if_another_token_is_probed(own):
    rows = own.rows.assign(start=4, end=own.rows["text"].str.find(" ", 4))
    by_word = prepare(own.load(*with_words(own, "red\nblack", rows))).further["dropped"].dataset
    columns = ("data.columns.start=start", "data.columns.end=end", "leakage={drop: spans}")
    dropped = prepare(own.load(*OVERRIDES, *columns)).further["dropped"].dataset
    assert dropped.column("text").tolist() == by_word.column("text").tolist()


NEGATIVES = [
    "\n".join(["text,group", *(f"A {n} fell,{n}" for n in range(n_groups))])
    for n_groups in (80, 90)
]
MONITOR = (*QUICK, "data.positive=red", "monitor={negatives: words.txt, fpr: [0.05]}")


@pytest.mark.parametrize(
    ("overrides", "contents"), [(OVERRIDES, ("red", "black")), (MONITOR, NEGATIVES)]
)
def test_other_words_or_negatives_give_another_run(own, overrides, contents):
    def key(words):
        with_words(own, words)
        experiment = own.load(*overrides)
        (further,) = prepare(experiment).further.values()
        return further.dataset.digest, inputs_digest(experiment, "cpu")

    first, other = map(key, contents)
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert first == key(contents[0])


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (None, MissingError, r"leakage: .*words\.txt does not exist"),
        ("", DataError, "is empty"),
        ("# red\n\n", DataError, "has no words"),
        ("redd\nre\n", DataError, "0 of 24 test texts have cues that can be dropped; 0 more"),
        ("\n".join(VERBS), DataError, "24 more are not compared, because a cue is at the probed"),
    ],
)
def test_cues_that_no_text_can_lose_are_refused(own, words, error, message):
    if words is not None:
        with_words(own, words)
    with pytest.raises(ProbekitError, match=f"(?s){message}") as raised:
        prepare(own.load(*OVERRIDES))
    assert isinstance(raised.value, error)
