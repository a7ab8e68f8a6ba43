"""A steering vector of vLLM-Lens as JSON, which it adds to the output of a block."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

from probekit.errors import DataError
from probekit.files import regular, why_unreadable
from probekit.probes.exports.vector import SteeringVector


def vllm_vector_file(vector: SteeringVector, name: str) -> tuple[bytes, str]:
    """Return the file of a vector and code that uses it; numbers are in float32."""
    values = vector.values.astype("<f4")
    activations = {
        "data": base64.b64encode(values.tobytes()).decode(),
        "dtype": "float32",
        "original_dtype": "torch.float32",
        "shape": [1, len(values)],
    }
    content = {
        "activations": activations,
        "layer_indices": [vector.layer],
        "scale": 1.0,
        "norm_match": False,
        "position_indices": None,
    }
    code = f"""
from pathlib import Path
from vllm_lens import SteeringVector
vector = SteeringVector.model_validate_json(Path("{name}").read_text())
"""
    return json.dumps(content, indent=1).encode(), code


def vllm_vector_vector(path: Path) -> SteeringVector:
    """Return the vector in a file.

    Raises:
        DataError: the file cannot be read, is damaged, or has several layers.
    """
    try:
        record = json.loads(regular(path).read_bytes())
        stored, layers = record["activations"], record["layer_indices"]
        if stored.get("compression") or stored["dtype"] != "float32" or record["norm_match"]:
            raise ValueError("it is compressed, not in float32, or matches norms")
        values = np.frombuffer(base64.b64decode(stored["data"], validate=True), "<f4")
        if len(layers) != 1 or values.shape != (stored["shape"][-1],):
            raise ValueError(f"it has {len(layers)} layers and {len(values)} numbers")
        (layer,), scale = layers, float(record["scale"])
        return SteeringVector(scale * values.astype(np.float64), int(layer), "", 1.0, "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is no steering vector of one layer: {why_unreadable(error)}."
        ) from error
