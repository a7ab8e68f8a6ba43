"""Pages of the attention explorer."""

import numpy as np
import pytest

from probekit.report.attention.page import AttentionExplorer
from probekit.results.network import AttentionPrompt
from tests.report.conftest import causal_patterns
from tests.report.explorer.page import HEADS, LAYERS, LONG, SHORT, TOKENS, Page, scores

WORDS = tuple(f" word{i}" for i in range(LONG))
PAIR = ("The keys to the old cabinet were here", "The keys to the old cabinet was here")


@pytest.fixture(scope="session")
def patterns():
    return [causal_patterns(5), causal_patterns(5, seed=1), causal_patterns(2)]


@pytest.fixture(scope="session")
def page(patterns, tmp_path_factory):
    texts = (TOKENS, ("The", " key", *TOKENS[2:]), TOKENS[:2])
    prompts = [
        AttentionPrompt("".join(t), t, p, layers=LAYERS, heads=HEADS, scores=scores())
        for t, p in zip(texts, patterns, strict=True)
    ]
    explorer = AttentionExplorer.of(prompts, "gpt2")
    return explorer.save(tmp_path_factory.mktemp("attention") / "attention.html")


@pytest.fixture
def explorer(browser, page):
    explorer = Page(browser, page)
    explorer.go("head=0.2.0")
    yield explorer
    assert browser.trouble == []


def sparse(n, seed=0):
    weights = np.tril(np.random.default_rng(seed).random((2, 2, n, n), np.float32)) ** 30 + 1e-9
    weights = np.tril(weights)
    return weights / weights.sum(-1, keepdims=True)


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    tokens = tuple(f" {letter}" for letter in "abcdefg")
    prompts = {
        "short": [AttentionPrompt(text, tokens, causal_patterns(SHORT)) for text in PAIR],
        "long": [AttentionPrompt("".join(WORDS), WORDS, sparse(LONG))],
        "one layer": [AttentionPrompt("a", tokens, causal_patterns(SHORT)[:1])],
        "one head": [AttentionPrompt("a", tokens, causal_patterns(SHORT)[:, :1])],
        "alone": [AttentionPrompt("שלום, עולם!", tokens, causal_patterns(SHORT)[:1, :1])],
        "two tokens": [AttentionPrompt("?!", tokens[:2], causal_patterns(2))],
    }
    return {
        name: AttentionExplorer.of(given, "gpt2").save(folder / f"{name}.html")
        for name, given in prompts.items()
    }


@pytest.fixture
def show(browser, pages):
    """A function that opens a page of `pages` with a URL fragment."""

    def show(name, hash=""):
        explorer = Page(browser, pages[name])
        explorer.ready()
        if hash:
            explorer.go(hash)
        return explorer

    yield show
    assert browser.trouble == []
