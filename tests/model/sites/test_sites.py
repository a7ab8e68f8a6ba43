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
from probekit.errors import UnknownNameError
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.sites.catalogue import layer_of
from tests.model.gpt2_sites import SITES, describe, expand, select, site_names
from tests.model.reference import TINY
from tests.stored import each_line


def test_gpt2_small_has_208_sites():
    assert len(site_names(12)) == 208
    assert len(set(site_names(12, on_request=True))) == 208 + 12


def test_every_component_has_one_shorthand():
    for site in SITES:
        if site.in_block:
            assert expand([(site.component, 1)], 2) == (site.name.format(l=1),)


ONE = np.int64(1)


def chosen(patterns, n_layers):
    return [one.text for one in select(patterns, n_layers, TINY.axis_sizes)]


@each_line("call")
def test_patterns_select_sites_heads_and_neurons(call, snapshot):
    assert "\n".join(eval(call)) == snapshot


def test_globs_and_functions_exclude_sites_computed_on_request():
    assert "blocks.0.attn.hook_result" not in expand(["*"], 2)
    assert expand(lambda name: True, 2) == expand("*", 2)
    with pytest.raises(UnknownNameError, match="selects none of"):
        expand(lambda name: False, 2)


def test_layers_components_and_axes():
    z, neuron = "blocks.10.attn.hook_z", "blocks.2.mlp.hook_post[neuron=10]"
    assert (layer_of(z), layer_of("ln_final.hook_scale")) == (10, None)
    assert describe(z).component == "attn.z"
    assert GPT2Config().sites.axes_of(z) == describe(z).axes
    assert GPT2Config().sites.axes_of(neuron) == ("batch", "pos")  # they lack the selected one


TOKENS = torch.tensor([[3, 14, 15, 92, 65], [35, 89, 79, 32, 38]])
HEAD, NEURON = "blocks.1.attn.hook_z[head=2]", "blocks.2.mlp.hook_post[neuron=10]"


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY).requires_grad_(False)


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


@each_line("call")
def test_impossible_sites_and_parts_are_refused_with_the_nearest(model, refused, call):
    _, cache = model.run_with_cache(TOKENS, [HEAD])
    refused(eval, call, globals() | {"model": model, "cache": cache})


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
from probekit.model.families.gpt2 import GPT2, GPT2Config

name = "blocks.1.hook_update"
assert name not in GPT2Config(n_layer=2).sites.expand(["*"])
model = GPT2(GPT2Config(n_layer=2, n_head=3, n_embd=21, vocab_size=97, n_positions=16))
model.requires_grad_(False)
tokens = torch.tensor([[3, 14, 15, 92, 65], [35, 89, 79, 32, 38]])
parts = ["blocks.1.hook_resid_mid", "blocks.1.hook_mlp_out"]
logits, cache = model.run_with_cache(tokens, [name, *parts])
torch.testing.assert_close(cache[name], cache[parts[1]] - cache[parts[0]])
assert not torch.allclose(model(tokens, tap=lambda _, x: x * 0, sites=[name]), logits)
last, root = RowPlan(np.arange(2), np.array([4, 4]), np.arange(3)), sys.argv[1]
work = Work.begin(model, "t", list(tokens.numpy()), last, [name], root=root, dtype="float32")
captured = fill(work, root)
np.testing.assert_allclose(captured.store.read(name), cache[name][:, -1], atol=1e-6)
"""


@pytest.mark.nightly
def test_a_site_on_request_is_added_by_its_row_and_its_tap(tmp_path):
    copy = tmp_path / "probekit"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("mini", "__pycache__", "assets"))
    for file, old, new in (
        ("sites/catalogue.py", BEFORE, ROW + BEFORE),
        ("families/gpt2.py", FORMULA_BEFORE, FORMULA + FORMULA_BEFORE),
        ("families/gpt2.py", OUTPUT, TAP + OUTPUT),
    ):
        path = copy / "model" / file
        text = path.read_text()
        assert text.count(old) == 1, path
        path.write_text(text.replace(old, new))
    command = [sys.executable, "-c", USE, str(tmp_path / "caches")]
    env = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=tmp_path, env=env, check=True)
