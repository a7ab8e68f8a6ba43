"""Real TensorFlow checkpoints, as OpenAI published GPT-2: written by TensorFlow itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import Tensor

from probekit.model.families.gpt2 import GPT2Config


def tensorflow():
    """TensorFlow; a test that needs it skips, loudly, without."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    reason = "TensorFlow (the extra `openai`) is not installed"
    return pytest.importorskip("tensorflow", reason=reason)


def variable_name(name: str) -> str:
    """The original's name of one of the hub's tensors, written apart from the product's table."""
    if name in ("wte.weight", "wpe.weight"):
        return f"model/{name.removesuffix('.weight')}"
    *parts, module, kind = name.replace("h.", "h", 1).split(".")
    last = "b" if kind == "bias" else "g" if module.startswith("ln_") else "w"
    return "/".join(["model", *parts, module, last])


def write_original(folder: Path, config: GPT2Config, hub: Mapping[str, Tensor]) -> None:
    """Write the original's files with the numbers of a hub state dict (linear maps [in, out])."""
    tf = tensorflow().compat.v1
    with tf.Graph().as_default(), tf.Session() as session:
        for name, tensor in hub.items():
            array = tensor.float().numpy()
            if re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name):
                array = array[None]  # a convolution of width 1
            tf.get_variable(variable_name(name), initializer=array)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(folder / "model.ckpt"))
    sizes = {"n_vocab": config.vocab_size, "n_ctx": config.n_positions, "n_embd": config.n_embd}
    sizes |= {"n_head": config.n_head, "n_layer": config.n_layer}
    (folder / "hparams.json").write_text(json.dumps(sizes))
