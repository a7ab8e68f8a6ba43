"""Every block of the README runs; what it names is there."""

import doctest
import re
import shlex
import sys

import pytest

from probekit.cli.main import main
from tests.documents import blocks, commands, write_data


@pytest.fixture(scope="session")
def readme(repository):
    return (repository / "README.md").read_text()


def test_it_is_short(readme):
    assert len(readme.splitlines()) <= 150


def test_the_python_runs_with_the_output_shown(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(
        str(repository / "README.md"), module_relative=False, optionflags=options
    )
    assert result.attempted >= 5
    assert result.failed == 0


@pytest.fixture
def workplace(tmp_path, repository, readme, monkeypatch):
    """A folder with the README's own YAML, a CSV that fits it, and the shipped experiments."""
    yaml, *_ = blocks(readme, "yaml")
    (tmp_path / "my_question.yaml").write_text(yaml)
    write_data(tmp_path)
    for name in ("experiments", "data"):
        (tmp_path / name).symlink_to(repository / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_every_command_runs(readme, workplace, monkeypatch, capsys):
    first, *others = commands(readme)
    assert first == "make quickstart"
    for command in others:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in (0, None), f"{command}: {capsys.readouterr().err}"
    assert len(list(workplace.glob("runs/my_question/*/report.html"))) == 1


def test_files_that_are_named_are_there(readme, repository):
    named = re.findall(
        r"`((?:probekit|docs|experiments|data|model|probes|report)/[\w./]+)`", readme
    )
    for name in named:
        found = (repository / name).exists() or (repository / "probekit" / name).exists()
        assert found, name
    listed = set(re.findall(r"^\| `(\w+\.yaml)` \|", readme, re.MULTILINE))
    assert listed == {path.name for path in (repository / "experiments").glob("*.yaml")}


def test_the_commands_of_its_table_of_tests_are_those_of_make_and_ci(readme, repository):
    named = re.findall(r"^\| `make (\w+)`", readme, re.MULTILINE)
    targets = re.findall(r"^(\w+):", (repository / "Makefile").read_text(), re.MULTILINE)
    assert set(named) == {"check", "test", "nightly"} <= set(targets)
    assert (repository / ".ci" / "run").read_text().endswith("\nmake test\nmake quickstart\n")
