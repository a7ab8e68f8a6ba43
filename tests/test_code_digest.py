"""A code digest changes exactly when the computation of a module changes."""

import sys
from itertools import count

import pytest

from probekit import code_digest
from probekit.code_digest import closure, digest_code

MODULE = '''"""A module."""
from __future__ import annotations

from typing import TYPE_CHECKING

from {package}.inner import deep

if TYPE_CHECKING:
    from {package} import types

TABLE = {{"kind": "{package}.declared:Kind"}}


def scale(x, watcher):
    """Return twice x."""
    from {package}.inner.late import limit

    if x > limit:
        raise ValueError(f"{{x}} is too large")
    watcher.tell("scaled")
    return 2 * x  # two
'''
NUMBERS = count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a package of five modules with a unique name."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    folder = tmp_path / f"known{next(NUMBERS)}"
    (folder / "inner").mkdir(parents=True)
    for name in ("", "inner"):
        (folder / name / "__init__.py").touch()
    (folder / "root.py").write_text(MODULE.format(package=folder.name))
    (folder / "inner" / "deep.py").write_text("x = 1\n")
    (folder / "inner" / "late.py").write_text("limit = 9\n")
    (folder / "declared.py").write_text("class Kind:\n    pass\n")
    (folder / "types.py").write_text("Kind = int\n")
    return folder


def digest_anew(package):
    for known in (code_digest._source, code_digest._imports, code_digest._code):
        known.cache_clear()
    return digest_code(f"{package.name}.root")


def test_imports_in_functions_and_in_tables_count_and_those_for_types_do_not(package):
    names = [name.removeprefix(f"{package.name}.") for name in closure(f"{package.name}.root")]
    assert names == ["declared", "inner.deep", "inner.late", "root"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("twice x", "x, doubled"),
        ("  # two", ""),
        ("2 * x", "(2 * x)"),
        ("is too large", "is above the limit"),
        ('"scaled"', '"done"'),
        ('"""A module."""', ""),
    ],
)
def test_prose_and_layout_do_not_count(package, old, new):
    first = digest_anew(package)
    path = package / "root.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert digest_anew(package) == first


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("root.py", "2 * x", "3 * x"),
        ("root.py", "ValueError", "KeyError"),
        ("inner/deep.py", "1", "2"),
        ("inner/late.py", "9", "8"),
        ("declared.py", "pass", "size = 1"),
    ],
)
def test_a_changed_constant_changes_the_digest_of_every_importer(package, name, old, new):
    first = digest_anew(package)
    path = package / name
    path.write_text(path.read_text().replace(old, new))
    assert digest_anew(package) != first


def test_a_module_newly_imported_is_in_it(package):
    path = package / "inner" / "late.py"
    path.write_text(f"from {package.name}.types import Kind\n" + path.read_text())
    digest_anew(package)
    assert f"{package.name}.types" in closure(f"{package.name}.root")


def test_a_change_for_type_checkers_alone_does_not_count(package):
    first = digest_anew(package)
    (package / "types.py").write_text("Kind = float\n")
    assert digest_anew(package) == first
