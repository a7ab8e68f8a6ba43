"""The table of sites: counts, order, shapes, and what people write for a site."""

import numpy as np
import pytest
import torch

from probekit.errors import ConfigError, UnknownNameError
from probekit.model.families.gpt2 import GPT2
from tests.model.gpt2_sites import SITES, describe, expand, layer_of, select, site_names
from tests.model.reference import TINY


def test_gpt2_small_has_208_sites():
    assert len(site_names(12)) == 208
    assert len(set(site_names(12, on_request=True))) == 208 + 12


def test_the_axes_in_the_table_are_the_shapes_of_the_values():
    sizes = TINY.axis_sizes | {"batch": 2, "pos": 5, "query_pos": 5, "key_pos": 5}
    names = site_names(TINY.n_layer, on_request=True)
    _, cache = GPT2(TINY).run_with_cache(torch.ones(2, 5, dtype=torch.int64), sites=names)
    for name, value in cache.items():
        assert tuple(value.shape) == tuple(sizes[axis] for axis in describe(name).axes), name


def test_every_component_has_one_shorthand():
    for site in SITES:
        if site.in_block:
            assert expand([(site.component, 1)], 2) == (site.name.format(l=1),)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("blocks.0.hook_resid_prr", "hook_resid_pre"),
        ("blocks.4.hook_resid_pre", "4 blocks, 0 to 3"),
        ("blocks.*.hook_nothing", "No site matches"),
        (("patern", 1), "pattern"),
        (("normalized", 1), "ln1.normalized"),
        (("pattern", 4), "4 blocks, 0 to 3"),
        ("", "No site matches"),
    ],
)
def test_an_unknown_site_raises_an_error_with_the_nearest(pattern, message):
    with pytest.raises(UnknownNameError, match=message):
        expand([pattern], 4)


def test_globs_exclude_sites_computed_on_request():
    assert "blocks.0.attn.hook_result" not in expand(["*"], 2)
    assert expand(["blocks.*.attn.hook_result"], 2) == (
        "blocks.0.attn.hook_result",
        "blocks.1.attn.hook_result",
    )


def test_layers_and_components():
    assert layer_of("blocks.10.attn.hook_z") == 10
    assert layer_of("ln_final.hook_scale") is None
    assert describe("blocks.10.attn.hook_z").component == "attn.z"


def test_heads_and_neurons_are_selected_in_the_order_of_the_forward_pass():
    chosen = select(
        ["blocks.*.attn.hook_z[head=2]", "blocks.0.mlp.hook_post[neuron=10]"], 2, TINY.axis_sizes
    )
    assert [selection.text for selection in chosen] == [
        "blocks.0.attn.hook_z[head=2]",
        "blocks.0.mlp.hook_post[neuron=10]",
        "blocks.1.attn.hook_z[head=2]",
    ]


@pytest.mark.parametrize(
    ("pattern", "heads"),
    [("[head=*]", [0, 1, 2]), ("[head=2,0]", [0, 2]), ("[head=2, 0]", [0, 2]), ("", [None])],
)
def test_several_heads_are_selected_at_once_each_by_itself(pattern, heads):
    chosen = select([f"blocks.[02].attn.hook_z{pattern}"], 3, TINY.axis_sizes)
    assert [(c.site, c.head) for c in chosen] == [
        (f"blocks.{layer}.attn.hook_z", head) for layer in (0, 2) for head in heads
    ]


def test_all_neurons_are_as_many_as_the_model_has_and_none_comes_twice():
    chosen = select(["blocks.0.mlp.hook_pre[neuron=*]"] * 2, 1, TINY.axis_sizes)
    assert [c.neuron for c in chosen] == list(range(11))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("blocks.0.attn.hook_z[head=3]", "0 to 2"),
        ("blocks.0.attn.hook_z[head=0,3]", "0 to 2, several separated by commas, or \\* for"),
        ("blocks.0.attn.hook_z[head=]", "0 to 2"),
        ("blocks.0.attn.hook_z[head=**]", "0 to 2"),
        ("blocks.0.hook_resid_pre[head=*]", "no head"),
        ("blocks.0.attn.hook_z[head=-1]", "0 to 2"),
        ("blocks.0.attn.hook_z[heads=1]", "Allowed: head, neuron"),
        ("blocks.0.hook_resid_pre[head=1]", "no head"),
        (
            "blocks.0.attn.hook_z[head=1",
            r"write \[head=3\] .*\[head=\*\] for all\. Nearest: blocks\.0\.attn\.hook_z\[head=1\]",
        ),
        ("hook_z[head", r"Nearest: blocks\.\*\.attn\.hook_z\[head=0\]\."),
        ("blocks.0.mlp.hook_post[neuron 17]", r"Nearest: blocks\.0\.mlp\.hook_post\[neuron=17\]"),
        ("hook_z", r"every block: write 'blocks\.0\.attn\.hook_z' for one, 'blocks\.\*\.attn"),
    ],
)
def test_impossible_selections_are_refused(pattern, message):
    with pytest.raises(ConfigError, match=message):
        select([pattern], 2, TINY.axis_sizes)


def test_a_short_name_without_layer_raises_an_error_with_both_spellings():
    with pytest.raises(
        UnknownNameError, match=r"\('pattern', 0\).*'blocks\.\*\.attn\.hook_pattern'"
    ):
        expand(["pattern"], 2)


def test_negative_layers_count_from_the_last_block():
    assert expand([("pattern", -1), ("pattern", -2)], 2) == expand("blocks.*.attn.hook_pattern", 2)
    with pytest.raises(UnknownNameError, match="2 blocks, -2 to 1"):
        expand([("pattern", -3)], 2)


def test_a_function_of_the_name_selects_sites():
    posts = expand(lambda name: name.endswith("resid_post"), 2)
    assert posts == expand("blocks.*.hook_resid_post", 2)
    both = expand([lambda name: "pattern" in name, ("z", 0)], 2)
    assert both == expand(["blocks.*.attn.hook_pattern", ("z", 0)], 2)
    # Like a glob, a function selects sites computed on request only if it selects no other.
    assert expand(lambda name: True, 2) == expand("*", 2)
    assert expand(lambda name: "result" in name, 1) == ("blocks.0.attn.hook_result",)
    with pytest.raises(UnknownNameError, match="selects none of"):
        expand(lambda name: False, 2)


def test_layers_may_be_numbers_of_numpy():
    assert expand([("pattern", np.int64(1))], 2) == ("blocks.1.attn.hook_pattern",)
    assert expand(("pattern", np.int64(1)), 2) == ("blocks.1.attn.hook_pattern",)
