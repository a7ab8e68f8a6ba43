import pytest

from probekit.model.families.gpt2 import GPT2
from tests.model.reference import TINY


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=3).requires_grad_(False)
