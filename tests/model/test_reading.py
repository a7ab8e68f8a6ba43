"""Networks whose weights are read when a pass needs them: the bits of the same ones in memory."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from probekit.errors import CheckpointError, ConfigError
from probekit.model.families.table import load_model, random_network
from probekit.model.generation import generate
from probekit.model.network import Network
from probekit.model.weights.state_dict import digest_weights
from probekit.pipeline.experiment.plan import zero_network
from tests.test_golden import NETWORKS, TOKENS, network

TOKENS = torch.from_numpy(TOKENS)


@pytest.fixture(params=NETWORKS)
def folder(request, tmp_path):
    """A checkpoint of each architecture."""
    network(request.param).save_pretrained(tmp_path)
    return tmp_path


def assert_all_dropped(model):
    """Only the final norm, which analyses use, stays in memory."""
    norm = model.config.WEIGHTS.norm
    kept = [name for name, parameter in model.named_parameters() if not parameter.is_meta]
    assert kept == [name for name in model.state_dict() if name.startswith(f"{norm}.")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_number_is_that_of_the_network_in_memory(folder, dtype):
    whole = load_model(folder, dtype)
    read = load_model(folder, dtype, in_memory=False)
    assert (whole.is_in_memory, read.is_in_memory) == (True, False)
    assert (read.dtype, read.device) == (whole.dtype, whole.device)
    assert digest_weights(read) == digest_weights(whole)
    logits, expected = whole.run_with_cache(TOKENS, ["*", "blocks.*.attn.hook_result"])
    again, cache = read.run_with_cache(TOKENS, ["*", "blocks.*.attn.hook_result"])
    assert torch.equal(again, logits)
    assert all(torch.equal(cache[site], expected[site]) for site in expected)
    assert torch.equal(read.loss(TOKENS), whole.loss(TOKENS))
    resid = expected["resid_pre", 1]
    assert torch.equal(read.resume(resid, 1), whole.resume(resid, 1))
    assert torch.equal(read.head_output(1)[0], whole.head_output(1)[0])
    if "blocks.1.mlp.hook_post" in expected:
        assert torch.equal(read.mlp_output(1), whole.mlp_output(1))
    assert torch.equal(read.unembedding, whole.unembedding)
    assert torch.equal(read.last_norm.gain, whole.last_norm.gain)
    if whole.position_embedding is not None:
        assert torch.equal(read.position_embedding, whole.position_embedding)
    assert_all_dropped(read)


def test_it_is_saved_as_it_was_read_and_not_trained(folder, tmp_path):
    read = load_model(folder, in_memory=False)
    read.save_pretrained(tmp_path / "copy")
    assert digest_weights(load_model(tmp_path / "copy")) == digest_weights(read)
    with pytest.raises(ConfigError, match="cannot be trained"):
        read.requires_grad_()


def test_a_file_that_is_replaced_is_noticed(folder):
    read = load_model(folder, in_memory=False)
    network("llama").save_pretrained(folder)
    with pytest.raises(CheckpointError, match="changed while its weights were used"):
        read(TOKENS)


def test_it_generates_the_same_tokens(folder):
    read, whole = load_model(folder, in_memory=False), load_model(folder)
    assert torch.equal(generate(read, TOKENS[:, :4], 5), generate(whole, TOKENS[:, :4], 5))
    assert_all_dropped(read)


def test_threads_share_a_network(folder):
    read, expected = load_model(folder, in_memory=False), load_model(folder)(TOKENS)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: read(TOKENS), range(30)))
    assert all(torch.equal(logits, expected) for logits in found)


def test_a_failing_tap_leaves_no_weights_in_memory(folder):
    read = load_model(folder, in_memory=False)
    with pytest.raises(ZeroDivisionError):
        read(TOKENS, tap=lambda _, value: value / (1 // 0), sites=[("resid_post", 0)])
    assert_all_dropped(read)


@pytest.mark.parametrize("name", NETWORKS)
def test_random_weights_are_drawn_again(name):
    config = network(name).config
    whole = random_network(config, 5, torch.bfloat16)
    drawn = random_network(config, 5, torch.bfloat16, in_memory=False)
    assert digest_weights(drawn) == digest_weights(whole)
    assert torch.equal(drawn(TOKENS), whole(TOKENS))


def test_passes_together_read_each_weight_once(folder):
    read, count = load_model(folder, in_memory=False), {}
    whole, site = load_model(folder), "blocks.1.hook_resid_post"

    def counted(name, reader):
        def call():
            count[name] = count.get(name, 0) + 1
            return reader()

        return call

    read._readers = {name: counted(name, reader) for name, reader in read._readers.items()}
    found, mask = [], torch.ones(1, 11, dtype=torch.bool)
    passes = [(row[None], mask, lambda _, x: found.append(x) or x, None) for row in TOKENS]
    assert list(read.run_together(passes, [site])) == [range(len(passes))] * 3
    for row, value in zip(TOKENS, found, strict=True):
        assert torch.equal(value, whole.run_with_cache(row[None], [site], mask)[1][site])
    assert set(count.values()) == {1}
    names = whole.config.WEIGHTS
    unused = {f"{names.norm}.weight", f"{names.norm}.bias", names.unembedding}
    assert set(count) == set(whole.state_dict()) - unused


def test_a_network_for_timing_has_the_shapes_and_no_numbers():
    config = network("llama").config
    zeros = zero_network(config, torch.bfloat16)
    assert isinstance(zeros, Network)
    assert zeros(TOKENS).shape == (2, 11, 97)
    assert not any(weight.any() for weight in zeros.parameters())
