"""The list of slow tests names tests that exist."""

import ast
from functools import cache

from tests.slow_tests import AT_NIGHT, listed


@cache
def names(path):
    """The names of the functions and classes of a file."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_every_slow_test_is_there(repository):
    for name in [*listed(), *AT_NIGHT]:
        file, _, test = name.partition("[")[0].partition("::")
        path = repository / file
        assert path.is_file(), name
        if test and path.is_relative_to(repository / "tests"):
            assert set(test.split("::")) <= names(path), name


def test_every_table_of_a_test_has_its_test(repository):
    """Tables are next to the files of their tests; see `tests.stored.each_line`."""
    for table in (repository / "tests").rglob("test_*.txt"):
        headings = {line[2:] for line in table.read_text("utf-8").splitlines() if line[:2] == "# "}
        assert headings <= names(table.with_suffix(".py")), table
