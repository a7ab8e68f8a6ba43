"""Data sets of folders and of the hub's local cache; no test uses the network."""

import datasets
import pandas as pd
import pytest

from probekit.data.hub import HubData
from probekit.data.readers import read_dataset
from probekit.errors import ConfigError, DataError, MissingError
from tests.model.hub import GATED, connect, serving

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


def read(*args, **options):
    return read_dataset(HubData(*args, **options), format="hub", name="rows")


def test_a_split_of_a_saved_data_set_is_read(saved):
    train, test = (read(saved, split) for split in ("train", "test"))
    assert [e.text for e in train.examples + test.examples] == ["a", "b", "c"]
    assert train.examples[1].where == f"{saved} train index 1"


def test_a_saved_table_has_no_splits(tmp_path):
    datasets.Dataset.from_pandas(ROWS).save_to_disk(tmp_path / "one")
    assert len(read(str(tmp_path / "one"))) == 3
    with pytest.raises(ConfigError, match=r"a single table without splits, .* 'train'\. Remove"):
        read(str(tmp_path / "one"), "train")


def test_a_folder_of_files_is_read(tmp_path):
    (tmp_path / "files").mkdir()
    ROWS.to_csv(tmp_path / "files" / "train.csv", index=False)
    assert [e.label for e in read(str(tmp_path / "files")).examples] == ["x", "y", "x"]
    with pytest.raises(DataError, match=r"cannot be read: BuilderConfig 'none' not found"):
        read(str(tmp_path / "files"), config="none")


def test_splits_and_folders_that_do_not_exist_are_reported(saved, tmp_path):
    with pytest.raises(ConfigError, match=r"has the splits train, test\. Set `split` to one"):
        read(saved)
    with pytest.raises(ConfigError, match=r"has no split 'tset'\. Nearest: test"):
        read(saved, "tset")
    with pytest.raises(MissingError, match="There is no folder"):
        read(str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty cannot be read: .*doesn't contain any data files"):
        read(str(tmp_path / "empty"))


def test_a_commit_in_the_local_cache_is_read_offline(tmp_path):
    for commit, rows in ((COMMIT, ROWS), ("f" * 40, ROWS.iloc[:1])):
        folder = tmp_path / "hub" / "datasets--org--name" / "snapshots" / commit
        folder.mkdir(parents=True)
        rows.to_csv(folder / "train.csv", index=False)
        assert len(read("org/name", "train", commit)) == len(rows)


def test_a_commit_that_is_not_in_the_local_cache_is_reported(tmp_path):
    other = tmp_path / "hub" / "datasets--org--name" / "snapshots" / ("f" * 40)
    other.mkdir(parents=True)
    ROWS.to_csv(other / "train.csv", index=False)  # not the commit that is needed
    with pytest.raises(MissingError, match=rf"'org/name' at revision {COMMIT} is not in the hub's"):
        read("org/name", "train", COMMIT)
    with pytest.raises(ConfigError, match="'org/na me' is neither a folder nor a valid hub name"):
        read("org/na me", "train", COMMIT)


def test_a_gated_data_set_names_its_page(tmp_path, monkeypatch):
    (tmp_path / GATED).touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    message = r"'org/name' at revision \w+ is gated: .* on .*/datasets/org/name, then run"
    with serving(tmp_path) as (address, _):
        connect(monkeypatch, address, tmp_path / "hub")
        with pytest.raises(MissingError, match=message):
            read("org/name", "train", COMMIT)


def test_a_missing_library_is_named_with_its_extra(saved, monkeypatch):
    monkeypatch.setattr("probekit.data.hub.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"need the library datasets\. Install it with: pip inst"):
        read(saved, "train")
