"""What a result depends on: content digests, sealed JSON files, installed versions and code.

The import name is `probekit`, but the package index has an unrelated project of that name. Messages
therefore read the name of the distribution that installed this folder.
"""

from __future__ import annotations

import ast
import json
import platform
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions, version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from blake3 import blake3

from probekit.errors import DamagedError, StoreError

FORMAT = 2  # version of all file formats of the activation store
DISTRIBUTION = "probekit-lens"  # preferred if several distributions installed this folder
PACKAGE = Path(__file__).resolve().parent
_RECORDED = ("torch", "tiktoken", "scikit-learn", "numpy", "scipy", "pandas", "plotly")
# Methods whose arguments are messages, which do not affect results.
_MESSAGES = frozenset({"tell", "warn", "echo", "debug", "info", "warning"})


def digest(chunks: Iterable[bytes | memoryview]) -> str:
    """Return the BLAKE3 digest of chunks of bytes, in hexadecimal.

    >>> digest([b"ab", b"c"]) == digest([b"abc"])
    True
    """
    hasher = blake3()
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()


def digest_json(value: Any) -> str:
    """Return the digest of a JSON value; the order of keys does not matter.

    >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    True
    """
    return digest([canonical_json(value).encode()])


def canonical_json(value: Any) -> str:
    """Return a value as JSON with sorted keys and no spaces, the text that `digest_json` hashes.

    >>> canonical_json({"b": [1.5, None], "a": "ü"})
    '{"a":"ü","b":[1.5,null]}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def pretty_json(value: Any) -> str:
    """Return indented JSON with a final newline."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def seal(content: dict[str, Any], format: int = FORMAT) -> bytes:
    """Return the bytes of a JSON file with `content`, its format version and a digest of both.

    >>> unseal(seal({"rows": 3}), "x.json")
    {'rows': 3}
    """
    numbered = {"format": format, **content}
    return pretty_json({**numbered, "seal": digest_json(numbered)}).encode()


def unseal(data: bytes, path: str, format: int = FORMAT) -> dict[str, Any]:
    """Return the content of a file written by `seal`.

    Args:
        data: the bytes of the file.
        path: the file's name in error messages.
        format: newest format version that can be read.

    Raises:
        DamagedError: the content differs from what was written.
        StoreError: the file was written by a newer release.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}.") from error
    file_format = content.pop("format", None) if isinstance(content, dict) else None
    if isinstance(file_format, int) and file_format > format:
        raise StoreError(
            f"{path} has format {file_format}; this release reads formats up to {format}. Use the "
            "release that wrote it, or a newer one."
        )
    try:
        is_sealed = file_format is not None and content.pop("seal", None) is not None
        is_sealed = is_sealed and seal(content, format) == data
    except ValueError:  # NaN, or an unpaired surrogate
        is_sealed = False
    if not is_sealed:
        raise DamagedError(f"{path} is damaged: its digest does not match its content.")
    return dict(content)


def versions() -> dict[str, str]:
    """Return the versions of Python and of all packages that affect results."""
    own = {"python": platform.python_version(), "probekit": origin().version}
    return own | {name: version(name) for name in _RECORDED}


@dataclass(frozen=True)
class Origin:
    """Where the imported package comes from.

    Attributes:
        name: name of the distribution.
        version: version of the distribution; "unknown" without its metadata.
        checkout: folder of the source code; None if the package was installed from a wheel.
        is_installed: whether a distribution installed this package, editable installs included.
    """

    name: str
    version: str
    checkout: Path | None
    is_installed: bool

    def install_command(self, extra: str) -> str:
        """Return the shell command that installs an extra next to this package.

        >>> Origin("probekit-lens", "1.0.0", None, True).install_command("png")
        "pip install 'probekit-lens[png]'"
        """
        if self.checkout is not None and not self.is_installed:
            return f"pip install -e '{self.checkout}[{extra}]'"
        return f"pip install '{self.name}[{extra}]'"


@cache
def origin() -> Origin:
    """Return where the imported package comes from.

    >>> origin().name
    'probekit-lens'
    """
    return find_origin(PACKAGE)


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra, with the name of the distribution.

    >>> install_command("png").endswith("[png]'")
    True
    """
    return origin().install_command(extra)


def find_origin(package: Path, search: Sequence[str] | None = None) -> Origin:
    """Return where a package folder comes from.

    Args:
        package: the folder.
        search: folders with the metadata of distributions; None for those of `sys.path`.
    """
    folder, project = package.parent, dict[str, Any]()
    if (folder / "pyproject.toml").is_file():
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text).get("project", {})
    checkout = folder if "name" in project else None
    owner = next(_owners(package, search), None)
    if owner is not None:
        return Origin(owner.name, owner.version, checkout, True)
    named = str(project.get("name", DISTRIBUTION))
    return Origin(named, str(project.get("version", "unknown")), checkout, False)


def origin_warnings(package: Path = PACKAGE, search: Sequence[str] | None = None) -> list[str]:
    """Return a sentence for each sign that another `probekit` than the intended one is imported.

    Args:
        package: the imported folder.
        search: folders with the metadata of distributions; None for those of `sys.path`.
    """
    own = find_origin(package, search)
    others = {one.name: one for one in _owners(package, search) if one.name != own.name}
    warnings = [
        f"the distribution {other.name} {other.version} has installed files in the same folder, "
        f"{package}. Uninstall both and install one again: pip uninstall {own.name} {other.name}"
        for other in others.values()
    ]
    if not own.is_installed:
        elsewhere = next(iter(_distributions(search, DISTRIBUTION)), None)
        found = (
            f"{elsewhere.name} {elsewhere.version} is installed in {elsewhere.locate_file('')}"
            if elsewhere
            else f"{DISTRIBUTION} is not installed in this environment"
        )
        warnings.append(
            f"no installed distribution contains the imported package {package}; {found}. Python "
            "imports the first folder `probekit` of sys.path"
        )
    return warnings


def _distributions(search: Sequence[str] | None, name: str | None = None) -> Iterable[Distribution]:
    return distributions(name=name, path=sys.path if search is None else [*search])


def _owners(package: Path, search: Sequence[str] | None) -> Iterator[Distribution]:
    """Yield the distributions that installed a folder or are an editable install of it.

    `DISTRIBUTION` comes first.
    """
    start = f"{package.name}/__init__.py"
    for distribution in chain(_distributions(search, DISTRIBUTION), _distributions(search)):
        if start in (distribution.read_text("RECORD") or ""):
            if Path(str(distribution.locate_file(start))).resolve() == package / "__init__.py":
                yield distribution
            continue
        source = json.loads(distribution.read_text("direct_url.json") or "{}")
        if source.get("dir_info", {}).get("editable", False):
            folder = Path(url2pathname(urlsplit(source["url"]).path)).resolve()
            if folder == package.parent:
                yield distribution


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

    >>> sorted(closure("probekit.files"))
    ['probekit.errors', 'probekit.files']
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
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {named for node in _run_nodes(tree) for named in _named(node)}
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


@cache
def _code(path: Path) -> str:
    """Return the source code of a file without docstrings, comments and messages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return ast.unparse(ast.fix_missing_locations(_WithoutProse().visit(tree)))


class _WithoutProse(ast.NodeTransformer):
    """Removes docstrings, and the arguments of errors and of calls that print messages."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            statements = [part for part in body if not _is_docstring(part)]
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


def _is_docstring(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)  # type: ignore[attr-defined]
