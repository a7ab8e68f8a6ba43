"""Planted errors: each is refused with its reason, or noticed in the pass that has it."""

import copy

import pytest
import torch
from torch import nn
from transformers.models.llama import modeling_llama as llama

from benchmarks.tiny_networks import tiny_network
from probekit.model.proven.doors import NotProvenError
from probekit.model.proven.proof import prove
from tests.model.proven.planted import replaced

BLOCK, LAST = 2, 3
LONG = 64  # tokens; no text of the proof has as many


def ids_of(*shape):
    return torch.randint(20, 98, shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    return tiny_network("llama")


def scaled(factor, when=lambda x: True):
    def forward(_, original, x, *args, **kwargs):
        out = original(x, *args, **kwargs)
        return out * factor if when(x) else out

    return forward


def attention_fault(change):
    """Change z and pattern of the eager attention of one block."""

    def plant(model, monkeypatch):
        native, module = llama.eager_attention_forward, model.model.layers[BLOCK].self_attn

        def attention(one, *args, **kwargs):
            z, pattern = native(one, *args, **kwargs)
            return change(z, pattern) if one is module else (z, pattern)

        monkeypatch.setattr(llama, "eager_attention_forward", attention)

    return plant


def in_block(forward, number=BLOCK):
    return lambda model, _: replaced(model.model.layers[number], forward)


def in_mlp(forward):
    return lambda model, _: replaced(model.model.layers[BLOCK].mlp, forward)


def runs_a_copy(module):
    hidden = copy.deepcopy(module)

    def forward(_, original, *args, **kwargs):
        original(*args, **kwargs)
        return hidden(*args, **kwargs)

    replaced(module, forward)


def reversed_blocks(model, _):
    class Reversed(nn.ModuleList):
        def __getitem__(self, index):
            if isinstance(index, slice):
                return list(self)[index][::-1]
            return super().__getitem__(index)

    model.model.layers.__class__ = Reversed


def normed_at_the_end(model, _):
    norm = copy.deepcopy(model.model.norm)
    replaced(model.model.layers[LAST], lambda _, original, *a, **k: norm(original(*a, **k)))
    model.model.norm = nn.Identity()


def ignores_padding(model, _):
    def forward(_, original, *args, **kwargs):
        return original(*args, **{**kwargs, "attention_mask": None, "position_ids": None})

    replaced(model, forward)


def ids_of_padding_leak(model, _):
    """Padding is masked, but its ids change the scale of every token by a little."""
    embedding = model.model.embed_tokens

    def forward(_, original, ids):
        return original(ids) * (1 + 1e-6 * (ids == 7).sum(1).view(-1, 1, 1))

    replaced(embedding, forward)


def batch_leak(size):
    def forward(_, original, x, *args, **kwargs):
        out = original(x, *args, **kwargs)
        return out + size * out.mean(0, keepdim=True) if len(x) > 1 else out

    return forward


def later_leak(_, original, x, *args, **kwargs):
    out = original(x, *args, **kwargs)
    return out + 1e-7 * x.mean(1, keepdim=True)


def without_gradient(_, original, x, *args, **kwargs):
    return original(x.detach(), *args, **kwargs)


def half_a_gradient(_, original, x):
    out = original(x)
    return out.detach() / 2 + out / 2


def nan_in_a_later_row(_, original, x, *args, **kwargs):
    out = original(x, *args, **kwargs).clone()
    out[:, 1:2, :1] = float("nan")
    return out


HEADS = {f"blocks.{BLOCK}.attn.{one}" for one in ("hook_rot_q", "hook_pattern", "hook_z")}
SUMS = {f"blocks.{BLOCK}.hook_attn_out", f"blocks.{BLOCK}.hook_mlp_out"}
# How an error is planted -> sites or features that are refused, and words of a reason.
FAULTS = {
    "a block's output times 1.0001": (in_block(scaled(1.0001)), SUMS, "not a sum of outputs"),
    "a block's output times 1 + 1e-7": (in_block(scaled(1 + 1.2e-7)), SUMS, "not a sum"),
    "z times 1.0001": (
        attention_fault(lambda z, pattern: (z * 1.0001, pattern)),
        HEADS,
        "z is not pattern @ v",
    ),
    "heads of the pattern permuted": (
        attention_fault(lambda z, pattern: (z, pattern.flip(1))),
        HEADS,
        "z is not pattern @ v",
    ),
    "keys of the pattern permuted": (
        attention_fault(lambda z, pattern: (z, pattern.roll(1, -1))),
        HEADS,
        "z is not pattern @ v",
    ),
    "no pattern": (attention_fault(lambda z, _: (z, None)), HEADS, "pattern has shape None"),
    "blocks in another order": (reversed_blocks, {"all"}, "is not the input of the next"),
    "a copy of a block runs": (
        lambda model, _: runs_a_copy(model.model.layers[BLOCK]),
        {*SUMS, *HEADS, f"blocks.{BLOCK}.mlp.hook_post"},
        "does not",
    ),
    "a copy of an MLP runs": (
        lambda model, _: runs_a_copy(model.model.layers[BLOCK].mlp),
        {f"blocks.{BLOCK}.mlp.hook_post"},
        "does not reach the logits",
    ),
    "the last output is normed": (
        normed_at_the_end,
        {f"blocks.{LAST}.hook_mlp_out"},
        "not a sum of outputs",
    ),
    "padding is ignored": (ignores_padding, {"padding on the left"}, "values change by"),
    "ids of padding leak": (
        ids_of_padding_leak,
        {"padding on the left", "padding on the right"},
        "ids under padding",
    ),
    "a block leaks between texts": (in_block(batch_leak(1e-5)), {"all"}, "other texts of a batch"),
    "an MLP leaks between texts": (in_mlp(batch_leak(1e-7)), {"all"}, "other texts of a batch"),
    "a block reads later tokens": (in_block(later_leak), {"all"}, "later tokens change"),
    "an MLP reads later tokens": (in_mlp(later_leak), {"all"}, "later tokens change"),
    "a gradient is cut": (in_block(without_gradient), {"gradients"}, "hook_resid_pre"),
    "a gradient is halved": (in_mlp(half_a_gradient), {"gradients"}, "mlp.hook_post: gradient"),
    "a cached step differs": (
        in_block(scaled(1.01, lambda x: x.shape[1] == 1)),
        {"generation"},
        "values of a generation differ",
    ),
    "a NaN in one row": (in_block(nan_in_a_later_row), {"all"}, "not finite"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_error_is_refused(name, model, monkeypatch):
    plant, missing, words = FAULTS[name]
    plant(model, monkeypatch)
    proven = prove(model)
    assert missing <= set(proven.refused)
    assert not missing & set(proven.sites)
    assert words in " ".join(proven.refused[one] for one in missing)


@pytest.mark.parametrize("number", [0, 3])
def test_experts_that_regroup_rows_do_not_excuse_a_leak_in_attention(number):
    """Behind regrouped rows, only blocks that are called alone on equal streams show it."""
    model = tiny_network("gpt_oss")
    clean = prove(model, sites=())
    assert clean.facts["regroups"] == [2]
    assert "all" not in clean.refused

    def forward(_, original, *args, **kwargs):
        out, *more = original(*args, **kwargs)
        return out + 1e-6 * out.mean(1, keepdim=True), *more

    replaced(model.model.layers[number].self_attn, forward)
    reason = prove(model, sites=()).refused["all"]
    assert f"later tokens change addition 1 of block {number}, whose input is equal" in reason


def test_experts_may_differ_by_rounding_only():
    model = tiny_network("olmoe")
    replaced(model.model.layers[BLOCK].mlp, batch_leak(1e-3))
    reason = prove(model, sites=()).refused["all"]
    assert "other texts of a batch change addition 2 of block 2, whose input is equal" in reason


def test_without_a_planted_error_nothing_is_refused(model):
    proven = prove(model)
    assert not proven.refused
    assert len(proven.sites) == 4 * 11


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (scaled(1.0001, lambda x: x.shape[1] >= LONG), "addition 2 of block 2 does not hold"),
        (nan_in_a_later_row, "values are not finite after block 2"),
    ],
)
def test_an_error_in_long_texts_is_noticed_in_the_pass(forward, words, model):
    def only_long(self, original, x, *args, **kwargs):
        call = forward if x.shape[1] >= LONG else scaled(1)
        return call(self, original, x, *args, **kwargs)

    replaced(model.model.layers[BLOCK], only_long)
    proven = prove(model)
    assert not proven.refused
    short, long = ids_of(2, LONG - 1), ids_of(2, LONG)
    proven.run(short, sites=proven.sites, check=True)
    proven.run(long, sites=proven.sites)
    for sites in (proven.sites, ["blocks.2.hook_resid_mid"], ["blocks.2.hook_resid_post"]):
        with pytest.raises(NotProvenError, match=f"{words} in text 0"):
            proven.run(long, sites=sites, check=True, logits=False)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (BLOCK, "block 2 does not read the output of block 1 in text 1"),
        (4, "the final norm does not read the output of block 3 in text 1"),
    ],
)
def test_a_stream_that_changes_between_blocks_is_noticed_in_the_pass(number, words, model):
    """As in models that add images between blocks; the error names the text of the batch."""

    class Between(nn.Module):
        def forward(self, x, **_):
            if x.shape[1] >= LONG:
                x[1, 0, 0] += 1  # in place
            return x

    class Changed(nn.ModuleList):
        def __getitem__(self, index):
            blocks = list(self)[index]
            return [*blocks[:number], between, *blocks[number:]]

    between = Between()
    model.model.layers.__class__ = Changed
    proven = prove(model)
    assert not proven.refused
    with pytest.raises(NotProvenError, match=words):
        proven.run(ids_of(3, LONG), sites=["blocks.3.hook_resid_post"], check=True)


