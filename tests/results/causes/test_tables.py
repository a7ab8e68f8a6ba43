import json

import numpy as np
import pytest

from probekit.errors import DataError, MissingError
from probekit.results.causes import CauseTables, has_causes
from tests.results.causes.made_causes import (
    every_table,
    make_effects,
    make_facts,
    make_verdicts,
    write_causes,
)


def test_written_tables_are_read_back_with_their_types(tmp_path):
    tables = every_table()
    read = CauseTables.open(write_causes(tmp_path, **tables))
    assert read.record == make_facts()
    assert read.effects["effect"].tolist() == tables["effects"]["effect"].tolist()
    assert read.effects["head"].dtype == np.float64
    assert read.verdicts["exceeds_whole"].tolist() == [False] * len(tables["verdicts"])
    assert read.doses["by"].max() == 4
    assert list(read.downstream.columns) == list(tables["downstream"].columns)


def test_a_table_without_a_file_is_empty_and_has_its_columns(tmp_path):
    assert not has_causes(tmp_path)
    read = CauseTables.open(write_causes(tmp_path, effects=make_effects()))
    assert has_causes(tmp_path)
    assert read.verdicts.empty
    assert read.verdicts.columns.tolist() == make_verdicts().columns.tolist()
    assert read.verdicts["effect"].dtype == np.float64


def test_a_file_with_a_header_alone_is_an_empty_table(tmp_path):
    tables = {name: table.head(0) for name, table in every_table().items()}
    read = CauseTables.open(write_causes(tmp_path, **tables))
    assert all(len(getattr(read, name)) == 0 for name in tables)


def test_a_run_without_interventions_is_missing(tmp_path):
    with pytest.raises(MissingError, match=r"causes\.json does not exist"):
        CauseTables.open(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"name": 3}'])
def test_a_damaged_record_is_named(tmp_path, content):
    write_causes(tmp_path)
    (tmp_path / "causes" / "causes.json").write_text(content)
    with pytest.raises(DataError, match=r"causes\.json is damaged"):
        CauseTables.open(tmp_path)


def test_an_unknown_key_of_the_record_is_named(tmp_path):
    write_causes(tmp_path)
    path = tmp_path / "causes" / "causes.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": 1}))
    with pytest.raises(DataError, match="colour"):
        CauseTables.open(tmp_path)


def test_a_missing_column_is_named(tmp_path):
    write_causes(tmp_path, effects=make_effects().drop(columns="recovery"))
    with pytest.raises(DataError, match=r"effects\.csv, line 1: no column 'recovery'"):
        CauseTables.open(tmp_path)


@pytest.mark.parametrize(
    ("table", "column", "cell"),
    [
        ("effects", "do", "destroy"),
        ("effects", "effect", "high"),
        ("effects", "site", ""),
        ("effects", "site", "blocks.9999999.hook_resid_post"),
        ("effects", "head", -1),
        ("effects", "position", 0.5),
        ("effects", "layer", float("inf")),
        ("effects", "n", 1.5),
        ("verdicts", "question", "knows"),
        ("verdicts", "answer", ""),
        ("verdicts", "exceeds_whole", "perhaps"),
        ("doses", "along", "random"),
        ("downstream", "erased", ""),
    ],
)
def test_an_invalid_cell_is_named_with_its_line(tmp_path, table, column, cell):
    tables = every_table()
    own = tables[table].astype(object).reset_index(drop=True)
    own.loc[2, column] = cell
    write_causes(tmp_path, **tables | {table: own})
    with pytest.raises(DataError, match=rf"{table}\.csv, line 4, column '{column}'"):
        CauseTables.open(tmp_path)


def test_two_verdicts_on_one_question_are_damage(tmp_path):
    verdicts = make_verdicts()
    verdicts.loc[1, "question"] = "detects"
    write_causes(tmp_path, verdicts=verdicts)
    with pytest.raises(DataError, match="line 3, column 'question': 'detects'"):
        CauseTables.open(tmp_path)


def test_a_truncated_table_is_damage(tmp_path):
    write_causes(tmp_path, effects=make_effects())
    path = tmp_path / "causes" / "effects.csv"
    path.write_bytes(path.read_bytes()[:700] + b'"')
    with pytest.raises(DataError, match=r"effects\.csv"):
        CauseTables.open(tmp_path)
