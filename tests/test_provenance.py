"""Origin of the package, and digests of its code."""

import json
import sys
from itertools import count

import pytest

from probekit import provenance
from probekit.provenance import closure, digest_code, find_origin, install_command, origin_warnings


def install(site, name, package, *, editable=None):
    """Write the metadata of a distribution; the package folder itself is made by the caller."""
    info = site / f"{name.replace('-', '_')}-1.2.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    record = "" if editable else f"{package.name}/__init__.py,,\n"
    (info / "RECORD").write_text(record)
    if editable:
        source = {"url": editable.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(source))


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "site" / "probekit"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    return folder


def test_an_installed_package_names_its_distribution(package):
    install(package.parent, "renamed", package)
    own = find_origin(package, [str(package.parent)])
    assert (own.name, own.version, own.checkout) == ("renamed", "1.2.3", None)
    assert own.install_command("png") == "pip install 'renamed[png]'"
    assert origin_warnings(package, [str(package.parent)]) == []


def test_an_editable_install_belongs_to_its_checkout(package):
    site = package.parents[1] / "other"
    install(site, "probekit-lens", package, editable=package.parent)
    own = find_origin(package, [str(site)])
    assert (own.name, own.is_installed) == ("probekit-lens", True)


def test_a_checkout_that_is_not_installed_names_its_folder(package):
    (package.parent / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "3.0"\n')
    own = find_origin(package, [])
    assert (own.name, own.version, own.is_installed) == ("mine", "3.0", False)
    assert own.install_command("png") == f"pip install -e '{package.parent}[png]'"


def test_a_foreign_package_of_the_same_name_is_recognised(package):
    elsewhere = package.parents[1] / "elsewhere"
    install(elsewhere, "probekit-lens", elsewhere / "probekit")
    (warning,) = origin_warnings(package, [str(elsewhere)])
    assert f"no installed distribution contains the imported package {package}" in warning
    assert f"probekit-lens 1.2.3 is installed in {elsewhere}" in warning


def test_two_distributions_in_one_folder_are_reported(package):
    for name in ("probekit-lens", "probekit"):
        install(package.parent, name, package)
    (warning,) = origin_warnings(package, [str(package.parent)])
    assert "pip uninstall probekit-lens probekit" in warning


def test_the_name_is_that_of_the_project():
    assert "probekit-lens[png]" in install_command("png") or "-e" in install_command("png")


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
def sources(tmp_path, monkeypatch):
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


def digest_anew(sources):
    for known in (provenance._source, provenance._imports, provenance._code):
        known.cache_clear()
    return digest_code(f"{sources.name}.root")


def test_imports_in_functions_and_in_tables_count_and_those_for_types_do_not(sources):
    names = [name.removeprefix(f"{sources.name}.") for name in closure(f"{sources.name}.root")]
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
def test_prose_and_layout_do_not_count(sources, old, new):
    first = digest_anew(sources)
    path = sources / "root.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert digest_anew(sources) == first


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
def test_a_changed_constant_changes_the_digest_of_every_importer(sources, name, old, new):
    first = digest_anew(sources)
    path = sources / name
    path.write_text(path.read_text().replace(old, new))
    assert digest_anew(sources) != first


def test_a_module_newly_imported_is_in_it(sources):
    path = sources / "inner" / "late.py"
    path.write_text(f"from {sources.name}.types import Kind\n" + path.read_text())
    digest_anew(sources)
    assert f"{sources.name}.types" in closure(f"{sources.name}.root")


def test_a_change_for_type_checkers_alone_does_not_count(sources):
    first = digest_anew(sources)
    (sources / "types.py").write_text("Kind = float\n")
    assert digest_anew(sources) == first
