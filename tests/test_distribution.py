"""Messages name the distribution that is installed, and a foreign `probekit` is recognised."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from probekit.distribution import PACKAGE, find_origin, install_command, origin_warnings


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


@pytest.fixture(scope="module")
def installed(tmp_path_factory, repository):
    """The Python of an environment outside the checkout, in which the wheel is installed.

    Its other packages are those of this environment; the checkout is not on its path.
    """
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=repository, check=True, capture_output=True)
    (wheel,) = folder.glob("probekit_lens-*.whl")
    venv.create(folder / "env", symlinks=sys.platform != "win32")
    scripts, name = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
    python = folder / "env" / scripts / name
    (site,) = (folder / "env").glob("**/site-packages")
    others = Path(pytest.__file__).parents[1]
    install_wheel = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install_wheel += ["--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install_wheel, check=True, capture_output=True)
    # Not as a .pth file: those of the other packages would put the checkout on the path.
    (site / "others.pth").write_text(f"import sys; sys.path.append({str(others)!r})\n")
    return python


def call(python, folder, *arguments):
    return subprocess.run(
        [str(python), "-m", "probekit", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_wheel_runs_outside_the_checkout(installed, tmp_path, repository):
    version = call(installed, tmp_path, "--version")
    assert version.stdout.startswith("probekit-lens ")
    assert str(repository) not in version.stdout
    assert version.stderr == ""
    listed = call(installed, tmp_path, "experiments").stdout
    assert "quickstart" in listed
    assert "Can the number of the subject be decoded" in listed
    assert call(installed, tmp_path, "init", "mine").returncode == 0
    assert call(installed, tmp_path, "validate", "mine.yaml").returncode == 0
    quick = ["--set", "capture.sites=[blocks.3.hook_resid_post]", "--set", "split.folds=2"]
    quick += ["--set", "model.random_weights=false", "--set", "attention.texts=[]"]
    done = call(installed, tmp_path, "run", "quickstart", *quick)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]).is_relative_to("runs")
    assert (tmp_path / "runs" / "quickstart").is_dir()


def test_the_installed_package_is_never_written_to(installed):
    assert not [path for path in PACKAGE.rglob("runs") if path.is_dir()]
    (package,) = installed.parents[1].glob("**/site-packages/probekit")
    assert {path.name for path in (package / "bundled").iterdir()} == {"data", "experiments"}
