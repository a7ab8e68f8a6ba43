"""Serves token ids with vLLM and extracts hidden states; run by the Python of its environment.

python vllm_server.py MODEL OUT IDS.json LAYERS.json SETTINGS.json
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file

EXAMPLE = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"


def connector():
    """Return vLLM's connector without CUDA streams, which a build for CPUs lacks."""
    example = __import__(EXAMPLE, fromlist=["ExampleHiddenStatesConnector"])

    class OnCpu(example.ExampleHiddenStatesConnector):
        def _submit_async_write(self, pending):
            blocks = torch.tensor(pending.block_ids)
            slots = blocks[:, None] * self._block_size + torch.arange(self._block_size)
            n_tokens = len(pending.token_ids)
            states = example.extract_from_kv_cache(self._kv_cache, slots.flatten(), n_tokens)
            tensors = {"hidden_states": states.contiguous(), "token_ids": pending.token_ids.clone()}
            save_file(tensors, pending.filename)
            os.close(self._lock_fds.pop(pending.req_id))

    return OnCpu


def __getattr__(name):
    """Make the connector when vLLM needs it: tests import this file without vLLM."""
    if name == "OnCpu":
        return connector()
    raise AttributeError(name)


def main(model, out, ids, layers, settings):
    from vllm import LLM, SamplingParams

    connects = {"kv_connector": "OnCpu", "kv_connector_module_path": "vllm_server"}
    connects |= {"kv_role": "kv_producer"}
    engine = LLM(
        model=model,
        dtype="bfloat16",
        max_model_len=256,
        enforce_eager=True,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}},
        },
        kv_transfer_config=connects | {"kv_connector_extra_config": {"shared_storage_path": out}},
        **settings,
    )
    engine.generate([{"prompt_token_ids": one} for one in ids], SamplingParams(max_tokens=1))
    for last in (8, 9):  # files are written in the next step
        engine.generate([{"prompt_token_ids": [5, 6, last]}], SamplingParams(max_tokens=2))


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    main(*sys.argv[1:3], *map(json.loads, sys.argv[3:]))
