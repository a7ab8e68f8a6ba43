"""The table of sites: counts, order, shapes, and what people write for a site."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import probekit
from probekit.errors import ConfigError, UnknownNameError
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.generation import generate
from probekit.model.passes.cache import Recording
from tests.model.gpt2_sites import SITES, describe, expand, layer_of, select, site_names
from tests.model.reference import TINY


def test_gpt2_small_has_208_sites():
    assert len(site_names(12)) == 208
    assert len(set(site_names(12, on_request=True))) == 208 + 12


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


TOKENS = torch.tensor([[3, 14, 15, 92, 65], [35, 89, 79, 32, 38]])
HEAD, NEURON = "blocks.1.attn.hook_z[head=2]", "blocks.2.mlp.hook_post[neuron=10]"


@pytest.fixture(scope="module")
def model():
    config = GPT2Config(n_layer=4, n_head=3, n_embd=21, n_inner=11, vocab_size=97, n_positions=16)
    return GPT2(config).requires_grad_(False)


def test_a_captured_part_is_that_part_of_the_whole_site(model):
    names = [HEAD, NEURON, "blocks.0.attn.hook_pattern[head=1]"]
    logits, parts = model.run_with_cache(TOKENS, names)
    # Attention is fused or not in both passes.
    plain, whole = model.run_with_cache(TOKENS, [("z", 1), ("post", 2), ("pattern", 0)])
    assert list(parts) == [names[2], names[0], names[1]]
    assert torch.equal(parts[HEAD], whole["z", 1][:, :, 2])
    assert torch.equal(parts[NEURON], whole["post", 2][..., 10])
    assert torch.equal(parts[names[2]], whole["pattern", 0][:, 1])
    assert torch.equal(logits, plain)


def test_a_cache_of_a_whole_site_contains_its_parts(model):
    _, cache = model.run_with_cache(TOKENS)
    assert torch.equal(cache[HEAD], cache["z", 1][:, :, 2])
    assert torch.equal(cache["z[head=2]", -3], cache[HEAD])
    every = cache.stack("blocks.1.attn.hook_z[head=*]")
    assert torch.equal(every, cache["z", 1].permute(2, 0, 1, 3))
    assert torch.equal(cache["pattern", -1], cache["pattern", 3])
    _, few = model.run_with_cache(TOKENS, [HEAD])
    with pytest.raises(UnknownNameError, match=r"hook_z\[head=1\]\. Nearest: .*\[head=2\]"):
        few["blocks.1.attn.hook_z[head=1]"]
    with pytest.raises(UnknownNameError, match="does not contain"):
        few[NEURON]


@pytest.mark.parametrize(("name", "axis", "index"), [(HEAD, 2, 2), (NEURON, 2, 10)])
def test_a_change_of_a_part_equals_that_change_of_the_whole_site(model, name, axis, index):
    def zero_in_whole(_, value):
        value.select(axis, index).zero_()
        return value

    expected = model(TOKENS, tap=zero_in_whole, sites=name.partition("[")[0])
    assert not torch.equal(expected, model(TOKENS))
    assert torch.equal(model(TOKENS, tap=lambda _, v: v * 0, sites=name), expected)
    in_place = model(TOKENS, tap=lambda _, v: v.zero_(), sites=name)
    assert torch.equal(in_place, expected)


def test_whole_sites_come_before_their_parts_and_all_changes_count(model):
    seen = []

    def add(site, value):
        seen.append(site)
        return value + 1

    parts = ["blocks.1.attn.hook_z[head=0,2]", "blocks.1.attn.hook_z"]
    changed = model(TOKENS, tap=add, sites=parts)
    z = "blocks.1.attn.hook_z"
    assert seen == [z, f"{z}[head=0]", f"{z}[head=2]"]
    steps = torch.tensor([2.0, 1.0, 2.0])[:, None]
    expected = model(TOKENS, tap=lambda _, value: value + 1 + (steps - 1), sites=z)
    torch.testing.assert_close(changed, expected)


def test_gradients_flow_through_a_part(model):
    logits, cache = model.run_with_cache(TOKENS, [HEAD], grad=True)
    (own,) = torch.autograd.grad(logits[0, -1, 5], cache[HEAD])
    whole_logits, whole = model.run_with_cache(TOKENS, [("z", 1)], grad=True)
    (expected,) = torch.autograd.grad(whole_logits[0, -1, 5], whole["z", 1])
    torch.testing.assert_close(own, expected[:, :, 2])
    assert own.abs().sum() > 0


def test_generation_records_parts(model):
    record = Recording()
    names = [HEAD, "blocks.0.attn.hook_pattern[head=1]"]
    new = generate(model, TOKENS, 3, tap=record, sites=names)
    _, cache = model.run_with_cache(torch.cat([TOKENS, new[:, :-1]], 1), names)
    recorded = record.cache(model.sites)
    for name in names:
        torch.testing.assert_close(recorded[name], cache[name])


def test_a_tap_that_returns_another_shape_is_refused(model):
    with pytest.raises(ConfigError, match=r"\(2, 5, 3\) and .*hook_z\[head=2\].*\(2, 5, 7\)"):
        model(TOKENS, tap=lambda _, value: value[..., :3], sites=HEAD)


def test_axes_of_a_part_lack_the_selected_one():
    assert (
        GPT2Config().sites.axes_of("blocks.0.attn.hook_z") == describe("blocks.0.attn.hook_z").axes
    )
    assert GPT2Config().sites.axes_of(NEURON) == ("batch", "pos")


def test_what_is_no_pattern_is_refused(model):
    _, cache = model.run_with_cache(TOKENS, ["hook_embed"])
    with pytest.raises(UnknownNameError, match=r"No site matches 3\. Give a name, a glob"):
        _ = cache[3]
    with pytest.raises(UnknownNameError, match=r"No site matches None\. Give a name, a glob"):
        model.run_with_cache(TOKENS, ["hook_embed", None])


PACKAGE = Path(probekit.__file__).parent

BEFORE = '    Site("blocks.{l}.hook_resid_post",'
ROW = '    Site("blocks.{l}.hook_update", _D_MODEL, on_request=True),\n'
FORMULA_BEFORE = '        "blocks.{l}.hook_resid_post":'
FORMULA = '        "blocks.{l}.hook_update": "mlp_out - resid_mid",\n'
OUTPUT = '        return tap("hook_resid_post", resid + tap("hook_mlp_out", self.drop(mlp_out)))'
TAP = """        if tap.wants("hook_update"):
            update = tap("hook_update", tap("hook_mlp_out", self.drop(mlp_out)) - resid)
            return tap("hook_resid_post", 2 * resid + update)
