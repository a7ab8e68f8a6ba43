"""Bundled experiments are found by name; local files have precedence."""

import pytest

from probekit.errors import MissingError
from probekit.experiment.loader import bundled_experiments, load_experiment
from probekit.experiment.locations import bundled_files, find_file, is_experiment


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_is_that_of_a_bundled_experiment():
    assert find_file("quickstart") == bundled_files()["quickstart"]
    assert load_experiment("quickstart").name == "quickstart"


@pytest.mark.parametrize("file", ["quickstart", "quickstart.yaml", "quickstart.yml"])
def test_a_local_file_has_precedence(elsewhere, file):
    (elsewhere / file).write_text("name: local\n")
    assert find_file("quickstart").resolve() == elsewhere / file
    assert is_experiment("quickstart")


def test_a_model_is_no_experiment():
    assert not is_experiment("mini")
    assert not is_experiment("folder/quickstart")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("quickstat", "quickstat does not exist. Nearest: quickstart"),
        ("quickstart.yaml", "Nearest: quickstart. `probekit experiments`"),
        ("folder/other.yaml", "folder/other.yaml does not exist"),
    ],
)
def test_a_missing_file_names_the_nearest(given, message):
    with pytest.raises(MissingError) as caught:
        find_file(given)
    assert message in str(caught.value)


def test_the_catalogue_has_every_file_with_its_question_and_needs():
    listed = {one.name: one for one in bundled_experiments()}
    assert set(listed) == set(bundled_files())
    assert all(one.question for one in listed.values())
    assert listed["quickstart"].needs == ()
    assert "data.root=FOLDER" in listed["ewt_upos"].needs[0]
    assert listed["gpt2_small"].needs == ("network: downloads gpt2",)
    assert listed["pretrain_mini"].command == "probekit pretrain pretrain_mini"
