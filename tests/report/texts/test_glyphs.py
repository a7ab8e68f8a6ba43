"""Visible labels of tokens and texts."""

import pytest

from probekit.report.texts import line_label, token_label


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("  a", "␣␣a"),
        ("\r\n", "␍⏎"),
        ("\u00a0", "<U+00A0>"),
        ("\u202e", "<U+202E>"),
        ("\ud800", "<U+D800>"),
        ("<0xE2>", "<0xE2>"),
        ("👩\u200d👧", "👩\u200d👧"),
    ],
)
def test_invisible_characters_of_tokens_become_visible(token, label):
    assert token_label(token) == label


def test_a_line_keeps_spaces_and_replaces_control_characters():
    assert line_label("a b\x1b]0;title\x07\r\n") == "a b<U+001B>]0;title<U+0007>␍⏎"
