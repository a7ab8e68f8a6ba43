"""Numbers of the output are those of the probed token, whatever is stored, padded or batched."""

import os

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from benchmarks.tiny_networks import tiny_network
from probekit import Tokenizer, from_transformers, load_model
from probekit.activations import outputs, records
from probekit.activations.capture import Work, fill
from probekit.activations.outputs import NUMBERS, OutputNumbers, with_output
from probekit.activations.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.model.families.gpt2 import GPT2
from probekit.model.families.table import config_of, random_network
from probekit.model.weights.hub import find_model
from probekit.provenance import PART_VERSIONS
from tests.activations.captures import SITES, last_and_mean, make_tokens

TEXTS = (
    "It was the best of times, it was the worst of times.",
    "The keys to the old cabinet",
    "Call me Ishmael",
)


def captured(root, model, tokens, plan, numbers=None, sites=SITES[-1:], **how):
    """Return the store, and the numbers of each row."""
    numbers, how = numbers or OutputNumbers(), {"dtype": "float32"} | how
    work = Work.begin(model, "t", tokens, plan, sites, root=root, **how)
    store = fill(with_output(work, numbers), root).store
    return store, store.read(numbers.column)


def by_definition(logits, resid, ids, at, answers=None):
    """The numbers at one token, by plain formulas in float64."""
    z = logits.double().numpy()
    p = np.exp(z - z.max())
    p /= p.sum()
    entropy, (second, first) = -np.sum(p * np.log(p)), np.sort(z)[-2:]
    following = np.log(p[ids[at + 1]]) if at + 1 < len(ids) else -entropy
    found = [entropy, p.max(), first - second, following, np.linalg.norm(resid.double())]
    return found + ([] if answers is None else [z[answers[0]] - z[answers[1]]])


def test_numbers_are_those_of_transformers_on_the_same_ids(tmp_path):
    model, tokenizer = load_model("mini"), Tokenizer.from_pretrained("mini")
    tokens = [tokenizer.encode(text, bos=False).ids for text in TEXTS]
    plan, answers = last_and_mean(tokens), np.array([[5, 9], [7, 300]] * 3)
    _, found = captured(tmp_path, model, tokens, plan, OutputNumbers(answers))
    plain, last = GPT2LMHeadModel.from_pretrained(find_model("mini"), dtype=torch.float32), []
    plain.eval().transformer.h[-1].register_forward_hook(lambda *a: last.append(a[2]))
    for number, ids in enumerate(tokens):
        last.clear()
        with torch.no_grad():
            logits = plain(torch.from_numpy(ids)[None]).logits[0]
        resid = last[0][0] if isinstance(last[0], tuple) else last[0]
        resid = resid[0] if resid.ndim == 3 else resid
        pairs = answers[2 * number : 2 * number + 2]
        each = [
            [by_definition(logits[at], resid[at], ids, at, pair) for at in range(len(ids))]
            for pair in pairs
        ]
        np.testing.assert_allclose(found[2 * number], each[0][-1], rtol=1e-5, atol=1e-5)
        mean = np.mean(each[1], axis=0)
        np.testing.assert_allclose(found[2 * number + 1], mean, rtol=1e-5, atol=1e-5)


def test_they_are_those_of_the_token_that_is_read_and_not_of_a_later_one(tmp_path, model):
    tokens = [np.arange(3, 12), np.arange(3, 12), np.arange(3, 12)]
    tokens[1][6:], tokens[2][5:] = 50, 60  # after, or at, the token that follows position 4
    plan = RowPlan(np.arange(3), np.array([4, 4, 4]), np.arange(4))
    _, found = captured(tmp_path, model, tokens, plan)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    following = NUMBERS.index("next_log_probability")
    np.testing.assert_allclose(np.delete(found[2], following), np.delete(found[0], following))
    assert abs(found[2, following] - found[0, following]) > 0.01
    later = RowPlan(np.arange(3), np.array([6, 6, 6]), np.arange(4))
    _, elsewhere = captured(tmp_path / "later", model, tokens, later)
    assert (np.abs(elsewhere[:, 0] - found[:, 0]) > 1e-4).all()


def test_padding_batches_and_other_sites_change_nothing(tmp_path, monkeypatch, model):
    tokens = make_tokens()
    plan = last_and_mean(tokens)
    _, found = captured(tmp_path / "0", model, tokens, plan)
    _, with_sites = captured(tmp_path / "1", model, tokens, plan, sites=SITES)
    np.testing.assert_array_equal(with_sites, found)
    monkeypatch.setitem(records.BATCH_TOKENS, "cpu", 2000)  # one batch, nearly all padded
    _, padded = captured(tmp_path / "2", model, tokens, plan)
    np.testing.assert_allclose(padded, found, rtol=1e-5, atol=1e-6)
    rows = []
    uncapped = type(model).uncapped_logits
    monkeypatch.setattr(
        type(model), "uncapped_logits", lambda self, x: rows.append(len(x)) or uncapped(self, x)
    )
    monkeypatch.setattr(outputs, "_LOGITS", 5 * 97)  # logits of at most five tokens in memory
    _, in_parts = captured(tmp_path / "3", model, tokens, plan)
    np.testing.assert_allclose(in_parts, found, rtol=1e-5, atol=1e-6)
    assert max(rows) == 5
    # Only of tokens that rows read.
    assert sum(rows) == len(plan.positions)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_store_in_half_precision_does_not_round_them(tmp_path, model, dtype):
    tokens = make_tokens()
    plan = last_and_mean(tokens)
    _, exact = captured(tmp_path / "0", model, tokens, plan)
    store, found = captured(tmp_path / "1", model, tokens, plan, dtype=dtype)
    np.testing.assert_array_equal(found, exact)
    assert found.dtype == np.float32
    store.verify()
    assert store.sites == SITES[-1:]


