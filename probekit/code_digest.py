"""Digest of the code that computes a result, so that changed code invalidates cached results."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from probekit.provenance import digest_json

# Methods whose arguments are messages, which do not affect results.
_MESSAGES = frozenset({"tell", "warn", "echo", "debug", "info", "warning"})


def digest_code(*roots: str) -> str:
    """Return one digest of the code of modules and of everything they import from their package.

    Imports inside functions and import paths declared as strings count; imports for type checkers
    do not. Docstrings, comments, formatting and the text of errors and messages are left out.

    Args:
        roots: dotted names of the modules.

    >>> digest_code("probekit.errors") == digest_code("probekit.errors")
    True
    """
    return digest_json({name: _code(path) for name, path in closure(*roots).items()})


def closure(*roots: str) -> dict[str, Path]:
    """Return the source files of modules and of everything they import from their package.

    Indirect imports are included. The keys are dotted module names.

    >>> sorted(closure("probekit.disk"))
    ['probekit.disk', 'probekit.errors']
    """
    files: dict[str, Path] = {}
    waiting = [*roots]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        assert path is not None, name
        if name not in files:
            files[name] = path
            waiting += _imports(name)
    return dict(sorted(files.items()))


@cache
def _source(name: str) -> Path | None:
    """Return the source file of a module inside a package; None if there is no such module.

    Nothing is imported. The result is also None for an object in a module, such as a class.
    """
    package, *parts = name.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None or not parts:
        return None
    path = Path(spec.origin).parent.joinpath(*parts).with_suffix(".py")
    return path if path.is_file() else None


@cache
def _imports(name: str) -> frozenset[str]:
    """Return the names of the modules that a module imports from its own package."""
    package, path = name.partition(".")[0], _source(name)
    assert path is not None, name
    names = {named for node in _run_nodes(_parsed(path)) for named in _named(node)}
    return frozenset(one for one in names if one.partition(".")[0] == package and _source(one))


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a tree except those under `if TYPE_CHECKING`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from (part for other in node.orelse for part in ast.walk(other))
        else:
            yield node
            yield from _run_nodes(node)


def _named(node: ast.AST) -> Iterator[str]:
    """Yield the names in a node that may be modules: imports, and strings such as `a.b:Name`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.partition(":")[0]


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _code(path: Path) -> str:
    """Return the source code of a file without docstrings, comments and messages."""
    return ast.unparse(ast.fix_missing_locations(_WithoutProse().visit(_parsed(path))))


class _WithoutProse(ast.NodeTransformer):
    """Removes docstrings, and the arguments of errors and of calls that print messages."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # A bare string is a docstring or a comment.
            statements = [part for part in body if not _is_string(part)]
            node.body = statements or [ast.Pass()]  # type: ignore[attr-defined]  # it has a body

        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MESSAGES:
            node.args, node.keywords = [], []
        return self.generic_visit(node)


def _is_string(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
