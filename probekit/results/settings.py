"""Settings, digests and versions of runs, and the differences between runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from probekit.errors import DataError
from probekit.files import inside
from probekit.results.record import RunRecord, reading_run_file

# These settings, such as names and paths, do not affect the results.
WITHOUT_EFFECT = (
    "name",
    "question",
    "data.root",
    "data.card",
    "data.memory",
    "data.memory.kind",
    "data.memory.n_rows",
    "data.memory.digest",
    "data.memory.is_split",
    "attention.texts",
)
ABSENT = "–"


def load_config(path: Path) -> dict[str, Any]:
    """Return the contents of a run's config.yaml.

    Raises:
        MissingError: The file does not exist.
        DataError: The file cannot be read.
    """
    with reading_run_file(path):
        text = inside(path).read_text("utf-8")
    try:
        config = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise DataError(f"{path} is not valid YAML: {error}. Run the experiment again.") from error
    if not isinstance(config, dict):
        raise DataError(f"{path} contains no settings. Run the experiment again to rewrite it.")
    return config


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that affect the results as text, by their dotted names.

    Args:
        config: the settings of a run, as nested mappings.
    """
    return {name: text for name, text in flat(config).items() if name not in WITHOUT_EFFECT}


def run_facts(config: Mapping[str, Any], record: RunRecord) -> dict[str, str]:
    """Return the settings that affect the results, digests and versions of a run, as text by name.

    Args:
        config: the settings of the run, as nested mappings.
        record: its run.json.
    """
    return {
        **settings_of(config),
        **{f"digest of {name}": text[:12] for name, text in record.digests.items()},
        **{f"version of {name}": text for name, text in record.versions.items()},
    }


def differing(facts: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the names whose values differ between the mappings, with the value in each mapping.

    >>> differing([{"seed": "0", "bos": "no"}, {"seed": "1", "bos": "no", "k": "4"}])
    {'seed': ('0', '1'), 'k': ('–', '4')}
    """
    names = dict.fromkeys(name for one in facts for name in one)
    values = {name: tuple(one.get(name, ABSENT) for one in facts) for name in names}
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def flat(value: Any) -> dict[str, str]:
    """Return the leaves of nested mappings as text, by their dotted keys.

    >>> flat({"probe": {"seed": 0, "kinds": [{"kind": "svm", "k": None}]}})
    {'probe.seed': '0', 'probe.kinds': '[{kind: svm}]'}
    """
    return {name: one_line(leaf) for name, leaf in leaves(value).items()}


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted keys; lists are leaves.

    >>> leaves({"probe": {"seed": 0, "C": [0.1, 1]}})
    {'probe.seed': 0, 'probe.C': [0.1, 1]}
    """
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    return found


def one_line(value: Any) -> str:
    """Return a value as one line of YAML, without keys that are null."""
    if isinstance(value, dict):
        pairs = [f"{key}: {one_line(inner)}" for key, inner in value.items() if inner is not None]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(one_line, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
