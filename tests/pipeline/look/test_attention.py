import html
import re

import numpy as np
import pytest
import torch

from probekit import GPT2, Tokenizer, explore_attention
from probekit.errors import ConfigError
from probekit.pipeline.look.attention import attention_prompt, write_attention_page
from probekit.report.attention.page import SCORE_NAMES

TEXT = "The keys to the old cabinet, the keys to the old cabinet"


@pytest.fixture(scope="module")
def mini():
    return GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")


def test_patterns_and_scores_equal_those_of_the_model(mini):
    model, tokenizer = mini
    ids = torch.tensor(tokenizer.encode(TEXT, bos=True).ids)
    _, cache = model.run_with_cache(ids[None], sites=[("pattern", 3)], logits=False)
    prompt = attention_prompt(*mini, TEXT, bos=True, layer=3)
    np.testing.assert_allclose(prompt.patterns[0], cache["pattern", 3][0], atol=1e-6)
    assert prompt.tokens[:2] == ("<|endoftext|>", "The")
    assert set(prompt.scores) == set(SCORE_NAMES)
    previous = np.diagonal(prompt.patterns[0], -1, 1, 2).mean(-1)
    np.testing.assert_allclose(prompt.scores["previous_token"][0], previous, rtol=1e-5)
    one = attention_prompt(*mini, TEXT, bos=True, layer=3, head=3)
    assert (one.layers, one.heads, one.patterns.shape[:2]) == ((3,), (3,), (1, 1))
    for name, score in one.scores.items():
        assert score[0, 0] == pytest.approx(prompt.scores[name][0, 3], rel=1e-5)


def test_single_text_is_not_split_into_letters(mini):
    explorer = explore_attention(*mini, TEXT, bos=False, name="mini")
    assert [prompt.text for prompt in explorer.prompts] == [TEXT]
    assert html.escape(explorer.page()) in explorer._repr_html_()


def test_size_is_printed_before_the_page_is_written(tmp_path):
    out = tmp_path / "page.html"
    messages = []

    class Watcher:
        def tell(self, message):
            messages.append((message, out.exists()))

    assert write_attention_page("mini", [TEXT], out, bos=False, watcher=Watcher()) == out
    size, opening = messages
    assert size == ("About 0.1 MB: 24 heads of 15 tokens.", False)
    assert re.fullmatch(r"The page opens on L\dH\d: of 24 heads, .*", opening[0])
    assert out.stat().st_size < 0.25e6


@pytest.mark.parametrize(
    ("name", "value"),
    [("layer", 6), ("head", -1), ("most_mb", 0.01), ("texts", []), ("texts", ["word " * 300])],
    ids=["layer", "head", "size", "no text", "long text"],
)
def test_errors_are_reported_and_write_nothing(tmp_path, name, value, refused):
    given = {"texts": [TEXT], "bos": False, "out": tmp_path / "page.html"}
    refused(write_attention_page, "mini", **given | {name: value})
    refused(write_attention_page, "mini", **given | {"texts": [""]})
    with pytest.raises(ConfigError, match="toaster"):
        write_attention_page("mini", **given, device="toaster")
    assert not list(tmp_path.iterdir())
