"""Locations of bundled experiments, and those in files: relative to the file or to the folder."""

import os
from pathlib import Path

import pytest

from probekit.errors import ConfigError
from probekit.experiment.example import bundled_experiments
from probekit.experiment.loader import load_experiment, load_recipe
from probekit.experiment.locations import bundled_files, find_file, is_experiment
from tests.experiment.files import GOOD, RECIPE


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working directory, which is not the folder of the file."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


def test_a_name_is_that_of_a_bundled_experiment():
    assert find_file("quickstart") == bundled_files()["quickstart"]
    assert load_experiment("quickstart").name == "quickstart"
    assert not is_experiment("mini")  # a model
    assert not is_experiment("folder/quickstart")


@pytest.mark.parametrize("file", ["quickstart", "quickstart.yaml", "quickstart.yml"])
def test_a_local_file_has_precedence(here, file):
    (here / file).write_text("name: local\n")
    assert find_file("quickstart").resolve() == here / file
    assert is_experiment("quickstart")


@pytest.mark.parametrize("given", ["quickstat", "quickstart.yaml", "folder/other.yaml"])
def test_a_missing_file_names_the_nearest(refused, given):
    refused(find_file, given)


def test_the_catalogue_has_every_file_with_its_question_and_needs():
    listed = {one.name: one for one in bundled_experiments()}
    assert set(listed) == set(bundled_files())
    assert all(one.question for one in listed.values())
    assert listed["quickstart"].needs == ()
    assert "data.root=FOLDER" in listed["ewt_upos"].needs[0]
    assert listed["gpt2_small"].needs == ("network: downloads gpt2",)
    assert listed["pretrain_mini"].command == "probekit pretrain pretrain_mini"


def test_data_are_relative_to_the_file_and_overrides_to_the_current_folder(write, here, tmp_path):
    path = write(GOOD)
    assert load_experiment(path).data.root == str(tmp_path)
    assert load_experiment(path, ["data.root=sub"]).data.root == str(here / "sub")


def test_a_folder_whose_name_is_not_utf8_is_refused(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "x.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"not a valid path \(surrogates not allowed\)"):
        load_experiment(folder / "x.yaml")


@pytest.fixture
def source_of(write):
    """Return the parsed `model.source` from a file in one folder, or from --set in another."""

    def source_of(text, *, by_set=False):
        if by_set:
            return load_experiment(write(GOOD), [f"model.source={text}"]).model.source
        return load_experiment(write(GOOD.replace("source: mini", f"source: {text}"))).model.source

    return source_of


def test_source_is_a_folder_if_the_path_exists(source_of, here, tmp_path):
    for folder in ("org/mine", "elsewhere/org/yours"):
        (tmp_path / folder).mkdir(parents=True)
    assert source_of("org/mine") == str(tmp_path / "org/mine")
    assert source_of("org/yours") == "org/yours"
    assert source_of("org/yours", by_set=True) == str(here / "org/yours")
    assert source_of("org/mine", by_set=True) == "org/mine"
    assert source_of(str(tmp_path / "org")) == str(tmp_path / "org")


def test_source_that_begins_like_a_path_is_always_a_folder(source_of, here, tmp_path):
    assert source_of("./model") == str(tmp_path / "model")
    assert source_of("./model", by_set=True) == str(here / "model")
    assert source_of("../model") == str(tmp_path.parent / "model")
    assert source_of("~/model") == str(Path("~/model").expanduser())


@pytest.mark.parametrize("name", ["mini", "gpt2", "gpt2-xl"])
def test_known_model_name_is_never_a_folder(source_of, tmp_path, name):
    (tmp_path / name).mkdir()
    assert source_of(name) == name
    assert source_of(f"./{name}") == str(tmp_path / name)


def test_paths_of_a_recipe_are_relative_to_its_folder(write, tmp_path):
    assert load_recipe(write(RECIPE)).corpus.source == str(tmp_path / "books")
    (tmp_path / "other").mkdir()
    for given, source in {"other": str(tmp_path / "other"), "mini": "mini"}.items():
        recipe = load_recipe(write(f"{RECIPE}vocabulary: {{source: {given}}}\n"))
        assert recipe.vocabulary.source == source
