"""Reading the JSON files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from probekit.errors import CheckpointError, MissingError
from probekit.model.weights.digests import read_verified


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model folder.

    >>> from probekit.model.weights.sources import MINI
    >>> read_json(MINI / "config.json")["n_layer"]
    6

    Raises:
        MissingError: the file does not exist or cannot be read.
        CheckpointError: the file does not match its digest, or is not a JSON object.
    """
    try:
        content = json.loads(read_verified(path).decode())
    except CheckpointError:  # a ValueError with a complete message
        raise
    except OSError as error:
        raise MissingError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must contain a JSON object, not a {type(content).__name__}.")
    return content


def shard_of_tensors(index: Path) -> dict[str, str]:
    """Return the file name of each tensor from the index of a sharded model.

    Raises:
        CheckpointError: the index is damaged, or a shard is not a weight file in its folder.
    """
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no weight_map from tensors to files.")
    for shard in shards.values():
        is_file_name = isinstance(shard, str) and Path(shard).name == shard
        if not is_file_name or Path(shard).suffix not in (".safetensors", ".bin"):
            raise CheckpointError(
                f"{index} lists the shard {shard!r}. Allowed: a .safetensors or .bin file in the "
                "folder of the index."
            )
    return shards
