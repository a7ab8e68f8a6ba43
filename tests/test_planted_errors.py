"""The errors of `benchmarks.planted_errors` can be planted, and name existing tests."""

import ast

import pytest

from benchmarks.planted_errors import ERRORS, PlantedError, plant


def test_there_are_at_least_twelve():
    assert len({error.name for error in ERRORS}) == len(ERRORS) >= 12


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_an_error_replaces_one_passage_and_names_a_test_that_exists(error, repository):
    text = (repository / "probekit" / error.file).read_text()
    assert text.count(error.old) == 1
    assert error.new != error.old
    ast.parse(text.replace(error.old, error.new))
    file, _, function = error.test.partition("::")
    tree = ast.parse((repository / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_a_passage_that_does_not_occur_once_is_refused(tmp_path):
    (tmp_path / "probekit").mkdir()
    (tmp_path / "probekit" / "code.py").write_text("x = 1\nx = 1\n")
    error = PlantedError("twice", "code.py", "x = 1", "x = 2", "tests/test_x.py::test_x")
    with pytest.raises(ValueError, match="2 times"):
        plant(error, tmp_path)
