"""Pages of the attention explorer."""

from functools import cache

import numpy as np
import pytest

from probekit.report.attention.page import AttentionExplorer
from probekit.results.network import AttentionPrompt
from tests.report.conftest import causal_patterns
from tests.report.explorer.page import HEADS, LAYERS, LONG, PATTERNS, SHORT, TOKENS, Page, scores

WORDS = tuple(f" word{i}" for i in range(LONG))
PAIR = ("The keys to the old cabinet were here", "The keys to the old cabinet was here")
LETTERS = tuple(f" {letter}" for letter in "abcdefg")
TEXTS = (TOKENS, ("The", " key", *TOKENS[2:]), TOKENS[:2])
SCORED = {"layers": LAYERS, "heads": HEADS, "scores": scores()}
ROUNDED = {"induction": np.array([[0.494, 0.496, 0.504, 0.506, np.nan]], np.float32)}
WEIGHTS = causal_patterns(SHORT)


def sparse(n, layers=2, heads=2):
    weights = np.random.default_rng(0).random((layers, heads, n, n), np.float32) ** 30 + 1e-9
    weights = np.tril(weights)
    return weights / weights.sum(-1, keepdims=True)


PROMPTS = {
    "scored": lambda: [
        AttentionPrompt("".join(text), text, own, **SCORED)
        for text, own in zip(TEXTS, PATTERNS, strict=True)
    ],
    "short": lambda: [AttentionPrompt(text, LETTERS, WEIGHTS) for text in PAIR],
    "long": lambda: [AttentionPrompt("".join(WORDS), WORDS, sparse(LONG))],
    "large": lambda: [AttentionPrompt("a", WORDS[:200], sparse(200, 12, 12))],
    "one layer": lambda: [AttentionPrompt("a", LETTERS, WEIGHTS[:1])],
    "one head": lambda: [AttentionPrompt("a", LETTERS, WEIGHTS[:, :1])],
    "alone": lambda: [AttentionPrompt("שלום, עולם!", LETTERS, WEIGHTS[:1, :1])],
    "two tokens": lambda: [AttentionPrompt("?!", LETTERS[:2], PATTERNS[2])],
    "rounded": lambda: [
        AttentionPrompt("a", LETTERS[:4], causal_patterns(4)[:1, [0] * 5], scores=ROUNDED)
    ],
}


@pytest.fixture(scope="session")
def page_of(tmp_path_factory):
    """A function that returns the path of a page of `PROMPTS`, written once for all tests."""
    folder = tmp_path_factory.mktemp("pages")
    return cache(
        lambda name: AttentionExplorer.of(PROMPTS[name](), "gpt2").save(folder / f"{name}.html")
    )


@pytest.fixture
def show(browser, page_of, tmp_path):
    """A function that opens an explorer, or a page of `PROMPTS`, with a URL fragment."""

    def show(page, hash="", **window):
        path = page_of(page) if isinstance(page, str) else page.save(tmp_path / "page.html")
        explorer = Page(browser, path, hash, **window)
        explorer.ready()
        return explorer

    yield show
    assert browser.trouble == []


@pytest.fixture
def explorer(show):
    return show("scored", "head=0.2.0")
