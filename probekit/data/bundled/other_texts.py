"""English sentences that are not about the label of an experiment."""

from __future__ import annotations

from collections.abc import Collection

from probekit.data.bundled.capitals import capitals
from probekit.data.bundled.previous_token import previous_token
from probekit.data.bundled.sentiment import sentiment

_PER_SET = 33
_SETS = (capitals, previous_token, sentiment)


def other_texts(own: Collection[str]) -> list[str]:
    """Return sentences of three bundled sets, without those of sets that contain a text of `own`.

    >>> texts = other_texts([])
    >>> len(texts), texts[0]
    (99, 'The capital of Albania is Tirana.')
    >>> len(other_texts(["The plot was gripping."]))
    66
    """
    found = []
    for make in _SETS:
        texts = list(dict.fromkeys(row["text"] for row in make().rows))
        if not set(texts) & set(own):
            found += texts[:: len(texts) // _PER_SET][:_PER_SET]
    return found
