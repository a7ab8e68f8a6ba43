"""Settings and titles of finished runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from probekit.amounts import one_line
from probekit.errors import DataError
from probekit.files import inside, regular
from probekit.model.weights.sources import name_in_memory
from probekit.results.record import RunRecord, reading_run_file

# These settings and sections, such as names and paths, do not affect the results.
WITHOUT_EFFECT = re.compile(
    r"(name|question|data\.(root|card|memory)|model\.memory|attention\.texts)(\..+)?"
)
ABSENT = "–"
MOST_SETTINGS = 3  # settings that the title of a run names
LONGEST_VALUE = 30  # characters of a value in a title


def load_config(path: Path) -> dict[str, Any]:
    """Return the contents of a run's config.yaml.

    Raises:
        MissingError: The file does not exist.
        DataError: The file cannot be read.
    """
    with reading_run_file(path):
        text = regular(inside(path)).read_text("utf-8")
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
    texts = flat(config)
    settings = {name: texts[name] for name in texts if not WITHOUT_EFFECT.fullmatch(name)}
    memory = config.get("model", {}).get("memory")
    if memory:
        settings["model.source"] = name_in_memory(**memory)
    return settings


def run_facts(config: Mapping[str, Any], record: RunRecord) -> dict[str, str]:
    """Return the settings that affect the results, digests and versions of a run, as text by name.

    Args:
        config: the settings of the run, as nested mappings.
        record: its run.json.
    """
    return {
        **settings_of(config),
        **({"activations": record.identity} if record.identity else {}),
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


def run_titles(runs: Sequence[tuple[RunRecord, Mapping[str, str]]]) -> list[str]:
    """Return a unique title for each run: its name, and settings in which runs of a name differ.

    Only the first `MOST_SETTINGS` settings are listed. The name is left out if there are several
    runs and all have the same name. Equal titles get the number of the run; if no setting differs,
    the title is `run N` alone.

    Args:
        runs: the record of each run, and its settings as `settings_of` returns them.
    """
    has_names = len(runs) == 1 or len({record.run for record, _ in runs}) > 1
    titles = []
    for record, settings in runs:
        differ = differing([facts for other, facts in runs if other.run == record.run])
        parts = [f"{key} {_short(settings.get(key, ABSENT))}" for key in differ][:MOST_SETTINGS]
        titles.append(" · ".join([record.run, *parts] if has_names else parts))
    return [
        title if titles.count(title) == 1 else f"{title} · run {number}".removeprefix(" · ")
        for number, title in enumerate(titles, start=1)
    ]


def _short(text: str) -> str:
    """Return a value, or its end if it is long; an absolute path is reduced to its last part."""
    text = PurePosixPath(text).name if text.startswith("/") else text
    text = re.sub(r"\{kind: (\w+)\}", r"\1", text)  # a kind of probe without settings of its own
    # The ellipsis is one of the `LONGEST_VALUE` characters.
    return text if len(text) <= LONGEST_VALUE else f"…{text[1 - LONGEST_VALUE :]}"


def date_text(created: str, time: str = "") -> str:
    """Return the date of a time in ISO 8601; other text unchanged.

    Args:
        created: the time.
        time: format of the time that follows the date; "" for the date alone.

    >>> date_text("2026-11-02T01:39:33+00:00"), date_text("2026-11-02T01:39:33+00:00", " %H:%M")
    ('2 Nov 2026', '2 Nov 2026 01:39')
    """
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%b %Y}{moment.strftime(time)}"


def flat(value: Any) -> dict[str, str]:
    """Return the leaves of nested mappings as text, by their dotted keys.

    >>> flat({"probe": {"seed": 0, "kinds": [{"kind": "svm", "k": None}]}})
    {'probe.seed': '0', 'probe.kinds': '[{kind: svm}]'}
    """
    return {name: one_line(leaf) for name, leaf in leaves(value).items()}


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted keys; lists are leaves.

    Args:
        value: nested mappings, or a leaf.
        prefix: the dotted key of `value`; "" for the outermost mapping.

    >>> leaves({"probe": {"seed": 0, "C": [0.1, 1]}})
    {'probe.seed': 0, 'probe.C': [0.1, 1]}
    """
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    return found
