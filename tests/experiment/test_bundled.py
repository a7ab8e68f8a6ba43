import os
from pathlib import Path

import pytest

from probekit.errors import MissingError
from probekit.experiment.bundled import bundled_files, bundled_folder, find_file, is_experiment
from probekit.experiment.loader import load_experiment


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_refers_to_the_bundled_experiment(folder, repository):
    assert find_file("quickstart") == repository / "experiments" / "quickstart.yaml"
    data = load_experiment("quickstart").data
    assert (Path(data.root) / data.file).is_file()


@pytest.mark.parametrize("name", ["quickstart.yaml", "quickstart.yml", "quickstart"])
def test_a_local_file_has_precedence(folder, name):
    (folder / name).touch()
    assert find_file("quickstart") == Path(name)


def test_a_local_folder_does_not_hide_a_bundled_experiment(folder):
    (folder / "quickstart").mkdir()
    assert find_file("quickstart") == bundled_files()["quickstart"]


def test_an_installed_package_contains_its_experiments(tmp_path):
    package = tmp_path / "probekit"
    assert bundled_folder(package) == tmp_path / "experiments"
    (package / "bundled" / "experiments").mkdir(parents=True)
    assert bundled_folder(package) == package / "bundled" / "experiments"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("quickstrt", r"no bundled experiment 'quickstrt'. Nearest: quickstart\."),
        ("my_questoin", r"Nearest: my_question\.yaml\."),
        ("mine/capitals.yaml", "does not exist. For the bundled experiment, .* alone: capitals"),
        ("my_questoin.yaml", r"my_questoin\.yaml does not exist. Nearest: my_question\.yaml\."),
        ("none/my.yaml", r"none.my\.yaml does not exist\.$"),
        ("x" * 5000, "There is no file"),
        ("x\0", "There is no file"),
    ],
)
def test_a_missing_file_is_answered_with_the_nearest_names(folder, given, message):
    (folder / "my_question.yaml").touch()
    with pytest.raises(MissingError, match=message):
        find_file(given)


def test_a_pipe_is_read(folder):
    os.mkfifo(folder / "pipe")
    assert find_file("./pipe") == Path("pipe")


def test_a_model_is_no_experiment(folder):
    assert not is_experiment("mini")
    assert not is_experiment("gpt2")
    assert is_experiment("capitals")
    assert is_experiment("nothing.yaml")
    (folder / "mini.yaml").touch()
    assert not is_experiment(Path("models/mini"))
