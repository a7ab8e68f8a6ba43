import ast
from functools import cache

from tests.slow_tests import listed


@cache
def functions(path):
    """The names of the test functions of a file, those of classes behind the class."""
    body = ast.parse(path.read_text()).body
    in_classes = {
        f"{node.name}::{inner.name}"
        for node in body
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, ast.FunctionDef)
    }
    return in_classes | {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_slow_test_is_there(repository):
    for name in listed():
        file, _, test = name.partition("::")
        path = repository / file
        assert path.is_file(), name
        if test and path.is_relative_to(repository / "tests"):
            assert test in functions(path), name
