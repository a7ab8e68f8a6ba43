"""Published models, as transformers 5 saves them, equal transformers at every site.

PROBEKIT_REAL_MODELS is the folder around their folders, such as those of SmolLM2-135M-Instruct
and Gemma 3 270M.
"""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from probekit.analysis.verification import verify_model
from probekit.model.families.table import load_model
from probekit.model.generation import generate
from tests.model.families.recorded import site_differences

FOLDER = os.environ.get("PROBEKIT_REAL_MODELS", "")
MODELS = sorted(path.parent for path in Path(FOLDER).glob("*/config.json")) if FOLDER else []
TEXTS = ("The capital of France is", "Mary gave the book to John, because")

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module", params=MODELS or [None], ids=lambda path: getattr(path, "name", ""))
def folder(request):
    if request.param is None:
        pytest.skip(f"no published model in PROBEKIT_REAL_MODELS={FOLDER!r}: see CONTRIBUTING.md")
    return request.param


@pytest.fixture(scope="module")
def networks(folder):
    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first = [tokenizer.bos_token_id] * ("gemma" in reference.config.model_type)
    rows = [first + tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    return reference, load_model(folder), [torch.tensor([row]) for row in rows]


@torch.inference_mode()
def test_greedy_continuations_equal_those_of_transformers(networks):
    reference, ours, rows = networks
    for ids in rows:
        theirs = reference.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None)
        assert generate(ours, ids, 20).tolist() == theirs[:, ids.shape[1] :].tolist()


@torch.inference_mode()
def test_logits_and_every_site_equal_transformers(networks):
    reference, ours, rows = networks
    for ids in rows:
        found = site_differences(reference, ours, ids)
        worst = max(found, key=lambda site: found[site][1])
        assert found[worst][1] < 3e-5, (worst, found[worst])


def test_the_check_of_users_agrees(folder):
    differing = [row for row in verify_model(folder) if not row.agrees]
    assert not differing
