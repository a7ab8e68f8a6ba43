"""Prompts of known circuits: single tokens, equal lengths, balanced labels, reproducible files."""

from functools import cache

import pandas as pd
import pytest

from probekit.model.text.tokenizer import Tokenizer
from scripts.prompts import COLUMNS, FIRST_YEAR, GENERATORS, NAMES, main

CIRCUITS = list(GENERATORS)


@pytest.fixture(scope="module")
def table():
    return cache(lambda name: pd.DataFrame(GENERATORS[name](40, 3), columns=COLUMNS))


@pytest.fixture(scope="module")
def tokens(shared):
    return Tokenizer.from_pretrained(shared / "tokenizer" / "gpt2").str_tokens


@pytest.mark.parametrize("circuit", CIRCUITS)
def test_texts_and_counterfactuals_have_as_many_tokens(table, tokens, circuit):
    for row in table(circuit).to_dict("records"):
        own, other = tokens(row["text"]), tokens(row["counterfactual"])
        assert len(own) == len(other)
        assert sum(a != b for a, b in zip(own, other, strict=True)) == 1
        assert len(tokens(row["answer"])) == len(tokens(row["wrong"])) == 1
        # The answer is a token of its own after the text.
        assert tokens(row["text"] + row["answer"]) == [*own, row["answer"]]


def test_all_names_are_single_tokens(tokens):
    assert len(set(NAMES)) == len(NAMES)
    assert all(tokens(f" {name}") == [f" {name}"] for name in NAMES)


@pytest.mark.parametrize("circuit", CIRCUITS)
def test_labels_are_balanced_in_each_group(table, circuit):
    rows = table(circuit)
    counts = pd.crosstab(rows["group"], rows["label"])
    assert counts.shape == (40, 2)
    assert (counts == 4).all(axis=None)
    assert rows["text"].is_unique


def test_the_indirect_object_occurs_once(table):
    for row in table("ioi").to_dict("records"):
        answer, wrong = row["answer"].strip(), row["wrong"].strip()
        words = row["text"].replace(",", "").replace(".", "").split()
        assert (words.count(answer), words.count(wrong)) == (1, 2)
        assert (words.index(answer) < words.index(wrong)) == (row["label"] == "ABBA")
        assert set(row["group"].split("/")) == {answer, wrong}


def test_counterfactuals_of_ioi_are_rows_with_the_other_label_and_names_are_in_one_group(table):
    rows = table("ioi").set_index("text")
    other = rows.loc[rows["counterfactual"]]
    assert (other["label"].to_numpy() != rows["label"].to_numpy()).all()
    assert (other["answer"].to_numpy() == rows["wrong"].to_numpy()).all()
    names = [name for group in rows["group"].unique() for name in group.split("/")]
    assert len(set(names)) == len(names)


def test_the_answer_is_later_and_the_wrong_answer_is_not(table):
    for row in table("greater_than").to_dict("records"):
        year = row["text"].partition(" to ")[0][-2:]
        assert FIRST_YEAR < row["wrong"] < year < row["answer"]
        assert int(row["answer"]) - int(year) == int(year) - int(row["wrong"])
        assert (row["label"] == "late") == (int(year) > 50)
        start, _, end = row["text"].partition(f"{year} to ")
        assert f"{start}{FIRST_YEAR} to {end}" == row["counterfactual"]


@pytest.mark.parametrize("circuit", CIRCUITS)
def test_files_depend_on_the_seed_only(tmp_path, circuit):
    for name, seed in {"a": "0", "b": "0", "c": "1"}.items():
        main([circuit, str(tmp_path / name), "--seed", seed, "--groups", "5"])
    same, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert same == again != other
    assert len(same.splitlines()) == 1 + 5 * 8


def test_too_many_groups_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["ioi", str(tmp_path / "a.csv"), "--groups", "52"])
    assert "Allowed: 1 to 51" in capsys.readouterr().err
