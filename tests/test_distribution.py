import ast
import json
import re
import tomllib

import pytest

from probekit.distribution import find_origin, origin, origin_warnings
from probekit.provenance import versions

PYPROJECT = '[project]\nname = "probekit-lens"\nversion = "1.2.3"\n'


@pytest.fixture
def site(tmp_path):
    """A folder of installed packages, with the package `probekit` in it."""
    return package_in(tmp_path / "site-packages").parent


def package_in(folder):
    package = folder / "probekit"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return package


def install(site, name, version="1.0.0", files=("probekit/__init__.py",), source=None):
    """Write the metadata of a distribution; `source` is the checkout of an editable install."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if source is not None:
        content = {"url": source.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(content))


def test_the_distribution_that_installed_the_package_is_found(site):
    install(site, "other", files=["other/__init__.py"])
    install(site, "probekit-lens", "2.0.1")
    found = find_origin(site / "probekit", [str(site)])
    assert (found.name, found.version, found.checkout) == ("probekit-lens", "2.0.1", None)
    assert found.install_command("png") == "pip install 'probekit-lens[png]'"
    assert origin_warnings(site / "probekit", [str(site)]) == []


def test_a_distribution_of_another_name_is_named_in_commands(site):
    install(site, "our-fork")
    found = find_origin(site / "probekit", [str(site)])
    assert found.install_command("ray") == "pip install 'our-fork[ray]'"


def test_an_editable_install_is_found_from_its_checkout(site, tmp_path):
    checkout = tmp_path / "a folder"
    package = package_in(checkout)
    (checkout / "pyproject.toml").write_text(PYPROJECT)
    install(site, "probekit-lens", files=["_probekit_lens.pth"], source=checkout)
    install(site, "another", files=["another.pth"], source=tmp_path)
    found = find_origin(package, [str(site)])
    assert (found.is_installed, found.checkout) == (True, checkout)
    assert found.install_command("png") == "pip install 'probekit-lens[png]'"
    assert origin_warnings(package, [str(site)]) == []


def test_a_checkout_that_is_not_installed_has_the_name_and_version_of_its_project(tmp_path):
    package = package_in(tmp_path)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    found = find_origin(package, [])
    assert (found.name, found.version, found.is_installed) == ("probekit-lens", "1.2.3", False)
    assert found.install_command("png") == f"pip install -e '{tmp_path}[png]'"
    (warning,) = origin_warnings(package, [])
    assert "probekit-lens is not installed in this environment" in warning


def test_a_package_without_metadata_has_no_version(site):
    found = find_origin(site / "probekit", [str(site)])
    assert (found.name, found.version, found.is_installed) == ("probekit-lens", "unknown", False)


def test_a_second_distribution_in_the_same_folder_is_reported(site):
    install(site, "probekit", "9.0.0")  # sorted before ours
    install(site, "probekit-lens")
    assert find_origin(site / "probekit", [str(site)]).name == "probekit-lens"
    (warning,) = origin_warnings(site / "probekit", [str(site)])
    assert "the distribution probekit 9.0.0 has installed files in the same folder" in warning
    assert warning.endswith("pip uninstall probekit-lens probekit")


def test_a_package_imported_from_elsewhere_is_reported(site, tmp_path):
    install(site, "probekit-lens", "1.0.0")
    (warning,) = origin_warnings(package_in(tmp_path / "here"), [str(site)])
    assert f"probekit-lens 1.0.0 is installed in {site}" in warning
    assert str(tmp_path / "here") in warning


def test_the_distribution_has_the_name_and_version_of_the_project(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert (origin().name, origin().version) == (project["name"], project["version"])
    assert versions()["probekit"] == project["version"]


def test_messages_name_extras_through_one_function(repository):
    """A name in a text would be wrong as soon as the distribution has another one."""
    for path in (repository / "probekit").rglob("*.py"):
        if path.name != "distribution.py":
            nodes = ast.walk(ast.parse(path.read_text()))
            texts = [node.value for node in nodes if is_text(node)]
            assert not [text for text in texts if re.search(r"pip install|probekit\[", text)]


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_documents_install_extras_that_exist(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    pages = [repository / "README.md", *(repository / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    named = re.findall(r"pip install -e '\.\[([\w,]+)\]'", text)
    assert named
    assert set(",".join(named).split(",")) <= project["optional-dependencies"].keys()
    assert not re.search(r"probekit(-lens)?\[", text)
