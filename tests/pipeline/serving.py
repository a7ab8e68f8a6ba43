"""Files of hidden states in the form that vLLM documents for `extract_hidden_states`.

vLLM needs a GPU, so the files are written here: one .safetensors file for each request, named after
it, with `token_ids` (n_tokens,) and `hidden_states` (n_tokens, n_layers, d_model).
"""

import numpy as np
import torch
from safetensors.torch import save_file

from probekit.model.families.table import load_model
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.engines.table import prepare

LAYERS = ("blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "blocks.3.hook_resid_post")


def hidden_states(experiment, cache, sites=LAYERS):
    """Token ids and float32 hidden states of each distinct text, as this network computes them.

    At the probed tokens they are the rows of a capture, since batches change the last bits.
    """
    texts, model = prepare(experiment).texts, load_model(experiment.model.source)
    store = capture_only(experiment, cache_root=cache)["task"].store
    of_text = {}
    for ids in texts.ids:
        _, values = model.run_with_cache(torch.as_tensor(ids)[None], list(sites))
        of_text[ids.tobytes()] = (ids, torch.stack([values[site][0] for site in sites], 1))
    is_single = np.diff(texts.plan.offsets) == 1
    at = texts.plan.positions[texts.plan.offsets[:-1]]
    for column, site in enumerate(sites):
        for row in np.flatnonzero(is_single):
            ids = texts.ids[texts.plan.example[row]]
            (values,) = torch.from_numpy(store.read(site, [row]))
            of_text[ids.tobytes()][1][at[row], column] = values
    return list(of_text.values())


def write_requests(folder, requests, metadata=None):
    """Write one file for each request, in an order that has nothing to do with the texts."""
    folder.mkdir()
    for number in np.random.default_rng(0).permutation(len(requests)):
        ids, states = requests[number]
        tensors = {"token_ids": torch.as_tensor(ids), "hidden_states": states.contiguous()}
        save_file(tensors, folder / f"cmpl-{7919 * (number + 1) % 100_003}-0.safetensors", metadata)
    return folder
