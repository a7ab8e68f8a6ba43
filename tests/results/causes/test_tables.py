import json

import numpy as np
import pytest

from probekit.errors import DataError, MissingError
from probekit.results.causes import CauseTables, open_causes
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


def test_a_table_without_a_file_or_rows_is_empty_and_has_its_columns(tmp_path):
    with pytest.raises(MissingError, match=r"causes\.json does not exist"):
        CauseTables.open(tmp_path)
    assert open_causes(tmp_path) is None
    read = CauseTables.open(write_causes(tmp_path, effects=make_effects().head(0)))
    assert open_causes(tmp_path) is not None
    assert read.effects.empty
    assert read.verdicts.empty
    assert read.verdicts.columns.tolist() == make_verdicts().columns.tolist()
    assert read.verdicts["effect"].dtype == np.float64


RECORD = json.loads(make_facts().model_dump_json())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((content, "is damaged") for content in ("", "[]", "{", '{"name": 3}')),
        (json.dumps(RECORD | {"colour": 1}), "colour"),
    ],
)
def test_a_damaged_record_is_named(tmp_path, content, problem):
    write_causes(tmp_path)
    (tmp_path / "causes" / "causes.json").write_text(content)
    with pytest.raises(DataError, match=rf"(?s)causes\.json.*{problem}"):
        CauseTables.open(tmp_path)


# The cell of a column in line 4, or what is done to the file.
DAMAGE = {
    "do=destroy": ("effects", {"do": "destroy"}),
    "effect=high": ("effects", {"effect": "high"}),
    "no site": ("effects", {"site": ""}),
    "a layer beyond all networks": ("effects", {"site": "blocks.9999999.hook_resid_post"}),
    "head=-1": ("effects", {"head": -1}),
    "position=0.5": ("effects", {"position": 0.5}),
    "layer=inf": ("effects", {"layer": float("inf")}),
    "n=1.5": ("effects", {"n": 1.5}),
    "question=knows": ("verdicts", {"question": "knows"}),
    "a question twice": ("verdicts", {"question": "detects"}),
    "no answer": ("verdicts", {"answer": ""}),
    "exceeds_whole=perhaps": ("verdicts", {"exceeds_whole": "perhaps"}),
    "along=random": ("doses", {"along": "random"}),
    "erased=": ("downstream", {"erased": ""}),
    "a missing column": ("effects", "recovery"),
    "a truncated file": ("effects", b'"'),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_table_is_refused_with_its_line(tmp_path, refused, name):
    table, change = DAMAGE[name]
    rows = every_table()[table].astype(object).reset_index(drop=True)
    if isinstance(change, dict):
        rows.loc[2, list(change)] = list(change.values())
    write_causes(
        tmp_path, **{table: rows.drop(columns=change) if isinstance(change, str) else rows}
    )
    if isinstance(change, bytes):
        path = tmp_path / "causes" / f"{table}.csv"
        path.write_bytes(path.read_bytes()[:700] + change)
    refused(CauseTables.open, tmp_path)
