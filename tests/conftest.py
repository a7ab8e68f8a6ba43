"""Fixtures that every test may use."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from probekit.cli.main import main
from tests.slow_tests import pytest_addoption as pytest_addoption
from tests.slow_tests import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.slow_tests import pytest_configure as pytest_configure
from tests.stored import refused as refused
from tests.training.recipes import tiny_recipe, write_corpus

# Tests run side by side, one to a core; and the last bits of a product depend on its threads.
torch.set_num_threads(1)

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data next to the checkout; tests that need it are skipped without it."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(
            "../shared (real weights, vocabularies and treebanks) is not next to this checkout"
        )
    return folder


@pytest.fixture
def corpus(tmp_path):
    """A folder of two texts to pretrain on."""
    return write_corpus(tmp_path / "texts")


@pytest.fixture
def make_recipe(corpus):
    """A function that returns the recipe of a tiny pretraining run with some values changed."""
    return partial(tiny_recipe, corpus)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A function that runs a command in the test's folder, in this process.

    It returns the exit code and what was written to each stream.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["probekit", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        streams = capsys.readouterr()
        return SimpleNamespace(code=end.value.code or 0, stdout=streams.out, stderr=streams.err)

    return call
