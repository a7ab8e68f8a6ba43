"""Networks of other families: edits apply to them, and what does not is an error."""

import pytest
import torch

from probekit.errors import ConfigError
from probekit.interventions.compose import run_edited
from probekit.interventions.edits import replace, zero
from probekit.model.families.llama import LlamaConfig
from probekit.model.load import random_network

TOKENS = torch.tensor([[3, 14, 15, 92]])
SITE = "blocks.0.hook_resid_post"


@pytest.fixture(scope="module")
def model():
    config = LlamaConfig(
        vocab_size=97, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    return random_network(config, seed=0)


def test_a_patched_residual_stream_gives_the_predictions_of_the_other_text(model):
    other = TOKENS.flip(1)
    _, cache = model.run_with_cache(other, [SITE])
    patched = run_edited(model, TOKENS, [(SITE, replace(cache[SITE]))])
    torch.testing.assert_close(patched, model(other))


def test_an_edit_of_a_key_value_head_changes_the_pass(model):
    edited = run_edited(model, TOKENS, [("blocks.1.attn.hook_v[kv_head=1]", zero())])
    assert not torch.allclose(edited, model(TOKENS))


def test_what_needs_a_resumed_pass_is_an_error(model):
    with pytest.raises(ConfigError, match="are available for GPT-2, but this is a Llama"):
        model.resume(torch.zeros(1, 4, 24), 1)
    with pytest.raises(ConfigError, match="are available for GPT-2"):
        model.mlp_output(0)
