"""Fixtures that every test may use."""

from pathlib import Path

import pytest
import torch

# Tests run side by side, one to a core; and the last bits of a product depend on its threads.
torch.set_num_threads(1)

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; a test that needs it skips, loudly, without."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(
            "../shared (real weights, vocabularies and treebanks) is not beside this checkout"
        )
    return folder
