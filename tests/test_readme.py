"""What the README names is there; test_docs.py runs its blocks."""

import re

import pytest

from tests.documents import commands


@pytest.fixture(scope="session")
def readme(repository):
    return (repository / "README.md").read_text()


def test_it_is_short(readme):
    assert len(readme.splitlines()) <= 150
    assert readme.count(">>> ") >= 5


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
    assert commands(readme)[0] == "make quickstart"
    assert (repository / ".ci" / "run").read_text().endswith("\nmake test\nmake quickstart\n")
