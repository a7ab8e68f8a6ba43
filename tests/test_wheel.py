"""The wheel, installed in an empty environment outside the repository, and run there.

The dependencies are those of the interpreter: a .pth file puts its site-packages on the path. Each
Python process of the environment records the files that it opens; none is a file of the checkout.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

# Interpreters with the dependencies of probekit, separated as in PATH. By default those of PATH.
GIVEN = os.environ.get("PROBEKIT_PYTHONS", "")
FOUND = (shutil.which(f"python3.{minor}") for minor in range(11, 15))
OTHERS = [*filter(None, GIVEN.split(os.pathsep) if GIVEN else FOUND)]

ASK = """
import sys, importlib.util
names = ("torch", "transformers", "sklearn", "pandas", "plotly", "pydantic", "ruamel.yaml", "click")
print("%d.%d" % sys.version_info[:2], all(map(importlib.util.find_spec, names)))
print("\\n".join(path for path in sys.path if path.endswith("-packages")))
"""
WATCH = """
import os, sys
_log = os.open(os.environ["OPENED_FILES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def _watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        os.write(_log, os.fsencode(os.path.abspath(arguments[0])) + b"\\n")
sys.addaudithook(_watch)
"""
QUICKER = (
    "--set model.random_weights=false --set capture.sites=[blocks.5.hook_resid_post] "
    "--set split.folds=null --set probe.permutations=0 --set probe.C=[0.1] "
    "--set probe.description=false"
)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty working directory outside the checkout."""

    bin: Path
    packages: Path
    work: Path
    checkout: Path

    def call(self, *command, code=0):
        """Return the streams of a command, which ends with the code and opens no file of ours."""
        log = self.work.parent / "opened.txt"
        log.unlink(missing_ok=True)
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.work,
            env={
                "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(self.work.parent),
                "PROBEKIT_CACHE": str(self.work.parent / "cache"),
                "OPENED_FILES": str(log),
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        opened = {Path(line) for line in log.read_text().splitlines()}
        of_the_checkout = [path for path in opened if path.is_relative_to(self.checkout)]
        assert [path for path in of_the_checkout if "site-packages" not in path.parts] == []
        return done

    def files(self):
        """The installed files with their times of change."""
        found = (self.packages / "probekit").rglob("*")
        return {path: path.stat().st_mtime_ns for path in found if path.is_file()}


def about(python):
    """Version of an interpreter, whether it has the dependencies, and its site-packages."""
    run = [python, "-c", ASK]
    if not Path(python).is_file():
        return "none", False, []
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=Path(python).parent)
    first, *folders = done.stdout.splitlines() or ["none False"]
    version, is_complete = first.split()
    return version, is_complete == "True", folders


@pytest.fixture(scope="session")
def wheel(repository, tmp_path_factory):
    """The wheel, built without network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=repository, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def other_python():
    """A complete interpreter of another version; the test is skipped if there is none."""
    own = about(sys.executable)[0]
    for python in OTHERS:
        version, is_complete, _ = about(python)
        if is_complete and version != own:
            return python
    return pytest.skip(
        f"the wheel is tested with Python {own} only: no other Python has the dependencies. Set "
        "PROBEKIT_PYTHONS to the interpreter of an environment that has them"
    )


@pytest.fixture(
    scope="module",
    params=["this Python", pytest.param("another Python", marks=pytest.mark.nightly)],
)
def installed(request, wheel, repository, tmp_path_factory):
    """The wheel in an empty environment, for this Python and another one."""
    python = sys.executable if request.param == "this Python" else other_python()
    folder = tmp_path_factory.mktemp("environment")
    work, venv = folder / "work", folder / "venv"
    work.mkdir()
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True, cwd=folder)
    new = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", new, "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True, cwd=folder, stdin=subprocess.DEVNULL)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(about(python)[2]))
    (packages / "watch_opened_files.py").write_text(WATCH)
    (packages / "watch.pth").write_text("import watch_opened_files\n")
    return Installed(venv / "bin", packages, work, repository)


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_it_contains_the_experiments_schemas_and_data(installed, repository):
    for folder in ("experiments", "data"):
        bundled = installed.packages / "probekit" / "bundled" / folder
        assert contents(bundled) == contents(repository / folder)
    names = {path.stem for path in (repository / "experiments").glob("*.yaml")}
    listed = installed.call("probekit", "experiments").stdout
    # A line that begins with spaces continues the one before it.
    table = listed.partition("Run one by name")[0].splitlines()[1:]
    lines = [line for line in table if not line.startswith(" ")]
    assert names == {line.split()[0] for line in lines}


def test_the_version_names_the_distribution_and_the_folder(installed):
    done = installed.call("probekit", "--version")
    first, package, *_ = done.stdout.splitlines()
    assert first.startswith("probekit-lens ")
    assert package.split() == ["package", str(installed.packages / "probekit")]
    assert done.stderr == ""
    code = "from probekit.provenance import install_command; print(install_command('onnx'))"
    assert installed.call("python", "-c", code).stdout == "pip install 'probekit-lens[onnx]'\n"


def test_a_new_question_is_validated_and_run(installed):
    before = installed.files()
    done = installed.call("probekit", "init", "my_question")
    commands = [line.split() for line in done.stdout.splitlines() if line.startswith("  probekit")]
    assert commands == [["probekit", verb, "my_question.yaml"] for verb in ("validate", "run")]
    assert installed.call(*commands[0]).stdout.splitlines()[-1] == "ok"
    report = installed.call(*commands[1], *QUICKER.split()).stdout.splitlines()[-1]
    assert report.startswith("runs/my_question/")
    assert (installed.work / report).is_file()
    assert installed.files() == before  # nothing is written to site-packages


def test_a_bundled_experiment_runs_by_name(installed):
    done = installed.call("probekit", "run", "capitals", *QUICKER.split())
    assert (installed.work / done.stdout.splitlines()[-1]).is_file()
    done = installed.call("probekit", "run", "capitols", code=3)
    assert "Nearest: capitals." in done.stderr


def test_a_command_that_opens_a_file_of_the_checkout_is_noticed(installed, repository):
    installed.call("python", "-c", "import probekit.errors")
    file = repository / "pyproject.toml"
    with pytest.raises(AssertionError, match=re.escape(str(file))):
        installed.call("python", "-c", f"open({str(file)!r})")
