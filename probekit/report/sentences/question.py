"""Form of the question of a run, which decides how its answer begins."""

from __future__ import annotations

import re

_VERBS = "is are was were do does did has have had can could will would shall should may might must"
# A question with one of these may be about more than whether a label can be decoded, or about
# the opposite: "Is layer 3 better than layer 5?", "Is number absent from the embedding?".
_UNSAFE = (
    "not no never neither nor none nobody nothing without only than earlier later sooner more less "
    "fewer better worse best worst most least absent missing lack lacks lose loses lost forget "
    "forgets fail fails ignore ignores blind unable"
)
_OPENING = re.compile(rf"(?:^|, )(?:{'|'.join(_VERBS.split())}) ", re.IGNORECASE)
_DOUBT = re.compile(
    rf"\b(?:{'|'.join(_UNSAFE.split())})\b|n['’]t\b|\b(?:before|after|until|by) (?:block|layer)",
    re.IGNORECASE,
)
_WH_WORD = re.compile(r"\b(?:which|where|what|when|why|how|who|whom|whose)\b", re.IGNORECASE)
_CHOICE = re.compile(r"\bor\b", re.IGNORECASE)
_EMBEDDED = re.compile(r"\b(?:whether|if)\b", re.IGNORECASE)


def is_yes_no(question: str | None) -> bool:
    """Return whether "Yes" can only mean that the label of the run can be decoded.

    In doubt the answer is False: answers to such questions begin with the result itself.

    >>> is_yes_no("Does the network encode whether the subject is singular or plural?")
    True
    >>> is_yes_no("From which layer on is number decodable?"), is_yes_no("Subject number")
    (False, False)
    >>> is_yes_no("Is it at the noun or the verb?"), is_yes_no("Is layer 3 better than layer 5?")
    (False, False)
    """
    text = " ".join((question or "").split())
    opening = _OPENING.search(text)
    if opening is None or not text.endswith("?") or _DOUBT.search(text):
        return False
    is_choice = _CHOICE.search(text) and not _EMBEDDED.search(text)
    return not is_choice and not _WH_WORD.search(text[: opening.start()])
