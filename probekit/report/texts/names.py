"""Names of models and runs on pages, without paths of the machine that wrote the page."""

from __future__ import annotations

import re

_FOLDERS = re.compile(r"(?<![\w.:/~])(~?/|[A-Za-z]:\\)([^/\\\s\"',\[\]{}]+[/\\])+")
_OUTSIDE = re.compile(r"^(/|~|\.\.|[A-Za-z]:[\\/])")


def model_title(source: str) -> str:
    """Return the name of a model; of an absolute path only the last part.

    >>> model_title("org/name@main"), model_title("/data/models/mine/"), model_title("runs/mine")
    ('org/name@main', 'mine', 'runs/mine')
    """
    if not _OUTSIDE.match(source):
        return source
    return re.split(r"[\\/]", source.rstrip("\\/"))[-1] or source


def without_folders(text: str) -> str:
    """Return a text in which each absolute path is replaced by its last part.

    >>> without_folders("{file: /data/me/rows.csv, source: org/name, url: s3://bucket/a/b}")
    '{file: rows.csv, source: org/name, url: s3://bucket/a/b}'
    """
    return _FOLDERS.sub("", text)
