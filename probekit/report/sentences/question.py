"""Form of the question of a run, which decides how its answer begins."""

from __future__ import annotations

import re

# The label can be decoded: only such questions are answered with "Yes".
_DECODED = (
    "decoded decodable read readable recovered recoverable predicted predictable detected "
    "detectable encoded represented separable classified identified identifiable"
)
_ENCODE = "encode represent know contain carry track distinguish recognise recognize detect"
_FORMS = re.compile(
    rf"(?:^|, )(?:(?:can|could) .+? be (?:\w+ly )?(?:{'|'.join(_DECODED.split())})\b"
    rf"|(?:is|are) .+? (?:\w+ly )?(?:{'|'.join(_DECODED.split())})\b"
    rf"|(?:do|does) .+? (?:\w+ly )?(?:{'|'.join(_ENCODE.split())})\b)",
    re.IGNORECASE,
)
# A question with one of these is about more than that, or about the opposite: "Is number decodable
# from the embedding?", "Do all layers encode number?".
_DOUBT = re.compile(
    r"\b(?:not?|never|neither|nor|none|nothing|without|only|than|earlier|later|sooner|more|less|fewer|"
    r"better|worse|best|worst|most|least|all|each|every|any|both|same|absent|independent|block|layer|"
    r"head|neuron|site|embedding|mlp)s?\b|n['’]t\b",
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
    >>> is_yes_no("Is number erased?"), is_yes_no("Do all layers encode number?")
    (False, False)
    """
    text = " ".join((question or "").split())
    opening = _FORMS.search(text)
    if opening is None or not text.endswith("?") or _DOUBT.search(text):
        return False
    is_choice = _CHOICE.search(text) and not _EMBEDDED.search(text)
    return not is_choice and not _WH_WORD.search(text[: opening.start()])
