"""Gemma 2 and 3: softcaps, and the scale of embeddings."""

import pytest
import torch

from probekit.analysis.logits import logit_lens, logits_of
from probekit.model.families.table import from_transformers
from tests.model.families.configurations import CONFIGURATIONS

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
ROWS = {row.name: row for row in CONFIGURATIONS if row.name.startswith("gemma")}


@pytest.fixture(
    scope="module", params=["gemma2 with biases", "gemma3", "gemma3 with a cap of logits"]
)
def model(request):
    return from_transformers(ROWS[request.param].reference(torch.float64))


def test_the_caps_of_the_references_change_their_numbers():
    """Configurations whose caps do nothing would prove nothing."""
    reference = ROWS["gemma2"].reference(torch.float64)
    ours = from_transformers(reference)
    capped = ours(TOKENS)
    assert capped.abs().max() <= 3
    reference.config.final_logit_softcapping = None
    assert (from_transformers(reference)(TOKENS) - capped).abs().max() > 1
    reference.config.final_logit_softcapping = 3.0
    reference.config.attn_logit_softcapping = None
    assert (from_transformers(reference)(TOKENS) - capped).abs().max() > 1e-3


def test_the_lens_respects_the_cap(model):
    _, cache = model.run_with_cache(TOKENS, [("resid_post", -1)])
    torch.testing.assert_close(logits_of(model, cache["resid_post", -1]), model(TOKENS))
    probability = logit_lens(model, TOKENS[0], top_k=1)["top_probability"][-1, :, 0]
    expected = model(TOKENS)[0].softmax(-1).amax(-1).float()
    torch.testing.assert_close(probability.float(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_scale_of_embeddings_is_rounded_to_the_dtype(dtype):
    reference = ROWS["gemma3"].reference(dtype)
    _, cache = from_transformers(reference).run_with_cache(TOKENS, ["hook_embed"])
    assert torch.equal(cache["hook_embed"], reference.model.embed_tokens(TOKENS))
