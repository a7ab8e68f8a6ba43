"""Predictions for texts as rows of a table."""

from probekit.results.network import RowPrediction, TextReading, tidy_rows


def test_rows_per_token_give_its_position():
    reading = TextReading(
        "A b", ("A", " b"), ((0, 1), (1, 3)), (RowPrediction("x", -1.0), RowPrediction("y", 2.0))
    )
    rows = tidy_rows([reading, reading], ("x", "y"), "token")
    assert [row["number"] for row in rows] == [1, 1, 2, 2]
    assert rows[1] == {
        "number": 1,
        "position": 1,
        "token": " b",
        "start": 1,
        "end": 3,
        "label": "y",
        "score": 2.0,
    }


def test_more_classes_have_a_score_each_and_numbers_no_label():
    many = TextReading("A", ("A",), ((0, 1),), (), RowPrediction("y", 3.0, (1.0, 3.0, 2.0)))
    (row,) = tidy_rows([many], ("x", "y", "z"), "text")
    assert row == {
        "number": 1,
        "text": "A",
        "label": "y",
        "score": 3.0,
        "score:x": 1.0,
        "score:y": 3.0,
        "score:z": 2.0,
    }
    number = TextReading("A", ("A",), ((0, 1),), (), RowPrediction(None, 3.0))
    assert tidy_rows([number], (), "text") == [{"number": 1, "text": "A", "score": 3.0}]


def test_a_text_without_an_answer_keeps_its_row():
    reading = TextReading("A", ("A",), ((0, 1),), (RowPrediction("x", -1.0),))
    assert tidy_rows([reading], ("x", "y"), "text")[0]["label"] is None
