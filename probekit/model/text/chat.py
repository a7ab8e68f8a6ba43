"""Chat templates: the text of a conversation, with the place of each turn in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from probekit.errors import CheckpointError, DataError
from probekit.model.text.sandbox import Sandbox

ROLES = ("user", "assistant")  # in turn


class ChatTemplate:
    """A chat template of the hub: a Jinja template of messages.

    Templates are code from a repository, so they run in a sandbox, without chance and with limits
    of time and memory. They cannot read the date: some would write today's into every text, and
    tomorrow's activations would differ. Such templates have a fixed date to fall back on, which is
    used.

    Args:
        template: text of the template.
        special: names and texts of the special tokens that it may write, such as `bos_token`.
        where: the file, for messages.

    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render(["Hi", "Hello"])
    ('<user>Hi<assistant>Hello', [(6, 8), (19, 24)])

    Raises:
        CheckpointError: the template is not valid.
    """

    def __init__(
        self, template: str, special: Mapping[str, str] | None = None, where: object = "template"
    ) -> None:
        self._special, self._where = dict(special or {}), where
        self._sandbox = Sandbox(
            (loopcontrols, _Generation), {"tojson": _to_json}, {"raise_exception": _refuse}
        )
        try:
            self._template = self._sandbox.compiled(template)
        except Exception as error:  # Jinja and Python's compiler have errors of many classes
            raise CheckpointError(f"{where}: the chat template is not valid: {error}.") from error

    def render(self, turns: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, with the place of each turn.

        A place is the first and one past the last character of a turn. A template may strip a turn.

        Args:
            turns: what user and assistant say in turn; the user begins. After a turn of the user
                the text ends where the assistant's begins.

        Raises:
            CheckpointError: the template cannot be computed, or not within the limits.
            DataError: the template refuses the turns or changes their text.
        """
        text = self._text(turns)
        marks = [f"\ue000{number}\ue001" for number in range(len(turns))]
        before, *parts = re.split("|".join(marks), self._text(marks))
        if len(parts) != len(turns):
            raise DataError(
                f"{self._where}: the chat template does not write each of {len(turns)} turns once. "
                "Give fewer turns."
            )
        begin, places = len(before), []
        for turn, after in zip(turns, parts, strict=True):
            variants = [one for one in (turn, turn.strip()) if text.startswith(one + after, begin)]
            if not variants or not text.startswith(before):
                raise DataError(
                    f"{self._where}: the chat template changes the text {turn[:60]!r}, so that its "
                    "tokens cannot be found. Write the text as the template does."
                )
            places.append((begin, begin + len(variants[0])))
            begin += len(variants[0] + after)
        return text, places

    def _text(self, turns: Sequence[str]) -> str:
        messages = [
            {"role": ROLES[number % 2], "content": turn} for number, turn in enumerate(turns)
        ]
        self._sandbox.begin(turns)
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=len(turns) % 2 == 1,
                **self._special,
            )
        except _RefusedError as error:
            raise DataError(
                f"{self._where}: the chat template refuses {turns[0][:60]!r}: {error}."
            ) from error
        except Exception as error:  # a template can raise any error
            raise CheckpointError(
                f"{self._where}: the chat template failed at {turns[0][:60]!r}: {error}."
            ) from error


class _RefusedError(Exception):
    """A template refuses the messages."""


def _refuse(message: str) -> None:
    raise _RefusedError(message.rstrip("."))


def _to_json(value: Any, **options: Any) -> str:
    """Return JSON as templates of the hub expect it; Jinja's own filter escapes HTML."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


class _Generation(Extension):
    """The block `generation`, which marks what the assistant writes, and adds no text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return the contents of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
