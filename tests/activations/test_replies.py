"""Replies and the rows of their tokens: those of a pass over the text, without such a pass."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from probekit.activations import records, upkeep
from probekit.activations.capture import Work, fill
from probekit.activations.local import LocalFiles
from probekit.activations.outputs import OutputNumbers, with_output
from probekit.activations.records import REPLIES
from probekit.activations.replies import NotGeneratedError, generate_replies
from probekit.activations.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.errors import StoreError
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.gpt2 import GPT2
from probekit.model.generation import Decoding, continue_texts
from probekit.model.text.tokenizer import Tokenizer
from probekit.provenance import seal, unseal
from tests.activations.captures import files
from tests.model.families.configurations import ONE_PER_NETWORK
from tests.model.families.configurations import rows as rows_named

TOKENIZER = Tokenizer.from_pretrained("mini")
TEXTS = ["She said", "The keys to the old cabinet", "The old man in the house said that", "No, he"]
PROMPTS = [TOKENIZER.encode(text, bos=False).ids for text in TEXTS]
DECODING = Decoding(9, temperature=1.0, num_samples=3, seed=1)
# Sites before, in and after the last block.
SITES = ["hook_embed", "blocks.2.attn.hook_z", "blocks.5.mlp.hook_post", "ln_final.hook_normalized"]


@pytest.fixture(autouse=True)
def small_shards():
    """Shards and batches of their usual size, in place of those of other tests of captures."""


@pytest.fixture(scope="module")
def model():
    return GPT2.from_pretrained("mini")


def replies_in(folder, model, prompts=PROMPTS, decoding=DECODING, **options):
    options = {"sites": SITES, "dtype": "float32", "root": folder} | options
    return generate_replies(model, TOKENIZER, prompts, decoding, ["."], **options)


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    """A folder, and the replies in it."""
    folder = tmp_path_factory.mktemp("caches")
    return folder, replies_in(folder, model)


def finished(replies, prompts=PROMPTS):
    """Return the ids of all finished texts."""
    return [
        np.concatenate([prompt, np.array(reply.ids, dtype=np.int64)])
        for prompt in prompts
        for reply in replies.to(prompt)
    ]


class Passes:
    """Counts the tokens that the first block of a network reads."""

    def __init__(self, model):
        self.tokens, self.n = 0, 0
        self._hook = model.blocks[0].register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _block, args, options):
        value = next(one for one in (*args, *options.values()) if isinstance(one, torch.Tensor))
        self.tokens, self.n = self.tokens + value.shape[0] * value.shape[1], self.n + 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._hook.remove()


def capture(model, folder, replies, plan, **options):
    """Return the store of some rows of the finished texts, copied from the replies."""
    options = {"root": folder, "dtype": "float32", "reader": replies} | options
    work = Work.begin(model, TOKENIZER.digest, finished(replies), plan, SITES, **options)
    return fill(work, folder).store


def plan_of(replies):
    """Return rows of the last token of each text, and of the mean over its last three."""
    texts = finished(replies)
    lengths = np.array([len(text) for text in texts])
    positions = [part for n in lengths for part in ([n - 1], [n - 3, n - 2, n - 1])]
    return RowPlan(
        np.repeat(np.arange(len(texts)), 2),
        np.concatenate(positions),
        np.concatenate([[0], np.cumsum([len(part) for part in positions])]),
    )


def check_rows(model, replies, sites):
    """Check the rows of all texts against passes over the finished texts."""
    first = 0
    order = sorted(PROMPTS, key=lambda ids: (-len(ids), ids.tobytes()))
    for text in finished(replies, order):
        _, cache = model.run_with_cache(torch.from_numpy(text)[None], sites)
        for site in sites:
            rows = replies.read(site, np.arange(first, first + len(text))).reshape(len(text), -1)
            expected = cache[site][0].flatten(1).numpy()
            errors = np.linalg.norm(rows - expected, axis=1)
            assert (errors <= 1e-5 * np.linalg.norm(expected, axis=1)).all(), site
        first += len(text)


def test_rows_are_those_of_a_pass_over_the_finished_text(model, made):
    check_rows(model, made[1], SITES)


# Prompts and replies are longer than the windows of Phi-3 and of the Gemmas.
@pytest.mark.parametrize(
    "row", rows_named((*ONE_PER_NETWORK, "gemma3", "neox in sequence")), ids=lambda row: row.name
)
def test_rows_of_every_family_are_those_of_a_pass_over_the_finished_text(row, tmp_path):
    larger = replace(row, settings=dict(row.settings) | {"vocab_size": TOKENIZER.n_ids})
    network = from_transformers(larger.reference())
    sites = [site for site in network.sites if "pos" in network.sites.describe(site).axes]
    replies = replies_in(tmp_path, network, sites=sites)
    assert len({reply.ids for prompt in PROMPTS for reply in replies.to(prompt)}) > len(PROMPTS)
    check_rows(network, replies, sites)


def test_numbers_of_the_output_are_those_of_the_reply(model, made, tmp_path):
    _, replies = made
    plan, numbers, texts = plan_of(replies), OutputNumbers(), finished(replies)
    options = {"root": tmp_path, "dtype": "float32", "reader": replies}
    work = Work.begin(model, TOKENIZER.digest, texts, plan, SITES[:1], **options)
    store = fill(with_output(work, numbers), tmp_path).store
    found, rows = store.read(numbers.column), store.read(SITES[0])
    np.testing.assert_array_equal(rows, capture(model, tmp_path, replies, plan).read(SITES[0]))
    for text, (last, mean) in zip(texts, found.reshape(len(texts), 2, -1), strict=True):
        with torch.no_grad():
            log_p = model(torch.from_numpy(text)[None])[0, -3:].double().log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        np.testing.assert_allclose(last[[0, 3]], [entropy[2], -entropy[2]], atol=1e-5)
        following = [log_p[0, text[-2]], log_p[1, text[-1]], -entropy[2]]
        np.testing.assert_allclose(mean[[0, 3]], [entropy.mean(), np.mean(following)], atol=1e-5)


def test_replies_are_those_of_generation_without_a_tap(model, made):
    for text, prompt in zip(TEXTS, PROMPTS, strict=True):
        [expected] = continue_texts(model, TOKENIZER, [text], DECODING, bos=False, stop=["."])
        assert made[1].to(prompt) == expected
    assert {one.stopped_by for prompt in PROMPTS for one in made[1].to(prompt)} == {".", None}


@pytest.mark.usefixtures("of_one_prompt")
def test_captures_copy_the_rows_and_the_network_reads_each_token_once(model, tmp_path, monkeypatch):
    with Passes(model) as passes:
        replies = replies_in(tmp_path, model)
        n_tokens, n_passes = passes.tokens, passes.n
        # The tokens of each row: the prompt, and each new token once. A row that has ended before
        # others of its batch is padded.
        of_batch = [
            len(prompt) + max(len(reply.ids) + (reply.stopped_by is not None) for reply in group)
            for prompt, group in ((prompt, replies.to(prompt)) for prompt in PROMPTS)
        ]
        assert n_tokens == DECODING.num_samples * sum(of_batch)
        monkeypatch.setattr(records, "SHARD_ROWS", 5)
        monkeypatch.setitem(records.BATCH_TOKENS, "cpu", 30)
        plan = plan_of(replies)
        store = capture(model, tmp_path, replies, plan)
        assert len(store.shards) > 3
        assert (passes.tokens, passes.n) == (n_tokens, n_passes)
    texts = finished(replies)
    own = Work.begin(model, TOKENIZER.digest, texts, plan, SITES, root=tmp_path, dtype="float32")
    assert own.store.identity.key != store.identity.key
    expected = fill(own, tmp_path).store
    for site in SITES:
        a, b = (one.read(site).reshape(2 * len(texts), -1) for one in (store, expected))
        assert (np.linalg.norm(a - b, axis=1) <= 1e-5 * np.linalg.norm(b, axis=1)).all()


def test_padding_changes_rows_by_rounding_only(model, made, tmp_path):
    [prompt] = [ids for ids in PROMPTS if len(ids) == min(map(len, PROMPTS))][:1]
    alone = replies_in(tmp_path, model, [prompt])
    assert alone.to(prompt) == made[1].to(prompt)
    rows = np.arange(len(finished(alone, [prompt])[0]))
    padded = np.concatenate([prompt, np.array(alone.to(prompt)[0].ids, np.int64)])
    first = made[1]._first_row[padded.tobytes()]
    for site in SITES:
        a, b = alone.read(site, rows), made[1].read(site, first + rows)
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.fixture
def of_one_prompt(monkeypatch):
    """Parts of one prompt each."""
    monkeypatch.setattr("probekit.activations.records.batch_tokens", lambda _: 1)


@pytest.mark.usefixtures("of_one_prompt")
def test_an_interrupted_generation_resumes_with_the_same_bytes(model, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = replies_in(whole, model)
    for n in (1, 3):

        def stop(_step, done, _total, n=n):
            assert done < n, "stopped"

        with pytest.raises(AssertionError, match="stopped"):
            replies_in(parts, model, watcher=SimpleNamespace(progress=stop, tell=print))
        with pytest.raises(NotGeneratedError):
            replies_in(parts, model, only_stored=True)
    # A kill between the replies of a part and its rows.
    for path in next(parts.glob("replies-*/00002")).iterdir():
        if path.name != REPLIES:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with Passes(model) as passes:
        assert replies_in(parts, model).of_prompt == expected.of_prompt
        n_new = passes.n
        assert replies_in(parts, model).of_prompt == expected.of_prompt
        assert passes.n == n_new
    assert n_new == 2 * (1 + DECODING.max_new_tokens)
    assert files(parts) == files(whole)


def test_what_another_process_stored_is_not_generated_again(model, made, tmp_path, monkeypatch):
    lock = LocalFiles.lock

    def after_another(files, tell):
        shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
        return lock(files, tell)

    monkeypatch.setattr(LocalFiles, "lock", after_another)
    with Passes(model) as passes:
        assert replies_in(tmp_path, model).of_prompt == made[1].of_prompt
    assert passes.n == 0


def test_further_sites_are_added_to_the_same_replies(model, made, tmp_path):
    replies_in(tmp_path, model, sites=SITES[:1])
    assert replies_in(tmp_path, model).of_prompt == made[1].of_prompt
    assert files(tmp_path) == files(made[0])


def test_stored_replies_that_the_network_does_not_generate_are_refused(model, made, tmp_path):
    shutil.copytree(made[0], tmp_path / "caches")
    [path] = (tmp_path / "caches").glob(f"*/*/{REPLIES}")
    content = unseal(path.read_bytes(), "", 1)
    content["replies"][0][0]["ids"][0] += 1
    path.write_bytes(seal(content, 1))
    shutil.rmtree(path.parent / SITES[0])
    with pytest.raises(StoreError, match="generates other replies"):
        replies_in(tmp_path / "caches", model)


@pytest.mark.parametrize(
    "changes",
    [{"seed": 2}, {"temperature": 0.9}, {"top_k": 50}, {"top_p": 0.9}, {"max_new_tokens": 8}],
    ids=str,
)
def test_the_key_depends_on_the_decoding(model, made, tmp_path, changes):
    decoding = Decoding(**({**vars(DECODING), "max_new_tokens": 9} | changes))
    assert replies_in(tmp_path, model, decoding=decoding, sites=[]).key != made[1].key


def test_rows_in_half_precision_are_those_in_float32_rounded(model, made, tmp_path):
    rounded = replies_in(tmp_path, model, dtype="bfloat16")
    rows = np.arange(5)
    for site in SITES:
        expected = torch.from_numpy(made[1].read(site, rows)).bfloat16().float()
        assert torch.equal(torch.from_numpy(rounded.read(site, rows)), expected)


def test_replies_are_listed_and_removed_as_a_whole(made, tmp_path):
    root = tmp_path / "caches"
    shutil.copytree(made[0], root)
    [place] = upkeep.all_in(root)
    summary = upkeep.summarize(place)
    assert summary.key == place.name == f"replies-{made[1].key}"
    assert summary.rows == sum(map(len, finished(made[1])))
    assert summary.sites == dict.fromkeys(SITES, summary.rows)
    assert summary.bytes == sum(map(len, files(root).values()))
    [part] = place.glob("*")
    store = ActivationStore.open(part)
    assert (store.is_sealed, store.n_rows) == (True, summary.rows)
    assert store.identity.origin == f"replies {made[1].key}"
    assert upkeep.find_cache(place.name[:12], root) == place
    assert upkeep.remove_cache(place) == []
    assert not place.exists()
