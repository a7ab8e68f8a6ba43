"""A control vector of llama.cpp and repeng: a GGUF file with the tensor `direction.LAYER`.

Both add `direction.l` to the output of block l, counted from 0. llama.cpp never changes block 0.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from probekit.errors import ConfigError, DataError
from probekit.files import as_store_error, regular, why_unreadable
from probekit.probes.exports.vector import SteeringVector, in_float32

KIND, NAME = "controlvector", "direction."


def gguf_file(vector: SteeringVector, name: str) -> tuple[bytes, str]:
    """Return the file of a vector and code that uses it; numbers are in float32.

    Raises:
        ConfigError: the vector is for block 0, which llama.cpp does not change.
    """
    from gguf import GGUFWriter

    if vector.layer == 0:
        raise ConfigError(
            "A control vector is not added to the output of block 0: llama.cpp skips it. Export a "
            "probe of a later block, or another format."
        )
    with as_store_error("write", Path(name)), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        writer = GGUFWriter(path, KIND)
        writer.add_string(f"{KIND}.model_hint", Path(vector.model).name)
        writer.add_uint32(f"{KIND}.layer_count", 1)
        writer.add_tensor(f"{NAME}{vector.layer}", in_float32(vector.values))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        content = path.read_bytes()
    code = f"""
# llama-cli -m MODEL.gguf --control-vector-scaled {name} 1.0
from repeng import ControlModel, ControlVector
controlled = ControlModel(model, [{vector.layer}])  # a model of transformers
controlled.set_control(ControlVector.import_gguf("{name}"), 1.0)
"""
    return content, code


def gguf_vector(path: Path) -> SteeringVector:
    """Return the vector in a file.

    Raises:
        ConfigError: the package gguf is not installed.
        DataError: the file cannot be read, is damaged, or has several directions.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ConfigError(
            f"{path} needs the package gguf: pip install 'probekit-lens[gguf]'."
        ) from error
    try:
        tensors = GGUFReader(regular(path)).tensors
        found = {one.name: np.array(one.data, dtype=np.float64) for one in tensors}
        names = [name for name in found if name.startswith(NAME)]
        if len(names) != 1 or found[names[0]].ndim != 1:
            raise ValueError(f"it has {len(names)} tensors {NAME}LAYER")
        layer = int(names[0].removeprefix(NAME))
        if layer < 0:
            raise ValueError(f"it is for layer {layer}")
        return SteeringVector(found[names[0]], layer, "", 1.0, "")
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise DataError(
            f"{path} is no control vector of one layer: {why_unreadable(error)}."
        ) from error
