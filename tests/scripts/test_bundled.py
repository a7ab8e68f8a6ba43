"""The committed data sets are what their generators write, are balanced, and reward no cheat."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline

from probekit.data.readers import read_dataset
from probekit.data.table import Columns
from scripts.bundled.__main__ import GENERATORS, main
from scripts.bundled.study import study_tasks

NAMES = [generate.__name__ for generate in GENERATORS]


@pytest.fixture(scope="module")
def table(repository):
    """Read a committed data set as a table of strings."""
    return lambda name: pd.read_csv(repository / "data" / f"{name}.csv", dtype=str)


def assert_independent(table, column):
    """Each value of the column goes with all labels equally often."""
    counts = pd.crosstab(table[column], table["label"]).to_numpy()
    assert np.all(counts == counts[:, :1]), column


def unigram_accuracy(table):
    """What a bag of words gets right in groups that it has not seen."""
    model = make_pipeline(CountVectorizer(token_pattern=r"\w+"), LogisticRegression(max_iter=1000))
    how = {"groups": table["group"], "cv": GroupKFold(5)}
    return cross_val_score(model, table["text"], table["label"], **how).mean()


def test_the_committed_files_are_what_the_generators_write(repository, tmp_path):
    main([str(tmp_path)])
    written = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    sets = [f"{name}.{ending}" for name in NAMES for ending in ("csv", "md")]
    sets += [f"study/{name}.csv" for name in study_tasks()]
    assert written == sorted([*sets, "ioi.csv", "greater_than.csv"])
    for name in written:
        assert (tmp_path / name).read_bytes() == (repository / "data" / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "n_rows"),
    [("subject_number", 4000), ("capitals", 300), ("previous_token", 4000), ("sentiment", 2000)],
)
def test_the_sets_are_large_balanced_and_without_duplicates(repository, table, name, n_rows):
    span = {"start": "start", "end": "end"} if "token" in name else {}
    columns = Columns(group="group", **span)
    dataset = read_dataset(repository / "data" / f"{name}.csv", format="csv", columns=columns)
    rows = table(name)
    assert len(dataset) == len(rows) >= n_rows
    assert rows["text"].is_unique
    assert_independent(rows, "group")
    assert f"{len(rows):,} rows" in (repository / "data" / f"{name}.md").read_text()


def test_only_the_subject_predicts_its_number(table):
    rows = table("subject_number")
    assert rows["group"].nunique() >= 40
    words = rows["text"].str.split()
    rows["last"], rows["opener"] = words.str[-1], words.str[0]
    rows["context"] = words.str[3:-1].str.join(" ")
    for column in ("attractor", "last", "opener", "context"):
        assert_independent(rows, column)
    # A singular subject is named by its lemma, and a plural one is not.
    for group, label, text in zip(rows["group"], rows["label"], words, strict=True):
        assert (group in text) == (label == "singular")


def test_neither_country_nor_capital_predicts_the_label(table):
    rows = table("capitals")
    rows["template"] = [
        text.replace(country, "_").replace(capital, "_")
        for text, country, capital in rows[["text", "country", "capital"]].itertuples(index=False)
    ]
    for column in ("country", "capital", "template"):
        assert_independent(rows, column)
    assert unigram_accuracy(rows) == pytest.approx(0.5, abs=0.02)
    # Each country has one capital, which is in no other group.
    true = rows[rows["label"] == "true"]
    facts = set(zip(true["country"], true["capital"], strict=True))
    assert len(facts) == len(set(true["country"])) == len(set(true["capital"]))
    assert facts >= {("France", "Paris"), ("Australia", "Canberra"), ("Kenya", "Nairobi")}
    assert len(rows[["capital", "group"]].drop_duplicates()) == len(facts)


def test_only_the_previous_word_predicts_the_label(table):
    rows = table("previous_token").astype({"start": int, "end": int})
    spans = list(rows[["text", "start", "end"]].itertuples(index=False))
    before = [text[:start].split() for text, start, _ in spans]
    assert [words[-1] for words in before] == list(rows["label"])
    labels = set(rows["label"])
    rows["word"] = [text[start:end] for text, start, end in spans]
    assert rows["word"].str.isalpha().all()
    assert_independent(rows, "word")
    others = [[word for word in words[:-1] if word in labels] for words in before]
    assert all(len(words) == 1 for words in others)
    pairs = pd.Series([words[0] for words in others]) + " " + rows["label"]
    assert pairs.value_counts().tolist() == [len(rows) / 30] * 30


def test_the_words_of_an_opinion_do_not_predict_its_label(table):
    rows = table("sentiment")
    assert_independent(rows, "construction")
    for word in set(" ".join(rows["text"]).replace(",", "").replace(".", "").split()):
        rows["has"] = rows["text"].str.contains(rf"\b{word}\b")
        assert_independent(rows, "has")
    assert unigram_accuracy(rows) == pytest.approx(0.5, abs=0.02)
    # Opinions of opposites have the same words for both labels.
    rows = rows[rows["construction"].isin(["not but", "comma not", "rather"])]
    rows = rows.assign(bag=[" ".join(sorted(re.findall(r"\w+", text))) for text in rows["text"]])
    assert len(rows) >= 500
    assert_independent(rows, "bag")


@pytest.mark.parametrize("name", study_tasks())
def test_words_solve_a_task_of_the_study_only_if_its_name_states_it(repository, name):
    rows = pd.read_csv(repository / "data" / "study" / f"{name}.csv", dtype=str)
    assert len(rows) == 160
    assert rows["group"].nunique() == 40
    assert rows["text"].is_unique
    assert rows["label"].value_counts().tolist() == [80, 80]
    score = unigram_accuracy(rows)
    assert score > 0.95 if name.startswith("words_") else score < 0.65
