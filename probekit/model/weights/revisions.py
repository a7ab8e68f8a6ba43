"""Revisions of models on the hub: commits, tags and branches, such as Pythia's `step1000`."""

from __future__ import annotations

from pathlib import Path

from probekit.errors import ConfigError


def at_revision(source: str | Path, revision: str | None) -> str | Path:
    """Return the name `org/name@revision` of a model of the hub; `source` itself without revision.

    >>> at_revision("EleutherAI/pythia-70m", "step1000")
    'EleutherAI/pythia-70m@step1000'

    Raises:
        ConfigError: `source` is a folder or `mini`, or contains another revision.
    """
    if revision is None:
        return source
    name, _, given = str(source).partition("@")
    is_path = name.startswith((".", "~", "/")) or "\\" in name or name.count("/") > 1
    if isinstance(source, Path) or is_path or name == "mini" or Path(name).is_dir():
        raise ConfigError(
            f"The model {str(source)!r} is a folder, which has no revision {revision!r}. Leave the "
            "revision out, or give the name of a model on the hub, org/name."
        )
    if given not in ("", revision):
        raise ConfigError(
            f"The model {source!r} contains the revision {given!r}, but the revision {revision!r} "
            "is given too. Give one of them."
        )
    return f"{name}@{revision}"
