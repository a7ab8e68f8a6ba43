"""Places of given sites on the layer axis."""

import pytest

from probekit.activations.given.formats import natural
from probekit.activations.given.given import placed_sites


def places(*names):
    return [(site.component, site.layer, site.order) for site in placed_sites(names)]


def test_numbers_of_layers_are_found_among_other_numbers():
    assert places("gpt2_layer_1", "gpt2_layer_10") == [
        ("gpt2_layer_*", 1, 0),
        ("gpt2_layer_*", 10, 1),
    ]
    assert places("block.1.sub.0", "block.2.sub.0")[1] == ("block.*.sub.0", 2, 1)
    assert places("only_3") == [("only_*", 3, 0)]
    assert places("gpt2") == [("sites", None, 0)]


def test_two_kinds_of_site_share_the_layers():
    assert places("h.0.mlp", "h.0.attn", "h.1.mlp", "h.1.attn", "h.2.mlp") == [
        ("h.*.mlp", 0, 0),
        ("h.*.attn", 0, 0),
        ("h.*.mlp", 1, 1),
        ("h.*.attn", 1, 1),
        ("h.*.mlp", 2, 2),
    ]
    second_has_more = places("a0", "a2", "b0", "b1", "b2")
    assert [order for _, _, order in second_has_more] == [0, 2, 0, 1, 2]


def test_names_without_a_number_join_the_only_line():
    assert places("embed", "l0", "l1", "final") == [
        ("l*", None, 0),
        ("l*", 0, 1),
        ("l*", 1, 2),
        ("l*", None, 3),
    ]


def test_the_given_order_is_kept_if_layers_do_not_ascend():
    assert [order for _, _, order in places("l9", "l1", "l5")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["layer_10", "layer_9"], ["layer_9", "layer_10"]),
        (["b", "a2", "a10", "a"], ["a", "a2", "a10", "b"]),
        (["2", "10", "x"], ["2", "10", "x"]),
    ],
)
def test_natural_order(names, expected):
    assert sorted(names, key=natural) == expected
