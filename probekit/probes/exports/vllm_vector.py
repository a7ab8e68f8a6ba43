"""A steering vector of vLLM-Lens as JSON, which it adds to the output of a block."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

from probekit.errors import DataError
from probekit.files import regular, why_unreadable
from probekit.probes.exports.vector import SteeringVector, in_float32


def vllm_vector_file(vector: SteeringVector, name: str) -> tuple[bytes, str]:
    """Return the file of a vector and code that uses it; numbers are in float32."""
    values = in_float32(vector.values)
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
        if stored.get("compression") or stored["dtype"] != "float32":
            raise ValueError("it is compressed, or not in float32")
        if record["norm_match"] or record.get("position_indices") is not None:
            raise ValueError("it matches norms, or is for some positions only")
        values = np.frombuffer(base64.b64decode(stored["data"], validate=True), "<f4")
        if len(layers) != 1 or layers[0] < 0 or values.shape != (stored["shape"][-1],):
            raise ValueError(f"it has {len(layers)} layers and {len(values)} numbers")
        (layer,), scale = layers, float(record["scale"])
        return SteeringVector(scale * values.astype(np.float64), int(layer), "", 1.0, "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is no steering vector of one layer: {why_unreadable(error)}."
        ) from error