def test_weights_that_are_read_for_each_pass_give_the_same_numbers(tmp_path):
    tokens = make_tokens(8)
    plan, answers = last_and_mean(tokens), np.tile([3, 8], (20, 1))
    found = [
        captured(
            tmp_path / f"{in_memory}",
            GPT2.from_pretrained("mini", dtype="float32", in_memory=in_memory),
            tokens,
            plan,
            OutputNumbers(answers),
            sites=SITES[:1] + SITES[-1:],
        )[1]
        for in_memory in (True, False)
    ]
    np.testing.assert_array_equal(*found)


def test_an_older_store_only_gains_the_numbers(tmp_path, model):
    tokens = make_tokens()
    plan = last_and_mean(tokens)
    work = Work.begin(model, "t", tokens, plan, SITES, root=tmp_path, dtype="float32")
    plain = fill(work, tmp_path)
    before = {site: plain.store.records(site) for site in SITES}
    numbers = OutputNumbers()
    work = with_output(work, numbers)
    assert {one for sites in work.missing_sites().values() for one in sites} == {numbers.column}
    again = fill(work, tmp_path)
    assert again.computed == len(work.shards)
    assert {site: again.store.records(site) for site in SITES} == before
    # It is sealed with the sites, so that its digest can be required.
    assert ActivationStore.open(again.store.folder, root=again.root).read(numbers.column).any()
    assert fill(work, tmp_path).computed == 0


def test_numbers_of_another_version_or_of_other_answers_are_another_column(monkeypatch):
    one, other = np.array([[1, 2]]), np.array([[2, 1]])
    names = {OutputNumbers().column, OutputNumbers(one).column, OutputNumbers(other).column}
    monkeypatch.setitem(PART_VERSIONS, "output", PART_VERSIONS["output"] + 1)
    names |= {OutputNumbers().column, OutputNumbers(one).column}
    assert len(names) == 5


def test_logits_are_capped_in_float32():
    sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11, "head_dim": 10}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    sizes |= {"model_type": "gemma2", "final_logit_softcapping": 0.1}
    model = random_network(config_of(sizes), seed=0)
    half = random_network(config_of(sizes), seed=0, dtype=torch.bfloat16)
    resid = torch.randn(4, 24, generator=torch.Generator().manual_seed(0))
    rows = np.arange(4)
    for network in (model, half):
        network.requires_grad_(False)
        found = OutputNumbers()._of_tokens(network, resid, np.full(4, 3), rows)
        x = network.uncapped_logits(network.final_norm(resid)).float()
        capped = 0.1 * torch.tanh(x / 0.1)
        assert not torch.allclose(capped, x, atol=0.05)
        assert found.dtype == torch.float32
        log_p = capped.double().log_softmax(-1)
        np.testing.assert_allclose(found[:, 3], log_p[:, 3], rtol=1e-5)
        np.testing.assert_allclose(found[:, 1], log_p.exp().amax(-1), rtol=1e-5)


def test_a_network_of_transformers_has_the_numbers_if_its_lens_is_proven(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    model = tiny_network("granitemoe")
    model = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager").eval()
    network = from_transformers(model)
    tokens = [np.array([20, 31, 42, 53, 64]), np.array([21, 30])]
    plan = RowPlan(np.arange(2), np.array([2, 1]), np.arange(3))
    _, found = captured(
        tmp_path,
        network,
        tokens,
        plan,
        sites=[f"blocks.{network.config.n_layers - 1}.hook_resid_post"],
    )
    for row, (ids, at) in enumerate(zip(tokens, (2, 1), strict=True)):
        with torch.no_grad():
            out = model(torch.from_numpy(ids)[None], output_hidden_states=True)
        expected = by_definition(out.logits[0, at], found[row, 4] * torch.ones(1), ids, at)
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-5)
    network.passes.refused["lens"] = "the logits have another origin"
    sites = [f"blocks.{network.config.n_layers - 1}.hook_resid_post"]
    work = Work.begin(network, "u", tokens, plan, sites, root=tmp_path, dtype="float32")
    assert with_output(work, OutputNumbers()) is work


def test_a_finished_cache_on_a_read_only_disk_is_read_without_them(tmp_path, model, monkeypatch):
    tokens = make_tokens()
    given = (model, "t", tokens, last_and_mean(tokens), SITES[-1:])
    fill(Work.begin(*given, root=tmp_path, dtype="float32"), tmp_path)
    work, numbers = Work.begin(*given, root=tmp_path, dtype="float32"), OutputNumbers()
    assert with_output(work, numbers) is not work
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert with_output(work, numbers) is work
    monkeypatch.undo()
    fill(with_output(work, numbers), tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert with_output(work, numbers) is not work  # the numbers are there
