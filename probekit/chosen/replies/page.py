"""Scores by share of a reply on a page."""

from collections.abc import Iterator

from probekit.chosen.page import Shown, sentence
from probekit.report.elements.page import FigurePart, Paragraph
from probekit.report.pages.further_figures import decodable_from, share_parts

SHARE = "share:"  # begins the position at a share of a reply


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield from which share of a reply on the label can be decoded, if there are shares."""
    best = run.verdict.best
    if best is not None and best.position.startswith(SHARE):  # those of other runs are not read
        text, is_useless = decodable_from(run.scores)
        if text:
            yield sentence(text, is_useless=is_useless)


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the figure of the score by share of the reply, if there are shares."""
    yield from share_parts(run.scores, run.verdict)
