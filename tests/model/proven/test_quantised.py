"""Networks with quantised weights: what is proven, its name on pages, and keys of their own."""

import json
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, TorchAoConfig

from probekit import from_transformers, load_model
from probekit.errors import ConfigError
from probekit.model.weights.state_dict import digest_weights

IDS = torch.randint(20, 98, (2, 7), generator=torch.Generator().manual_seed(1))
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 99}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": None}

pytestmark = pytest.mark.filterwarnings("ignore")  # of torchao and bitsandbytes, on import


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBEKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("model")
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(folder)
        yield folder


@pytest.fixture(scope="module")
def ao():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchao.quantization", reason="torchao is not installed")


def loaded(folder, **options):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **options)


def key_of(network):
    return json.dumps(network.config.to_json(), sort_keys=True), digest_weights(network)


def test_weights_that_torchao_quantises_in_memory(folder, ao):
    model = loaded(folder)
    plain = from_transformers(model, engine="transformers")
    keys = {key_of(plain)}
    ao.quantize_(model, ao.Int8WeightOnlyConfig())
    network = from_transformers(model)
    assert network.sites.names == plain.sites.names
    assert "weights quantised (Int8Tensor)" in network.config.computed_by([])
    keys.add(key_of(network))
    with torch.no_grad():
        logits, cache = network.run_with_cache(IDS)
        assert torch.equal(logits, model(IDS).logits)
    heads = cache["z", 1].flatten(2) @ network.head_output(1)[0].T
    torch.testing.assert_close(heads, cache["attn_out", 1], atol=1e-6, rtol=1e-4)
    neurons = cache["post", 1] @ network.mlp_output(1).T
    torch.testing.assert_close(neurons, cache["mlp_out", 1], atol=1e-6, rtol=1e-4)
    # The same weights, and an input that is rounded: a map of heads is no matrix.
    model = loaded(folder)
    ao.quantize_(model, ao.Int8DynamicActivationInt8WeightConfig())
    network = from_transformers(model)
    assert key_of(network)[1] in {digest for _, digest in keys}
    keys.add(key_of(network))
    with pytest.raises(ConfigError, match=r"matrix of blocks\.1\.attn\.hook_z is not proven"):
        network.head_output(1)
    model = loaded(folder)
    ao.quantize_(model, ao.IntxWeightOnlyConfig(torch.int4, ao.PerGroup(32)))
    keys.add(key_of(from_transformers(model)))
    assert len(keys) == 4


def test_a_folder_that_torchao_quantised(folder, ao, tmp_path):
    settings = TorchAoConfig(ao.Int8WeightOnlyConfig())
    model = loaded(folder, quantization_config=settings)
    model.save_pretrained(tmp_path)
    network = load_model(tmp_path)
    assert "weights quantised (torchao)" in network.config.computed_by([])
    assert key_of(network) == key_of(from_transformers(model))
    with torch.no_grad():
        assert torch.equal(network(IDS), model(IDS).logits)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_folder_that_bitsandbytes_quantised(folder, bits, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    settings = BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    loaded(folder, quantization_config=settings, device_map="cpu").save_pretrained(tmp_path)
    network = load_model(tmp_path)
    assert f"weights quantised (bitsandbytes, {bits} bits)" in network.config.computed_by([])
    counts = load_model(folder, engine="transformers").config.counts
    assert network.config.counts == counts
    kinds = {site.partition(".")[2].partition(".")[2] for site in network.sites}
    assert {"hook_resid_post", "attn.hook_z", "hook_mlp_out", "attn.hook_pattern"} <= kinds
    with torch.no_grad():
        assert torch.equal(network(IDS), network.model(IDS).logits)
