"""A hook of vLLM-Lens: a Python file whose `hook` saves the scores of each token of a request."""

from __future__ import annotations

import base64

import numpy as np

from probekit.errors import ConfigError
from probekit.probes.exports.vector import in_float32, layer_read
from probekit.probes.saved_probe import SavedProbe

HOOK = '''"""Scores of a probe at each token, as a hook of vLLM-Lens: `hook` for requests."""

import base64

import numpy as np
import torch
from vllm_lens import Hook

CLASSES = {classes!r}
NUMBERS = np.frombuffer(base64.b64decode("{numbers}"), "<f4").reshape({n_scores}, {width} + 1)
WEIGHT, BIAS = torch.tensor(NUMBERS[:, :-1]), torch.tensor(NUMBERS[:, -1])


def score(context, hidden):
    """Save the scores (n_tokens, n_scores) of the tokens of a pass, and change nothing."""
    weight, bias = WEIGHT.to(hidden.device), BIAS.to(hidden.device)
    scores = hidden.float() @ weight.T + bias
    context.saved.setdefault("scores", []).append(scores.cpu())


hook = Hook(fn=score, layer_indices=[{layer}], pre={pre})
'''


def vllm_hook_file(probe: SavedProbe, name: str) -> tuple[bytes, str]:
    """Return the file of a probe and code that uses it.

    Raises:
        ConfigError: the probe does not read the output of a block, or the embedding; or a module
            cannot have this name.
    """
    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise ConfigError(f"{name} is imported. Give it a name of letters, digits and _.")
    layer, (weight, bias) = layer_read(probe.facts.site), probe.layers[0]
    numbers = in_float32(np.concatenate([weight, bias[:, None]], axis=1)).tobytes()
    content = HOOK.format(
        classes=probe.classes,
        numbers=base64.b64encode(numbers).decode(),
        n_scores=len(bias),
        width=probe.n_features,
        layer=max(layer, 0),
        pre=layer < 0,
    )
    code = f"""
from vllm_lens.client import VLLMLensClient
from {stem} import hook
reply = VLLMLensClient("http://localhost:8000").generate("Hello", max_tokens=10, hooks=[hook])
print(reply.hook_results)
"""
    return content.encode(), code
