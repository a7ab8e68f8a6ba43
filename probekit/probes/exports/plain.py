"""Weight, bias and all facts in a safetensors file, which NumPy, torch and scikit-learn use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from probekit.errors import DataError
from probekit.files import regular, why_unreadable
from probekit.probes.probe_files import ProbeFacts
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.solve.layers import AffineLayer

CODE = """
import json
import numpy as np
from safetensors import safe_open
with safe_open("{name}", "numpy") as file:
    weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
    facts = json.loads(file.metadata()["probekit"])
scores = X @ weight.T + bias  # NumPy

import torch
linear = torch.nn.Linear(*weight.T.shape, dtype=torch.float64)
linear.load_state_dict({{"weight": torch.tensor(weight), "bias": torch.tensor(bias)}})
of_torch = linear(torch.tensor(X, dtype=torch.float64))

from sklearn.linear_model import {kind}
model = {kind}()
model.coef_, model.intercept_, model.classes_ = weight, bias, np.array(facts["classes"])
predicted = model.predict(X)
"""


def plain_file(probe: SavedProbe, name: str) -> tuple[bytes, str]:
    """Return the file of a probe and code that uses it; its metadata has the key `probekit`.

    The tensors are `weight` (n_scores, n_features) and `bias` (n_scores,), in float64, with the
    scaling of features folded in; the facts are those of the JSON file of a saved probe.
    """
    (layer,) = probe.layers
    facts = {"classes": probe.classes} | probe.facts.model_dump(mode="json")
    tensors = {"weight": np.ascontiguousarray(layer.weight), "bias": np.array(layer.bias)}
    content = safetensors.numpy.save(tensors, {"probekit": json.dumps(facts)})
    kind = "LogisticRegression" if probe.classes else "LinearRegression"
    return content, CODE.format(name=name, kind=kind)


def plain_probe(path: Path) -> SavedProbe:
    """Return the probe in a file.

    Raises:
        DataError: the file cannot be read, or is not one of `plain_file`.
    """
    try:
        regular(path)
        with safe_open(path, "numpy") as file:
            facts = json.loads(file.metadata()["probekit"])
            layer = AffineLayer(file.get_tensor("weight"), file.get_tensor("bias"))
        classes = facts.pop("classes")
        return SavedProbe((layer,), tuple(classes), ProbeFacts.model_validate(facts))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise DataError(f"{path} is no exported probe: {why_unreadable(error)}.") from error
