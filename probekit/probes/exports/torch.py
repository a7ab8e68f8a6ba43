"""A state_dict of nn.Linear, or of nn.Sequential for a probe of several layers."""

from __future__ import annotations

from io import BytesIO

import torch

from probekit.probes.saved_probe import SavedProbe


def torch_file(probe: SavedProbe, name: str) -> tuple[bytes, str]:
    """Return the file of a probe and code that uses it; tensors are in float64.

    The keys are `weight` and `bias`, or `0.weight`, `0.bias`, `2.weight`, ... around each ReLU.
    """
    several = len(probe.layers) > 1
    state = {
        f"{2 * number}.{part}" if several else part: torch.tensor(values)
        for number, layer in enumerate(probe.layers)
        for part, values in zip(("weight", "bias"), layer, strict=True)
    }
    content = BytesIO()
    torch.save(state, content)
    sizes = [f"torch.nn.Linear({len(w.T)}, {len(w)}, dtype=torch.float64)" for w, _ in probe.layers]
    joined = ", torch.nn.ReLU(), ".join(sizes)
    module = f"torch.nn.Sequential({joined})" if several else joined
    code = f"""
import torch
module = {module}
module.load_state_dict(torch.load("{name}", weights_only=True))
scores = module(torch.as_tensor(X, dtype=torch.float64))
"""
    return content.getvalue(), code
