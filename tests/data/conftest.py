"""The English Web Treebank, read once."""

from pathlib import Path

import pytest

from probekit.data.examples import Dataset
from probekit.data.readers import read_dataset
from probekit.data.words import ConlluColumns


@pytest.fixture(scope="session")
def ewt(shared: Path) -> dict[str, Dataset]:
    """The words of its train and test sides with their tags."""
    folder = shared / "datasets" / "ud_english_ewt"
    return {
        side: read_dataset(folder / f"{side}.conllu", format="conllu") for side in ("train", "test")
    }


@pytest.fixture
def ewt_heads(shared: Path) -> Dataset:
    """The words of its test side with the places of their heads."""
    path = shared / "datasets" / "ud_english_ewt" / "test.conllu"
    return read_dataset(path, format="conllu", columns=ConlluColumns("HEAD"))
