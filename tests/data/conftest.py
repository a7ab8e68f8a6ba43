"""The English Web Treebank, read once."""

from pathlib import Path

import pytest

from probekit.data.examples import Dataset
from probekit.data.readers import read_dataset


@pytest.fixture(scope="session")
def ewt(shared: Path) -> dict[str, Dataset]:
    """The words of its train and test sides with their tags."""
    folder = shared / "datasets" / "ud_english_ewt"
    return {
        side: read_dataset(folder / f"{side}.conllu", format="conllu") for side in ("train", "test")
    }
