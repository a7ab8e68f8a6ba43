"""A small model, and shards so small that small data have many."""

import pytest

from probekit.activations import identity
from probekit.model.gpt2 import GPT2
from tests.model.reference import TINY


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of 16 rows and batches of 60 tokens, so that small data have many of both."""
    monkeypatch.setattr(identity, "SHARD_ROWS", 16)
    monkeypatch.setitem(identity.BATCH_TOKENS, "cpu", 60)


@pytest.fixture
def model():
    return GPT2(TINY, seed=1).requires_grad_(False)