"""
# From the names to a cache on disk.
USE = """
import sys
import numpy as np
import torch
from probekit.activations.capture import Work, fill
from probekit.data.positions import RowPlan
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.families.gpt2 import GPT2

name = "blocks.1.hook_update"
assert len(GPT2Config().sites.without_request) == 208
sites = GPT2Config(n_layer=2).sites
assert name not in sites.expand(["*"])
assert sites.expand(["blocks.*.hook_update"]) == sites.expand([("update", 0), ("update", 1)])
model = GPT2(GPT2Config(n_layer=2, n_head=3, n_embd=21, vocab_size=97, n_positions=16))
model.requires_grad_(False)
tokens = torch.tensor([[3, 14, 15, 92, 65], [35, 89, 79, 32, 38]])
parts = ["blocks.1.hook_resid_mid", "blocks.1.hook_mlp_out"]
logits, cache = model.run_with_cache(tokens, [name, *parts])
torch.testing.assert_close(cache[name], cache[parts[1]] - cache[parts[0]])
sizes = model.config.axis_sizes | {"batch": 2, "pos": 5}
assert cache[name].shape == tuple(sizes[axis] for axis in sites.describe(name).axes)
changed = model(tokens, tap=lambda site, value: value * 0, sites=[name])
assert not torch.allclose(changed, logits)
last = RowPlan(np.arange(2), np.array([4, 4]), np.arange(3))
where = {"root": sys.argv[1], "dtype": "float32"}
captured = fill(Work.begin(model, "t", list(tokens.numpy()), last, [name], **where), sys.argv[1])
np.testing.assert_allclose(captured.store.read(name), cache[name][:, -1], atol=1e-6)
"""


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new))


@pytest.mark.nightly
def test_a_site_on_request_is_added_by_its_row_and_its_tap(tmp_path):
    copy = tmp_path / "probekit"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("mini", "__pycache__", "assets"))
    edit(copy / "model/sites/catalogue.py", BEFORE, ROW + BEFORE)
    edit(copy / "model/families/gpt2.py", FORMULA_BEFORE, FORMULA + FORMULA_BEFORE)
    edit(copy / "model/families/gpt2.py", OUTPUT, TAP + OUTPUT)
    done = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path / "caches")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
