"""Locations in experiment files: relative to the file, or with --set to the working directory."""

from pathlib import Path

import pytest

from probekit.experiment.loader import load_experiment
from tests.experiment.files import GOOD


def test_folders_are_relative_to_the_file_or_for_overrides_to_the_working_directory(
    write, monkeypatch, tmp_path
):
    path = write(GOOD + "")
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    assert load_experiment(path).data.root == str(tmp_path)
    assert load_experiment(path, ["data.root=sub"]).data.root == str(here / "sub")


@pytest.fixture
def source_of(write, monkeypatch, tmp_path):
    """Return the parsed `model.source` from a file in one folder, or from --set in another."""
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)

    def source_of(text, *, by_set=False):
        if by_set:
            return load_experiment(write(GOOD), [f"model.source={text}"]).model.source
        path = write(GOOD.replace("source: mini", f"source: {text}"))
        return load_experiment(path).model.source

    return source_of


def test_source_is_a_folder_if_the_path_exists(source_of, tmp_path):
    for folder in ("org/mine", "elsewhere/org/yours"):
        (tmp_path / folder).mkdir(parents=True)
    assert source_of("org/mine") == str(tmp_path / "org/mine")
    assert source_of("org/yours") == "org/yours"
    assert source_of("org/yours", by_set=True) == str(tmp_path / "elsewhere/org/yours")
    assert source_of("org/mine", by_set=True) == "org/mine"
    assert source_of(str(tmp_path / "org")) == str(tmp_path / "org")


def test_source_that_begins_like_a_path_is_always_a_folder(source_of, tmp_path):
    assert source_of("./model") == str(tmp_path / "model")
    assert source_of("./model", by_set=True) == str(tmp_path / "elsewhere/model")
    assert source_of("../model") == str(tmp_path.parent / "model")
    assert source_of("~/model") == str(Path("~/model").expanduser())


@pytest.mark.parametrize("name", ["mini", "gpt2", "gpt2-xl"])
def test_known_model_name_is_never_a_folder(source_of, tmp_path, name):
    (tmp_path / name).mkdir()
    assert source_of(name) == name
    assert source_of(f"./{name}") == str(tmp_path / name)
