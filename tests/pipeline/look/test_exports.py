"""Files exported from a saved probe."""

import json

import numpy as np
import pandas as pd
import pytest

from probekit.errors import ConfigError, StoreError
from probekit.files import read_csv
from probekit.pipeline.look.apply import apply_probe
from probekit.pipeline.look.exports import ANSWER_FILES, check_ending, write_answers

TEXTS = ("The keys to the old, old cabinet", 'A "dog"', "=cmd|' /C calc'!A0", "-1")


@pytest.fixture(scope="module")
def readings(probe):
    return apply_probe(probe, TEXTS)


def test_tables_contain_the_predictions(probe, readings, tmp_path):
    path = write_answers(tmp_path / "a.csv", readings, probe, "text")
    table = read_csv(path)
    lines = write_answers(tmp_path / "a.jsonl", readings, probe, "text").read_text()
    rows = [json.loads(line) for line in lines.splitlines()]
    assert pd.read_csv(path)["text"].tolist() == [*TEXTS[:2], *(f"'{text}" for text in TEXTS[2:])]
    for found in (table.to_dict("records"), rows):
        assert [row["text"] for row in found] == list(TEXTS)
        assert [row["label"] for row in found] == [r.answer.label for r in readings]
        expected = [reading.answer.score for reading in readings]
        np.testing.assert_allclose([row["score"] for row in found], expected, rtol=1e-9)


def test_drafts_of_killed_processes_are_removed(probe, readings, tmp_path):
    own, other = (tmp_path / f".{name}.csv.{'0' * 16}" for name in ("a", "b"))
    own.touch()
    other.touch()
    write_answers(tmp_path / "a.csv", readings, probe, "text")
    assert not own.exists()
    assert other.exists()


def test_tokens_of_the_table_concatenate_to_the_text(probe, readings, tmp_path):
    table = read_csv(write_answers(tmp_path / "a.csv", readings, probe, "token"))
    for number, text in enumerate(TEXTS, start=1):
        rows = table[table["number"] == number]
        assert "".join(rows["token"]) == text
        assert rows["end"].iloc[-1] == len(text)


def test_unwritable_output_is_reported(probe, readings, tmp_path):
    with pytest.raises(ConfigError, match=r"\.html, \.csv, \.jsonl"):
        check_ending(tmp_path / "a.xlsx", ANSWER_FILES)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        write_answers(tmp_path / "file" / "a.csv", readings, probe, "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
