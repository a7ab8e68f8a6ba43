"""Data sets of folders and of the hub's local cache; no test uses the network."""

import datasets
import pandas as pd
import pytest

from probekit.data.frames import HubSection
from probekit.data.readers import read_dataset
from probekit.errors import DataError, MissingError
from tests.model.hub import GATED, connect, serving
from tests.stored import each_line

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = pd.DataFrame({"text": ["a", "b", "c"], "label": ["x", "y", "x"], "n": [1, 2, 3]})


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "arrow")


@pytest.fixture
def saved(tmp_path):
    """A folder written by `save_to_disk`, with two splits."""
    whole = datasets.Dataset.from_pandas(ROWS)
    parts = datasets.DatasetDict(train=whole.select([0, 1]), test=whole.select([2]))
    parts.save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


def read(name, split=None, revision=None, **options):
    source = HubSection.model_construct(name=name, split=split, revision=revision, **options)
    return read_dataset(source, format="hub", name="rows")


@pytest.fixture
def folders(saved, tmp_path):
    """Other folders next to the saved one: a table without splits, a file, and nothing."""
    datasets.Dataset.from_pandas(ROWS).save_to_disk(tmp_path / "one")
    for name in ("files", "empty"):
        (tmp_path / name).mkdir()
    ROWS.to_csv(tmp_path / "files" / "train.csv", index=False)
    return tmp_path


def cached(tmp_path, commit, rows=ROWS):
    """Write a commit of org/name into the hub's local cache."""
    folder = tmp_path / "hub" / "datasets--org--name" / "snapshots" / commit
    folder.mkdir(parents=True)
    rows.to_csv(folder / "train.csv", index=False)


def test_splits_tables_and_folders_of_files_are_read(folders):
    saved = f"{folders}/saved"
    train, test = (read(saved, split) for split in ("train", "test"))
    assert [e.text for e in train.examples + test.examples] == ["a", "b", "c"]
    assert train.examples[1].where == f"{saved} train index 1"
    for name in ("one", "files"):
        assert [e.label for e in read(f"{folders}/{name}").examples] == ["x", "y", "x"]


def test_a_commit_in_the_local_cache_is_read_offline(tmp_path):
    for commit, rows in ((COMMIT, ROWS), ("f" * 40, ROWS.iloc[:1])):
        cached(tmp_path, commit, rows)
        assert len(read("org/name", "train", commit)) == len(rows)


@each_line("call")
def test_what_does_not_exist_is_reported(call, folders, refused):
    cached(folders, "f" * 40)  # not the commit that is needed
    refused(eval, call, globals() | {"folders": folders})


def test_what_the_library_cannot_read_is_reported(folders):
    with pytest.raises(DataError, match=r"cannot be read: BuilderConfig 'none' not found"):
        read(f"{folders}/files", config="none")
    with pytest.raises(DataError, match=r"empty cannot be read: .*doesn't contain any data files"):
        read(f"{folders}/empty")


def test_a_gated_data_set_names_its_page(tmp_path, monkeypatch):
    (tmp_path / GATED).touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    message = r"'org/name' at revision \w+ is gated: .* on .*/datasets/org/name, then run"
    with serving(tmp_path) as (address, _):
        connect(monkeypatch, address, tmp_path / "hub")
        with pytest.raises(MissingError, match=message):
            read("org/name", "train", COMMIT)


def test_a_missing_library_is_named_with_its_extra(saved, monkeypatch, refused):
    monkeypatch.setattr("probekit.data.frames.find_spec", lambda name: None)
    refused(read, saved, "train")
