import ast

from tests.slow_tests import listed


def functions(path):
    """The names of the test functions of a file, those of classes behind the class."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{inner.name}" for inner in methods(node))
        elif isinstance(node, ast.FunctionDef):
            yield node.name


def methods(node):
    return [inner for inner in node.body if isinstance(inner, ast.FunctionDef)]


def test_every_slow_test_is_there(repository):
    for name in listed():
        file, _, test = name.partition("::")
        path = repository / file
        assert path.is_file(), name
        if test and path.is_relative_to(repository / "tests"):
            assert test in functions(path), name
