"""A question after each text, at whose end probes read: `tokens.ask`, its answers, and balance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, Finding, Turn
from probekit.errors import DataError, nearest
from probekit.provenance import digest
from probekit.section import Section, require_any, rule_error

if TYPE_CHECKING:
    from probekit.experiment.schema import Experiment

SWAPPED = "swapped"  # column of the rows of balanced answers: yes or no
_BETWEEN = "\n\n"  # text and question, as turns of a conversation
_PLACEHOLDERS = ("{a}", "{b}")  # in a question, the two answers

Answer: TypeAlias = Annotated[str, Field(min_length=1)]


class AskSection(Section):
    """A question that follows each text; probes read where the network is about to answer.

    After a turn of the assistant, it is a turn of the user; otherwise it ends the user's turn, or
    the text, after a blank line or, if it begins with white space, directly.

    Attributes:
        ask: question after each text, such as "Is it true? Answer {a} or {b}."; probes read the
            last token, where the network is about to answer, and baselines read the question, too
        answers: the two answers, such as [Yes, No], which {a} and {b} stand for in the question;
            the baseline `output` reads the difference of their logits
        balance: whether {a} and {b} change places in about half of the rows, so that no answer
            always means the same; the text decides, and the column `swapped` of predictions.csv
            has it
    """

    model_config = ConfigDict(json_schema_extra=require_any("position", "ask"))

    ask: str | None = Field(None, examples=["Was the last statement true?"])
    answers: Annotated[tuple[Answer, Answer] | None, Field(strict=False)] = Field(
        None, examples=[["Yes", "No"]]
    )
    balance: bool = False

    @model_validator(mode="before")
    @classmethod
    def _reads_the_end(cls, given: Any) -> Any:
        """Fill in the position of a question."""
        has_ask = isinstance(given, Mapping) and given.get("ask") is not None
        is_read = has_ask and "position" in cls.model_fields  # in a saved probe it is elsewhere
        return {"position": {"at": "last"}, **given} if is_read else given

    @model_validator(mode="after")
    def _question_and_answers_fit(self) -> AskSection:
        if self.ask is None:
            if self.answers is not None:
                other = "without a question, name them in `data.columns.answers`"
                raise rule_error(f"`answers` requires `ask`; {other}", "answers")
            if self.balance:
                raise rule_error("`balance` requires `ask` and `answers`", "balance")
            return self
        if not self.ask.strip():
            raise rule_error("`ask` is empty; write a question", "ask")
        if self.answers is not None and len({one.strip() for one in self.answers} - {""}) < 2:
            raise rule_error("the two answers must differ, and not be empty", "answers")
        named = [one for one in _PLACEHOLDERS if one in self.ask]
        if self.answers is None and (named or self.balance):
            key = "ask" if named else "balance"
            what = "the question has places for answers" if named else "`balance` swaps them"
            raise rule_error(f"{what}: give `answers`, such as [Yes, No]", key)
        if self.balance and (lacking := [one for one in _PLACEHOLDERS if one not in named]):
            others = [one for one in re.findall(r"\{\w*\}", self.ask) if one not in named]
            near = f". {nearest(others[0], lacking)}".rstrip(".") if others else ""
            raise rule_error(
                "`balance` swaps the answers in the question, which must name them, such as "
                f"'Answer {{a}} or {{b}}.', but has no {' and no '.join(lacking)}{near}",
                "ask",
            )
        return self

    @classmethod
    def of_probe(cls, position: Mapping[str, Any]) -> AskSection:
        r"""Return the question of a saved probe, from `ProbeFacts.position`.

        >>> AskSection.of_probe({"at": "last", "ask": "True?"}).asked("It rains.")
        'It rains.\n\nTrue?'
        """
        pair = (position["answer_a"], position["answer_b"]) if "answer_a" in position else None
        return cls(ask=position.get("ask"), answers=pair, balance=position.get("balance", False))

    @property
    def asking(self) -> dict[str, str | bool]:
        """The question as `ProbeFacts.position` has it; empty without one."""
        found: dict[str, str | bool] = {} if self.ask is None else {"ask": self.ask}
        if self.answers is not None:
            pairs = zip(("answer_a", "answer_b"), self.answers, strict=True)
            found |= {**dict(pairs), "balance": self.balance}
        return found

    def swaps(self, text: str) -> bool:
        """Return whether the answers change places after a text."""
        return self.balance and int(digest([text.encode()])[:2], 16) % 2 == 1

    def answers_to(self, text: str) -> tuple[str, str] | None:
        """Return the answers that {a} and {b} stand for after a text; None without answers."""
        return self.answers[::-1] if self.answers and self.swaps(text) else self.answers

    def asked(self, text: str) -> str:
        """Return a text with the question after it."""
        return text + self._gap + self._question(text)

    @property
    def _gap(self) -> str:
        return "" if self.ask is None or self.ask[0].isspace() else _BETWEEN

    def _question(self, text: str) -> str:
        """Return the question after a text."""
        question, answers = self.ask or "", self.answers_to(text)
        if answers is None:
            return question
        # In one step: an answer may itself contain the other placeholder.
        of_placeholder = dict(zip(_PLACEHOLDERS, answers, strict=True))
        return re.sub(r"\{[ab]\}", lambda found: of_placeholder[found[0]], question)

    def asked_of(self, dataset: Dataset) -> Dataset:
        """Return the examples with the question after each text; the same ones without a question.

        Raises:
            DataError: the rows have a column of the name that records the swap.
        """
        if self.ask is None:
            return dataset
        return replace(dataset, examples=tuple(map(self._example, dataset.examples)))

    def findings(self, dataset: Dataset) -> list[Finding]:
        """Return the question after the texts of a data set as a finding; empty without one."""
        if self.ask is None:
            return []
        message = f"Each text of {dataset.name} is followed by the question {self.ask.strip()!r}"
        if self.answers is not None:
            message += (
                f", with the answers {self.answers[0]!r} ({{a}}) and {self.answers[1]!r} ({{b}})"
            )
        if self.balance:
            n = sum((SWAPPED, "yes") in example.values for example in dataset.examples)
            message += f"; they are swapped in {n:,} of {counted(len(dataset), 'text')}"
        message += ". Probes read its last token, and baselines read it, too."
        return [Finding("info", "ask", message)]

    def _example(self, example: Example) -> Example:
        """Return an example with the question after its text, and after its counterfactual."""
        own, turns, values = example.text, example.turns, example.values
        text = self.asked(own)
        if turns and turns[-1].role == "user":
            turns = (*turns[:-1], turns[-1]._replace(end=len(text)))
        elif turns:
            question = self._question(own)
            text = own + _BETWEEN + question
            turns = (*turns, Turn(len(text) - len(question), len(text), "user"))
        if self.balance:
            if SWAPPED in dict(values):
                raise DataError(
                    f"{example.where}: the column {SWAPPED!r} is also the one that records which "
                    "answers `tokens.balance` swaps. Rename it."
                )
            values = (*values, (SWAPPED, "yes" if self.swaps(own) else "no"))
        other = example.counterfactual
        if other:
            other += text[len(own) :]
        return replace(example, text=text, turns=turns, values=values, counterfactual=other)


def check_ask(experiment: Experiment) -> None:
    """Check the rules for a question after each text."""
    data, tokens = experiment.data, experiment.tokens
    if tokens.ask is None:
        return
    if tokens.position.at != "last":
        raise rule_error(
            "with `ask`, probes read the last token, where the network is about to answer: remove "
            "`position`, or `ask`",
            "tokens.position",
        )
    if tokens.too_long == "truncate":
        raise rule_error(
            "`ask` excludes `too_long: truncate`, which cuts the question; use `error` or `skip`",
            "tokens.too_long",
        )
    excluded: dict[str, Any] = {
        "capture.generate": experiment.capture.generate,
        "data.columns.answers": tokens.answers and data.columns.answers,
    }
    for key, value in excluded.items():
        if value is not None:
            raise rule_error(f"`tokens.ask` excludes `{key}`", key)
    if data.has_words:
        raise rule_error(
            f"`ask` is about whole texts, and the format {data.format} has words", "tokens.ask"
        )
