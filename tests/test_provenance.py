"""Origin of the package, and the digest of its source files."""

import json
import shutil

import pytest

from probekit import provenance


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
    own = provenance.find_origin(package, [str(package.parent)])
    assert (own.name, own.version, own.checkout) == ("renamed", "1.2.3", None)
    assert own.install_command("onnx") == "pip install 'renamed[onnx]'"
    assert provenance.origin_warnings(package, [str(package.parent)]) == []


def test_an_editable_install_belongs_to_its_checkout(package):
    site = package.parents[1] / "other"
    install(site, "probekit-lens", package, editable=package.parent)
    own = provenance.find_origin(package, [str(site)])
    assert (own.name, own.is_installed) == ("probekit-lens", True)


def test_a_checkout_that_is_not_installed_names_its_folder(package):
    (package.parent / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "3.0"\n')
    own = provenance.find_origin(package, [])
    assert (own.name, own.version, own.is_installed) == ("mine", "3.0", False)
    assert own.install_command("onnx") == f"pip install -e '{package.parent}[onnx]'"


def test_a_foreign_package_of_the_same_name_is_recognised(package):
    elsewhere = package.parents[1] / "elsewhere"
    install(elsewhere, "probekit-lens", elsewhere / "probekit")
    (warning,) = provenance.origin_warnings(package, [str(elsewhere)])
    assert f"no installed distribution contains the imported package {package}" in warning
    assert f"probekit-lens 1.2.3 is installed in {elsewhere}" in warning


def test_two_distributions_in_one_folder_are_reported(package):
    for name in ("probekit-lens", "probekit"):
        install(package.parent, name, package)
    (warning,) = provenance.origin_warnings(package, [str(package.parent)])
    assert "pip uninstall probekit-lens probekit" in warning


def test_the_digest_of_sources_covers_every_source_file_and_no_place(tmp_path):
    digests = set()
    for change in ("", "# A comment.\n"):
        package = tmp_path / str(len(change)) / "probekit"
        shutil.copytree(provenance.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        with (package / "report" / "elements" / "style.py").open("a") as file:
            file.write(change)
        digests.add(provenance.digest_sources(package))
    (package / "new.py").touch()
    provenance.digest_sources.cache_clear()
    digests.add(provenance.digest_sources(package))
    assert len(digests) == 3
    assert provenance.digest_sources() in digests
