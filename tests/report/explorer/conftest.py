"""Pages of the attention explorer."""

import numpy as np
import pytest

from probekit.report.attention.page import AttentionExplorer
from probekit.results.network import AttentionPrompt
from tests.report.conftest import causal_patterns
from tests.report.explorer.page import HEADS, LAYERS, LONG, SHORT, TOKENS, Page, scores

WORDS = tuple(f" word{i}" for i in range(LONG))
PAIR = ("The keys to the old cabinet were here", "The keys to the old cabinet was here")
LETTERS = tuple(f" {letter}" for letter in "abcdefg")
PATTERNS = [causal_patterns(5), causal_patterns(5, seed=1), causal_patterns(2)]
SCORED = {"layers": LAYERS, "heads": HEADS, "scores": scores()}
ROUNDED = {"induction": np.array([[0.494, 0.496, 0.504, 0.506, np.nan]], np.float32)}


@pytest.fixture(scope="session")
def patterns():
    return PATTERNS


def sparse(n, seed=0):
    weights = np.tril(np.random.default_rng(seed).random((2, 2, n, n), np.float32)) ** 30 + 1e-9
    weights = np.tril(weights)
    return weights / weights.sum(-1, keepdims=True)


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    short = causal_patterns(SHORT)
    texts = (TOKENS, ("The", " key", *TOKENS[2:]), TOKENS[:2])
    equal = np.broadcast_to(causal_patterns(4)[:1, :1], (1, 5, 4, 4))
    prompts = {
        "scored": [
            AttentionPrompt("".join(text), text, own, **SCORED)
            for text, own in zip(texts, PATTERNS, strict=True)
        ],
        "short": [AttentionPrompt(text, LETTERS, short) for text in PAIR],
        "long": [AttentionPrompt("".join(WORDS), WORDS, sparse(LONG))],
        "one layer": [AttentionPrompt("a", LETTERS, short[:1])],
        "one head": [AttentionPrompt("a", LETTERS, short[:, :1])],
        "alone": [AttentionPrompt("שלום, עולם!", LETTERS, short[:1, :1])],
        "two tokens": [AttentionPrompt("?!", LETTERS[:2], causal_patterns(2))],
        "rounded": [AttentionPrompt("a", LETTERS[:4], equal, scores=ROUNDED)],
    }
    return {
        name: AttentionExplorer.of(given, "gpt2").save(folder / f"{name}.html")
        for name, given in prompts.items()
    }


@pytest.fixture
def show(browser, pages, tmp_path):
    """A function that opens an explorer, or a page of `pages`, with a URL fragment."""

    def show(page, hash="", **window):
        path = pages[page] if isinstance(page, str) else page.save(tmp_path / "page.html")
        explorer = Page(browser, path, **window)
        explorer.ready()
        if hash:
            explorer.go(hash)
        return explorer

    yield show
    assert browser.trouble == []


@pytest.fixture
def explorer(show):
    return show("scored", "head=0.2.0")
