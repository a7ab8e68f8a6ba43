"""A new site that is computed on request takes three edits: its name, its formula and its tap."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import probekit

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
from probekit.activations.capture import capture
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
captured = capture(model, "t", list(tokens.numpy()), last, [name], root=sys.argv[1])
np.testing.assert_allclose(captured.store.read(name), cache[name][:, -1], atol=1e-6)
"""


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new))


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
