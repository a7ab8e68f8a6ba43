"""Saved responses of servers, as JSON: of vLLM-Lens, and of SGLang.

vLLM-Lens (`output_residual_stream` in `vllm_xargs`, and `return_token_ids: true`) returns under
`activations` the `residual_stream` (n_layers, n_tokens, d_model) as {data, dtype, original_dtype,
shape, compression}: base64 of bytes in Zstandard.

SGLang (`return_hidden_states: true`, `return_logprob: true`, `logprob_start_len: 0`) returns under
`meta_info` the `hidden_states`: rows of the prompt, then one for each generated token. They lack
`cached_tokens`, which were in its prefix cache. Several layers are concatenated in each row. Those
of a plain model come after its final norm.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.given.served.table import parsed, unpacked
from probekit.errors import DataError

_STORED = {"int16", "float16", "float32", "float64", "int64", "int32"}  # types in bytes


def responses_tensors(path: Path, content: bytes | None) -> Mapping[str, Tensor]:
    """Return the tensors of all responses in a file; of several with their number before the name.

    Raises:
        DataError: a response has no activations, or not the ids of its tokens.
        ValueError: the file is damaged.
    """
    responses, found = parsed(path, content), dict[str, Tensor]()
    for number, one in enumerate(responses):
        label = f"{path}: response {number}" if len(responses) > 1 else str(path)
        if isinstance(one, dict) and "activations" in one:
            named = _of_vllm_lens(one, label, path)
        elif isinstance(one, dict) and "hidden_states" in one.get("meta_info", {}):
            named = _of_sglang(one, label)
        else:
            raise DataError(
                f"{label} is no response of vLLM-Lens (`activations`) or SGLang "
                "(`meta_info.hidden_states`). Save whole responses, and move other files elsewhere."
            )
        prefix = f"{number}/" if len(responses) > 1 else ""
        found |= {prefix + name: tensor for name, tensor in named.items()}
    return found


def _of_vllm_lens(response: Mapping[str, Any], label: str, path: Path) -> dict[str, Tensor]:
    """Return ids and hidden states (n_tokens, n_layers, d_model) of a response of vLLM-Lens."""
    activations, choices = response["activations"], response.get("choices") or [{}]
    if len(choices) != 1:
        raise DataError(f"{label} has {len(choices)} choices. Send one prompt in each request.")
    prompt = response.get("prompt_token_ids") or choices[0].get("prompt_token_ids")
    if not prompt:
        raise DataError(f"{label} lacks `prompt_token_ids`. Request `return_token_ids: true`.")
    ids = [*prompt, *(choices[0].get("token_ids") or ())]
    stream = _tensor(activations["residual_stream"], path)
    named = {"token_ids": torch.tensor(ids), "hidden_states": stream.movedim(0, 1)}
    if stream.shape[1] > len(ids):  # generated tokens, whose ids are not returned
        named["prompt_token_ids"] = named.pop("token_ids")
    # The last token was sampled and never read, so that states are those from token 0 on.
    return named | {"start": torch.tensor(0)}


def _tensor(entry: Mapping[str, Any], path: Path) -> Tensor:
    """Return the tensor that vLLM-Lens has encoded.

    Raises:
        ValueError: its bytes are not those of its type and shape.
    """
    if "handle" in entry and "data" not in entry:
        raise ValueError(
            "its tensors have handles of a server, not numbers; request them with the "
            'default of `activations_transport`, "base64"'
        )
    name, shape = entry["dtype"], entry["shape"]
    if name not in _STORED:
        raise ValueError(f"its numbers have type {name!r}")
    dtype = np.dtype(name).newbyteorder("<")
    n_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    raw = base64.b64decode(entry["data"], validate=True)
    if entry.get("compression") == "zstd":
        raw = unpacked(raw, path, n_bytes)
    if len(raw) != n_bytes or min(shape, default=0) < 0:
        raise ValueError(f"a tensor of shape {tuple(shape)} has {len(raw):,} bytes")
    tensor = torch.from_numpy(np.frombuffer(raw, dtype).astype(name).reshape(shape))
    kind = str(entry.get("original_dtype", name)).removeprefix("torch.")
    if kind == "bfloat16":
        return tensor.view(torch.bfloat16)
    return tensor


def _of_sglang(response: Mapping[str, Any], label: str) -> dict[str, Tensor]:
    """Return ids, hidden states (n_tokens, n_features) and the first token of them, of SGLang."""
    info = response["meta_info"]
    logprobs = info.get("input_token_logprobs") or ()
    prompt = response.get("input_ids") or [one[1] for one in logprobs]
    if not prompt:
        raise DataError(
            f"{label} lacks the ids of its prompt. Request `return_logprob: true` with "
            "`logprob_start_len: 0`, or add the `input_ids` of the request."
        )
    rows = list[list[float]]()
    for one in info["hidden_states"]:
        rows += one if one and isinstance(one[0], list) else [one]
    ids = [*prompt, *(response.get("output_ids") or ())]
    start = int(info.get("cached_tokens") or 0)
    return {
        "token_ids": torch.tensor(ids),
        "hidden_states": torch.tensor(rows, dtype=torch.float32),
        "start": torch.tensor(start),
    }