def test_what_is_refused_cannot_be_used(model):
    ignores_padding(model, None)
    proven = prove(model, sites=())
    right = torch.ones(2, 9).long()
    right[0, -3:] = 0
    proven.run(ids_of(2, 9), right)
    with pytest.raises(NotProvenError, match="padding on the left is not proven: values change"):
        proven.run(ids_of(2, 9), right.flip(1))
    for feature, use in {
        "gradients": lambda: proven.run(ids_of(1, 5), grad=True),
        "generation": lambda: proven.run(None, via=lambda: None),
        "lens": lambda: proven.unembed(torch.zeros(1, 5, 32)),
    }.items():
        proven.refused[feature] = "a reason"
        with pytest.raises(NotProvenError, match=f"{feature} is not proven: a reason"):
            use()


def test_foreign_forwards_and_hooks_are_refused(model):
    block = model.model.layers[1]
    block.forward = lambda x, **_: x
    assert "model.layers.1 has a forward of its own" in prove(model).refused["all"]
    del block.forward
    handle = block.register_forward_hook(lambda *_: None)
    assert "model.layers.1 has a forward hook" in prove(model).refused["all"]
    handle.remove()
    handle = model.register_forward_pre_hook(lambda *_: None)
    assert "the model has a forward hook" in prove(model).refused["all"]
    handle.remove()
    assert not prove(model, sites=()).refused
