"""The same error planted at every module of a block, in turn: none is accepted."""

import copy

import pytest
import torch

from benchmarks.tiny_networks import tiny_network
from probekit.model.proven.proof import prove
from tests.model.proven.planted import replaced

BLOCK = 1


def first(out):
    return out[0] if isinstance(out, tuple) else out


def with_first(out, new):
    return (new, *out[1:]) if isinstance(out, tuple) else new


def leak_between_texts(module):
    """The output of each text has a little of the mean over the batch."""

    def forward(_, original, *args, **kwargs):
        out = original(*args, **kwargs)
        x = first(out)
        return with_first(out, x + 1e-5 * x.mean(0, keepdim=True)) if len(x) > 1 else out

    replaced(module, forward)


def leak_from_later_tokens(module):
    """The output at each position has a little of the last position."""

    def forward(_, original, *args, **kwargs):
        out = original(*args, **kwargs)
        x = first(out)
        return with_first(out, x + 1e-5 * x[:, -1:])

    replaced(module, forward)


def copy_that_runs(module):
    """A copy of the module computes its output; hooks inside see the original."""
    hidden = copy.deepcopy(module)

    def forward(_, original, *args, **kwargs):
        original(*args, **kwargs)
        return hidden(*args, **kwargs)

    replaced(module, forward)


def cached_step_that_differs(module):
    """In a pass over one token, as in a generation, the features of the output are rotated."""

    def forward(_, original, *args, **kwargs):
        out = original(*args, **kwargs)
        x = first(out)
        return with_first(out, x.roll(1, -1)) if x.shape[1] == 1 else out

    replaced(module, forward)


# Mutant -> feature that must be refused; None if it is a site inside the module.
MUTANTS = {
    leak_between_texts: "all",
    leak_from_later_tokens: "all",
    copy_that_runs: None,
    cached_step_that_differs: "generation",
}
AT_NIGHT = ("gpt2", "cohere", "gemma3_text", "gpt_neox", "falcon", "qwen3_5_text")


def modules_of_block(model_type):
    """Return the names of the modules of a block with an output of shape (batch, pos, n)."""
    model, found = tiny_network(model_type, layers=2), []
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    handles = []
    for name, module in blocks[BLOCK].named_modules():

        def keep(_, __, out, name=name):
            # Others have an axis of heads before that of positions.
            if isinstance(first(out), torch.Tensor) and first(out).ndim == 3:
                found.append(name)

        handles.append(module.register_forward_hook(keep))
    model(torch.tensor([[30, 40, 50]]))
    return list(dict.fromkeys(found))


def hooked_modules(proven):
    """Return the names of the modules at which sites are read."""
    places = {p.module for layer in proven.layers for step in layer.steps for p in step.places}
    seen = {door[0] for layer in proven.layers for door in layer.seen}
    inside = {f"{name}.attention function" for name in proven.attention.values()}
    return places | seen | inside | set(proven.linears.values())


def accepted_mutants(model_type, names):
    """Return the mutants that are accepted, by module and kind of mutant."""
    accepted = []
    clean = prove(tiny_network(model_type, layers=2))
    hooked = hooked_modules(clean)
    for name in names:
        full = f"{clean.block(BLOCK)}.{name}".removesuffix(".")
        for mutant, feature in MUTANTS.items():
            if feature is None and not any(one.startswith(f"{full}.") for one in hooked):
                continue  # nothing inside is named
            model = tiny_network(model_type, layers=2)
            mutant(model.get_submodule(full))
            proven = prove(model, sites=None if feature is None else ())
            if feature is None:
                is_refused = proven.sites.keys() < clean.sites.keys()
            else:
                is_refused = feature in proven.refused or "all" in proven.refused
            if not is_refused:
                accepted.append((name, mutant.__name__))
    return accepted


def test_no_mutant_of_a_llama_is_accepted():
    names = modules_of_block("llama")
    assert len(names) > 10
    assert accepted_mutants("llama", names) == []


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", AT_NIGHT)
def test_no_mutant_of_another_type_is_accepted(model_type):
    assert accepted_mutants(model_type, modules_of_block(model_type)) == []
