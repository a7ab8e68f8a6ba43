"""A small model, and shards so small that small data have many."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from probekit.activations import records
from probekit.activations.local import LocalFiles
from probekit.model.families.gpt2 import GPT2
from tests.activations.captures import make_tokens
from tests.activations.small_store import CONTENT
from tests.model.reference import TINY


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of 16 rows and batches of 60 tokens, so that small data have many of both."""
    monkeypatch.setattr(records, "SHARD_ROWS", 16)
    monkeypatch.setitem(records.BATCH_TOKENS, "cpu", 60)


@pytest.fixture
def tmp_path(tmp_path):
    """A folder in memory where there is such a thing: these tests wait for thousands of fsyncs."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=memory, prefix="probekit-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def model():
    return GPT2(TINY, seed=1).requires_grad_(False)


@pytest.fixture
def tokens():
    return make_tokens()


@pytest.fixture
def folder(tmp_path):
    """A finished small store."""
    CONTENT.write(LocalFiles(tmp_path / "key"))
    return tmp_path / "key"
