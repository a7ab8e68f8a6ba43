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
from probekit.interventions.edits import run_edited
from probekit.model.families.table import load_model
from probekit.model.generation import generate
from probekit.model.proven.doors import apart_rows
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


@pytest.fixture(scope="module")
def both(folder, tmp_path_factory):
    """A model as transformers computes it, after its proof, and as we do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBEKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield load_model(folder, engine="transformers"), load_model(folder)


def test_everything_is_proven_of_a_published_model(both):
    proven, ours = both
    assert not [reason for reason in proven.passes.refused if not reason.startswith("blocks.")]
    tests = "padding on the left, padding on the right, generation, gradients, resume"
    for test in tests.split(", "):
        assert proven.passes.facts[test], test
    assert {*proven.sites} <= {*ours.sites}
    assert len(proven.sites) == 11 * ours.config.n_layers


@torch.inference_mode()
def test_every_common_site_is_that_of_the_family(both, networks):
    """Relative to the length of each row."""
    proven, ours = both
    for ids in networks[2]:
        logits, cache = proven.run_with_cache(ids)
        expected, values = ours.run_with_cache(ids, list(proven.sites))
        gaps = {site: apart_rows(cache[site], values[site]) for site in proven.sites}
        gaps["logits"] = apart_rows(logits, expected)
        worst = max(gaps, key=gaps.__getitem__)
        assert gaps[worst] < 5e-5, (worst, gaps[worst])


@torch.inference_mode()
def test_patches_of_a_head_and_generations_are_those_of_the_family(both, networks):
    proven, ours = both
    _, _, [ids, other] = networks
    n = min(ids.shape[1], other.shape[1])
    ids, other = ids[:, :n], other[:, :n]
    site = f"blocks.{ours.config.n_layers // 2}.attn.hook_z[head=1]"
    patched, plain = [], []
    for network in both:
        _, cache = network.run_with_cache(other, [site])
        patched.append(run_edited(network, ids, [(site, lambda _, __, new=cache[site]: new)]))
        plain.append(network(ids))
    effect, expected = (one - base for one, base in zip(patched, plain, strict=True))
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(effect, expected, atol=1e-3, rtol=0)
    assert apart_rows(*patched) < 5e-5
    assert generate(proven, ids, 20).tolist() == generate(ours, ids, 20).tolist()
