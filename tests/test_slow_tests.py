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
