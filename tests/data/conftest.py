"""The English Web Treebank, read once."""

from pathlib import Path

import pytest

from probekit.data.examples import Dataset
from probekit.data.readers import read_dataset
from probekit.data.table import Columns


@pytest.fixture(scope="session")
def ewt(shared: Path) -> dict[str, Dataset]:
    """The words of its train and test sides with their tags."""
    folder = shared / "datasets" / "ud_english_ewt"
    tags = Columns(label="UPOS")
    return {
        side: read_dataset(folder / f"{side}.conllu", format="conllu", columns=tags)
        for side in ("train", "test")
    }
