"""Tensors of llama.cpp, dumped as GGUF: a header with names and shapes, then float32 numbers.

llama.cpp has no option that saves hidden states. Its evaluation callback (`cb_eval`, as in the
example eval-callback) gets each tensor of the graph, and `gguf_add_tensor` and `gguf_write_to_file`
of ggml write those of one request:

    inp_tokens     the token ids, int32 (n_tokens,)
    l_out-L        the output of block L, from 0, float32 (n_tokens, n_embd)
    result_output  the logits, float32 (n_tokens, n_vocab); left out if they are not wanted

ggml states axes from the last to the first, so that n_embd is its ne[0]. The last block computes
all tokens only if the batch requests logits of all; otherwise it has one token and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def llama_cpp_tensors(path: Path, _content: bytes | None) -> Mapping[str, Tensor]:
    """Return the tensors of a GGUF file by name.

    Raises:
        ValueError: the file is damaged, or a tensor is quantised.
    """
    import gguf

    found = dict[str, Tensor]()
    for one in gguf.GGUFReader(path).tensors:
        kind = one.tensor_type.name
        if kind not in {"F64", "F32", "F16", "I32", "I64"}:
            raise ValueError(f"its tensor {one.name} has type {kind}, not float32")
        shape = [int(size) for size in reversed(one.shape)]
        data = np.ascontiguousarray(one.data, one.data.dtype.newbyteorder("="))
        found[one.name] = torch.from_numpy(data.reshape(shape).copy())
    return found
