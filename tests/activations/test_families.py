"""A capture of every storable site of a family, in which rows depend on nothing but their text."""

import numpy as np
import pytest
import torch

from probekit.model.families.from_transformers import from_transformers
from tests.activations.captures import make_tokens, run
from tests.model.families.configurations import ONE_PER_NETWORK, rows


@pytest.mark.parametrize("row", rows(ONE_PER_NETWORK), ids=lambda row: row.name)
def test_every_storable_site_is_that_of_one_pass_whatever_the_order(row, tmp_path):
    model, tokens = from_transformers(row.reference()), make_tokens(8)
    sites = [site for site in model.sites if "pos" in model.sites.describe(site).axes]
    store = run(tmp_path / "a", model, tokens, sites).store
    passes = [model.run_with_cache(torch.from_numpy(ids)[None], sites)[1] for ids in tokens]
    order = np.random.default_rng(5).permutation(len(tokens))
    turned = run(tmp_path / "b", model, [tokens[n] for n in order], sites).store
    for site in sites:
        found = store.read(site).reshape(len(tokens), 2, -1)  # the last token, and the mean
        again = turned.read(site).reshape(found.shape)
        np.testing.assert_array_equal(again, found[order], err_msg=site)
        values = [cache[site][0].flatten(1).numpy() for cache in passes]
        expected = np.stack([[value[-1], value.mean(0)] for value in values])
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5, err_msg=site)
