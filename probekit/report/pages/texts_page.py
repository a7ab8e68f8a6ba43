"""Pages of the predictions of probes at the tokens of texts: one probe, or those of all layers."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from probekit.amounts import counted, fixed, format_number, joined_names, signed
from probekit.data.positions import position_text
from probekit.probes.probe_files import ProbeFacts
from probekit.probes.saved_probe import SavedProbe
from probekit.report.elements import page, style
from probekit.report.elements.page import Page, Paragraph, View
from probekit.report.elements.texts import capitalised, line_label, model_title, token_label
from probekit.report.elements.tokens import DENSEST, NUMBER, Palette, short_heading, short_label
from probekit.report.figures import maps
from probekit.results.network import RowPrediction, TextReading, tidy_rows
from probekit.results.table import metric_name, site_names

Layers = Sequence[tuple[SavedProbe, Sequence[TextReading]]]  # each probe with its predictions
METHOD = ("Colours show what can be decoded at a token, not what the model uses.",)
MOST_LABELS = 4  # named in the answer
MOST_LAYERS = 3  # named in the answer for each label
MOST_TOKENS = 24  # of a text whose map has numbers at the position that the probes were trained at
UNKNOWN = "{} is unknown: the texts have no labels."


def texts_page(readings: Sequence[TextReading], classes: Sequence[str], facts: ProbeFacts) -> str:
    """Return a self-contained HTML page with every token in the colour of its prediction."""
    palette = Palette.of(readings, classes)
    painted = []
    for reading in readings:
        # None for a text without the position that the probe was trained at.
        paint = reading.answer and palette.paint(reading.answer)
        tokens = painted_tokens(reading, palette)
        painted.append({"reading": reading, "paint": paint, "tokens": tokens})
    values = {"key": _key(palette), "densest": DENSEST, "texts": painted, "at": facts.at}
    values |= {"has_labels": bool(classes), "names_labels": len(classes) > 2}
    # A sentence for each score on the probe's own data set; the page shows the first one.
    tested = [f"On its own data set: {name} {score}." for name, score in _tested(facts).items()]
    elsewhere = "; never tested at other tokens" if facts.at != "all" else ""
    # The position at which the probe was trained, named as in results: `last`, `word:first-1`.
    trained = f"Trained at position `{position_text(facts.position)}`{elsewhere}."
    return Page(
        **_heading(facts, classes, f"Predictions of a {facts.kind} probe"),
        answer=texts_answer(readings),
        details=[Paragraph(" ".join(filter(None, [*tested[:1], facts.untested, trained])))],
        sections=[View("texts.html", values)],
        method=METHOD,
        facts={"Scores on the probe's own data set": _tested(facts)},
        styles=["texts.css"],
        scripts=[("texts.js",)],
    ).html()


def _heading(facts: ProbeFacts, classes: Sequence[str], what: str) -> dict[str, Any]:
    """Return the eyebrow, and the title: the question that a probe answers, and what is shown."""
    view = [facts.view] if facts.view != "raw" else []
    which = f"{capitalised(' or '.join(classes))}?"
    which = which if len(classes) <= 3 else f"Which of {len(classes)} classes?"
    eyebrow = ["probekit", model_title(facts.model), facts.site, *view]
    return {"eyebrow": eyebrow, "title": f"{which if classes else 'Which number?'} {what}"}


def layers_rows(layers: Layers) -> pd.DataFrame:
    """Return a row for each layer and token of each text, with the site of the probe."""
    return pd.DataFrame(
        {"site": probe.facts.site} | row
        for probe, readings in layers
        for row in tidy_rows(readings, probe.classes, "token")
    )


def layers_page(selected: SavedProbe, layers: Layers) -> Page:
    """Return a page with a map of each text: the score of each layer's own probe at each token.

    Args:
        selected: the selected probe, which is that of a layer.
        layers: the probe of each layer, in order of depth, with its predictions for the texts.
    """
    facts, classes = selected.facts, selected.classes
    names = site_names([probe.facts.site for probe, _ in layers])
    own = next(readings for probe, readings in layers if probe.facts.site == facts.site)
    labels = [_labels(reading, classes) for reading in own]
    maps_of = [
        {probe.facts.site: _towards(of_text, probe, readings[n]) for probe, readings in layers}
        for n, of_text in enumerate(labels)
    ]
    palette = Palette.of((one for of_text in maps_of for one in of_text.values()), classes, 1)
    sections, whole = [], texts_answer(own)
    for number, of_text in enumerate(labels):
        heading = f"{number + 1} · {short_heading(line_label(own[number].text))}"
        part = replace(_map_of_text(maps_of[number], palette, selected, of_text), title=heading)
        sections.append(page.PageSection(heading, [part], "first" * (number == 0)))
    answers = {names[site]: one.answer for site, one in maps_of[0].items() if one.answer}
    if len(own) == 1 and len(answers) > 1 and classes:
        clauses = []
        for label, n in Counter(one.label for one in answers.values()).most_common():
            at = [name for name, one in answers.items() if one.label == label]
            named = f" (layer{'s' * (n > 1)} {joined_names(at)})" * (n <= MOST_LAYERS)
            clauses.append(f"{n} predict{'s' * (n == 1)} {label}{named}")
        whole = f"Of {counted(len(answers), 'probe')}, {joined_names(clauses)}. The selected one "
        chosen, unit = answers[names[facts.site]], " SD" * bool(facts.projection_sd)
        score = f"{chosen.text}{unit}" if len(classes) == 2 else chosen.label
        right = UNKNOWN.format("Whether this is right")
        whole += f"({names[facts.site]}) predicts {score}. {right}"
    return Page(
        **_heading(facts, classes, f"Scores of the {facts.kind} probes of all layers"),
        answer=whole,
        details=[Paragraph(facts.untested)] if facts.untested else [],
        sections=sections,
        method=METHOD,
        facts={"Scores of the selected probe on its own data set": _tested(facts)},
        styles=page.WITH_MAPS,
    )


def _labels(reading: TextReading, classes: Sequence[str]) -> list[str]:
    """Return the label that high scores predict at each token; "" for numbers.

    Of several, it is the one that the selected probe predicts for the text, or else for the token.
    """
    if len(classes) <= 2:
        return ["".join(classes[1:])] * len(reading.answers)
    return [str((reading.answer or one).label) for one in reading.answers]


def _towards(labels: Sequence[str], probe: SavedProbe, reading: TextReading) -> TextReading:
    """Return a text with scores towards labels, in standard deviations of the score of each label.

    With several classes, a score is that of the label minus the highest other one. Numbers, and
    scores of probes without directions, are not scaled.
    """
    classes, sds = probe.classes, probe.facts.projection_sd

    def towards(answer: RowPrediction, label: str) -> RowPrediction:
        others = [
            score for name, score in zip(classes, answer.scores, strict=False) if name != label
        ]
        score = answer.scores[classes.index(label)] - max(others) if others else answer.score
        index = classes.index(label) if others else 0
        spread = math.hypot(*probe.directions[index]) * sds[index] if classes and sds else 1.0
        return replace(answer, score=score / (spread or 1.0))

    answer = None if reading.answer is None else towards(reading.answer, labels[0])
    return replace(reading, answers=tuple(map(towards, reading.answers, labels)), answer=answer)


def _map_of_text(
    readings: Mapping[str, TextReading],
    palette: Palette,
    selected: SavedProbe,
    labels: Sequence[str],
) -> page.FigurePart:
    """Return the map of a text as a figure of a page.

    Args:
        readings: the text with the scores of each layer, by site; see `_towards`.
        palette: gives the ends of the colour scale.
        selected: the selected probe.
        labels: the label that high scores predict at each token; "" for numbers.
    """
    facts, names, label = selected.facts, site_names(readings), labels[0]
    tokens, place = next((one.tokens, one.place) for one in readings.values())
    is_framed = facts.at != "all" and place is not None
    # Numbers are written in the framed cells, or in all.
    has_texts = len(tokens) <= (MOST_TOKENS if is_framed else maps.MOST_TEXTS // len(names))
    shown = maps.diverging(palette.high)
    if not label:
        high = max(palette.high, palette.low + maps.LEAST_RANGE)
        shown = maps.Colours(palette.low, high, style.MAGNITUDES, is_diverging=False)
    values, hover = [], []
    for site, reading in readings.items():
        for index, (token, answer) in enumerate(zip(tokens, reading.answers, strict=True)):
            values.append(answer.score)
            words = names[site], token_label(token), answer.label or "value"
            layer, here, predicted = map(style.plotly_text, words)
            hover.append(
                f"<b>{layer}</b> at [{index}] {here}<br>{predicted} {signed(answer.score)}"
            )
    across = [style.plotly_text(short_label(token)) for token in tokens]
    if len(set(labels)) > 1:
        label = "the label below the token, which the selected probe predicts,"
        across = [
            f"{token}<br>{style.plotly_text(one)}"
            for token, one in zip(across, labels, strict=True)
        ]
    down = list(map(style.plotly_text, names.values()))
    row = list(names).index(facts.site)
    down[row] = f"<b>{down[row]}</b>"
    how: Any = {"across": across, "down": down, "title": "", "most_texts": has_texts * len(values)}
    if is_framed:
        at_place = (n % len(tokens) == place for n in range(len(values)))
        how["texts"] = [fixed(v, 2) * is_own for v, is_own in zip(values, at_place, strict=True)]
    figure = maps.text_map(values, hover, shown, **how)
    trained = f"Each probe was trained at position {position_text(facts.position)} only"
    if facts.at == "all":
        trained = "Each probe was trained at every token"
    elif place is not None:
        maps.highlight_column(figure, place)
        trained += " (framed)"
    trained += " and was never tested at other tokens" * (facts.at != "all") + " (pale)" * is_framed
    score = f"score of {label}" if label else "predicted number"
    score += " minus the highest other" if len(palette.classes) > 2 else ""
    has_sd = bool(label and facts.projection_sd)
    unit = ", in standard deviations (SD) of the label's score over the fitted rows" * has_sd
    title = score.replace(f" of {label}", "") if len(set(labels)) > 1 else score
    other = palette.classes[0] if len(palette.classes) == 2 else "another label"
    zero = f"; below 0, {other} is predicted" if label else ""
    title = style.plotly_text(f"{title}{' (SD)' * has_sd}")
    maps.name_colours(figure, title)
    figure.update_xaxes(side="top")
    last = [f"{names[site]} {signed(one.answers[-1].score)}" for site, one in readings.items()]
    return page.FigurePart(
        title="Score by layer and token",
        figure=page.figure_json(maps.thin_ticks(figure)),
        caption=f"Rows are layers, each with its own {facts.kind} probe; columns are tokens. "
        f"Colours are the {score}{unit}{zero}. Values below {fixed(shown.low, 2)} and "
        f"above {fixed(shown.high, 2)} have the colours of these ends. {trained}. The selected "
        f"probe is in row {names[facts.site]} (bold).",
        description=f"Score by layer and token. At the last token: {'; '.join(last)}.",
        height=6 + maps.rows_height(len(down)),
        width=12 + len(tokens) * ((2 if is_framed else 3.4) if has_texts else 1.1),
    )


def texts_answer(readings: Sequence[TextReading]) -> str:
    """Return how many texts have which predicted label, as a sentence.

    If the probe gives no prediction for whole texts, tokens are counted instead.

    >>> texts_answer([TextReading("a", ("a",), ((0, 1),), (RowPrediction("b", 0.5),))])
    'The token is predicted as b. Whether this is right is unknown: the texts have no labels.'
    """
    of_texts = [reading.answer for reading in readings if reading.answer is not None]
    answers = of_texts or [answer for reading in readings for answer in reading.answers]
    unit = "text" if of_texts else "token"
    these = "Whether this is right" if len(answers) == 1 else "How many are right"
    if answers and answers[0].label is None:
        these = "The error"
    n_absent = len(readings) - len(of_texts)
    absent = f" {counted(n_absent, 'text')} without a prediction." if of_texts and n_absent else ""
    return f"{_labelled(answers, unit)}{absent} {UNKNOWN.format(these)}"


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
    ranked = labels.most_common()
    named = [f"{n:,} as {name}" for name, n in ranked[:MOST_LABELS]]
    n_rest = sum(n for _, n in ranked[MOST_LABELS:])
    named += [f"{n_rest:,} with other labels"] if n_rest else []
    return f"Of {counted(len(answers), unit)}, the probe predicts {joined_names(named)}."


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
    limit = fixed(palette.high, 2)
    if not palette.classes:
        ends = (f"≤ {fixed(palette.low, 2)}", f"≥ {limit}")
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
