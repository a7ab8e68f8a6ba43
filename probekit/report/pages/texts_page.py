"""Page of texts whose tokens are coloured by the predictions of a probe."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from probekit.amounts import counted, format_number
from probekit.data.positions import position_text
from probekit.probes.probe_files import ProbeFacts
from probekit.report.elements.page import Page, Paragraph, View
from probekit.report.elements.texts import model_title, token_label
from probekit.report.elements.tokens import DENSEST, NUMBER, Palette
from probekit.results.network import RowPrediction, TextReading
from probekit.results.table import metric_name

METHOD = ("Colours show what can be decoded at a token, not what the model uses.",)
MOST_LABELS = 4  # named in the answer


def texts_page(readings: Sequence[TextReading], classes: Sequence[str], facts: ProbeFacts) -> str:
    """Return a self-contained HTML page with every token in the colour of its prediction."""
    palette = Palette.of(readings, classes)
    painted = []
    for reading in readings:
        # None for a text without the position that the probe was trained at.
        paint = reading.answer and palette.paint(reading.answer)
        tokens = painted_tokens(reading, palette)
        painted.append({"reading": reading, "paint": paint, "tokens": tokens})
    values = {"key": _key(palette), "densest": DENSEST, "texts": painted}
    values |= {"has_labels": bool(classes), "names_labels": len(classes) > 2}
    view = [facts.view] if facts.view != "raw" else []
    # The question that the probe answers about a text.
    which = f"{' or '.join(classes)}?" if len(classes) <= 3 else f"Which of {len(classes)} classes?"
    # A sentence for each score on the probe's own data set; the page shows the first one.
    tested = [f"On its own data set: {name} {score}." for name, score in _tested(facts).items()]
    elsewhere = "; never tested at other tokens" if facts.at != "all" else ""
    # The position at which the probe was trained, named as in results: `last`, `word:first-1`.
    trained = f"Trained at position `{position_text(facts.position)}`{elsewhere}."
    return Page(
        eyebrow=["probekit", model_title(facts.model), facts.site, *view],
        title=f"{which if classes else 'Which number?'} Predictions of a {facts.kind} probe",
        answer=texts_answer(readings),
        details=[Paragraph(" ".join(filter(None, [*tested[:1], facts.untested, trained])))],
        sections=[View("texts.html", values)],
        method=METHOD,
        facts={"Scores on the probe's own data set": _tested(facts)},
        styles=["texts.css"],
        scripts=[("texts.js",)],
    ).html()


def texts_answer(readings: Sequence[TextReading]) -> str:
    """Return how many texts have which predicted label, as a sentence.

    If the probe gives no prediction for whole texts, tokens are counted instead.

    >>> texts_answer([TextReading("a", ("a",), ((0, 1),), (RowPrediction("b", 0.5),))])
    'The token is predicted as b. The probe was not tested on this text.'
    """
    of_texts = [reading.answer for reading in readings if reading.answer is not None]
    answers = of_texts or [answer for reading in readings for answer in reading.answers]
    unit = "text" if of_texts else "token"
    these = "this text" if len(readings) == 1 else "these texts"
    untested = f"The probe was not tested on {these}."
    n_absent = len(readings) - len(of_texts)
    absent = f" {counted(n_absent, 'text')} without a prediction." if of_texts and n_absent else ""
    return f"{_labelled(answers, unit)}{absent} {untested}"


def _labelled(answers: Sequence[RowPrediction], unit: str) -> str:
    """Return the counts of the predicted labels, most frequent first, or the range of numbers.

    Labels after the first `MOST_LABELS` are counted together.
    """
    if not answers:
        return "There is no prediction."
    labels = Counter(answer.label for answer in answers if answer.label is not None)
    if not labels:
        scores = [answer.score for answer in answers]
        low, high = min(scores), max(scores)
        values = f"{low:.2f}" if len(answers) == 1 else f"{low:.2f} to {high:.2f}"
        return f"Predicted for {counted(len(answers), unit)}: {values.replace('-', '−')}."
    if len(answers) == 1:
        return f"The {unit} is predicted as {next(iter(labels))}."
    (first, n), *rest = labels.most_common()
    others = [f"{count:,} {name}" for name, count in rest[: MOST_LABELS - 1]]
    n_rest = sum(count for _, count in rest[MOST_LABELS - 1 :])
    others += [f"{n_rest:,} with other labels"] if n_rest else []
    verb = "is" if n == 1 else "are"
    leading = f"{n:,} of {counted(len(answers), unit)} {verb} predicted as {first}"
    return f"{', '.join([leading, *others])}."


def painted_tokens(reading: TextReading, palette: Palette) -> list[dict[str, Any]]:
    """Return the tokens of a text, coloured by a palette, as a template shows them.

    Each has `space`, glyphs of its leading whitespace; `shown`, a label of the rest; `breaks`,
    whether it contains a newline, after which the page breaks the line; its `paint`; the `answer`
    of the probe; and the `score` of the answer, with more digits.
    """
    tokens = []
    for token, answer in zip(reading.tokens, reading.answers, strict=True):
        rest = token.lstrip()
        space, score = token_label(token[: len(token) - len(rest)]), format_number(answer.score)
        of_answer = {"paint": palette.paint(answer), "answer": answer, "score": score}
        of_token = {"space": space, "shown": token_label(rest), "breaks": "\n" in token}
        tokens.append(of_token | of_answer)
    return tokens


def _key(palette: Palette) -> dict[str, Sequence[Any]]:
    """Return `names` with their hues, and as `ends` the scores along a colour scale.

    More than two classes have no scale, so that their `ends` are ().
    """
    limit = format_number(palette.high)
    if not palette.classes:
        ends = (f"≤ {format_number(palette.low)}", f"≥ {limit}")
        return {"names": [("value", NUMBER)], "ends": ends}
    names = [(name, palette.hue(name)) for name in palette.classes]
    is_scale = len(palette.classes) == 2
    return {"names": names, "ends": (f"≤ −{limit}", "0", f"≥ +{limit}") if is_scale else ()}


def _tested(facts: ProbeFacts) -> dict[str, str]:
    """Return the held-out scores of the probe by the name of the metric."""
    tested = {}
    for name, score in facts.metrics.items():
        ends = [end for end in (score.ci_low, score.ci_high) if end is not None]
        chance = "" if score.chance is None else f", chance {format_number(score.chance)}"
        value = format_number(score.value, *ends)
        tested[metric_name(name)] = f"{value} on {score.n:,} held-out rows{chance}"
    return tested
