"""In what runs differ: settings, digests and versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from probekit.errors import DataError
from probekit.results.record import RunRecord, reading_run_file

# What a run is called, and where its files lie, changes no number; texts of attention neither.
_OF_NO_WEIGHT = ("name", "question", "data.root", "data.card", "attention.texts")
ABSENT = "–"


def load_config(path: Path) -> dict[str, Any]:
    """Return the settings of a run, as its config.yaml has them.

    Raises:
        MissingError: There is no such file.
        DataError: It cannot be read.
    """
    with reading_run_file(path):
        text = path.read_text("utf-8")
    try:
        found = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise DataError(f"{path} is no YAML: {error}. Run the experiment again.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no settings. Run the experiment again to rewrite it.")
    return found


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run by name, as text; its own names are left out.

    Args:
        config: its settings, as nested mappings.
    """
    return {name: text for name, text in flat(config).items() if name not in _OF_NO_WEIGHT}


def run_facts(config: Mapping[str, Any], record: RunRecord) -> dict[str, str]:
    """Return the settings, digests and versions of a run by name, as text; its names are left out.

    Args:
        config: its settings, as nested mappings.
        record: its run.json.
    """
    return {
        **settings_of(config),
        **{f"digest of {name}": text[:12] for name, text in record.digests.items()},
        **{f"version of {name}": text for name, text in record.versions.items()},
    }


def differing(facts: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return each name under which not all mappings have the same value, with the value in each.

    >>> differing([{"seed": "0", "bos": "no"}, {"seed": "1", "bos": "no", "k": "4"}])
    {'seed': ('0', '1'), 'k': ('–', '4')}
    """
    names = dict.fromkeys(name for one in facts for name in one)
    values = {name: tuple(one.get(name, ABSENT) for one in facts) for name in names}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Return the leaves of nested mappings under their dotted keys, as text.

    >>> flat({"probe": {"seed": 0, "kinds": [{"kind": "svm", "k": None}]}})
    {'probe.seed': '0', 'probe.kinds': '[{kind: svm}]'}
    """
    if isinstance(value, dict):
        found: dict[str, str] = {}
        for key, inner in value.items():
            found |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
        return found
    return {prefix: _text(value)}


def _text(value: Any) -> str:
    """Return a value as a YAML file has it on one line, without the keys that are null."""
    if isinstance(value, dict):
        pairs = [f"{key}: {_text(inner)}" for key, inner in value.items() if inner is not None]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
