"""A killed and resumed run gives the same weights; batches and measurements are exact."""

import shutil
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.passes.inputs import NOT_COUNTED
from probekit.model.text.tokenizer import Tokenizer
from probekit.terminal import SILENT
from probekit.training import loop
from probekit.training.corpus import make_token_file, read_corpus, train_vocabulary
from probekit.training.loop import held_out_loss, make_optimizers, repeat_losses
from probekit.training.recipe import RepeatsSection, TrainingSection
from probekit.training.run_files import read_log, read_progress
from tests.training.recipes import tiny_recipe, write_corpus


class Killer:
    """A watcher that ends the run after a step."""

    def __init__(self, step):
        self.step = step

    def progress(self, name, done, total):
        if done == self.step:
            raise KeyboardInterrupt

    def tell(self, message):
        pass


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A folder with the texts and the vocabulary of all runs."""
    folder = tmp_path_factory.mktemp("vocabulary")
    recipe = tiny_recipe(write_corpus(folder / "texts"))
    texts = read_corpus(**recipe.corpus.model_dump())
    train_vocabulary([text.train for text in texts], recipe.vocabulary.size, folder)
    return folder


def run(recipe, folder, vocabulary, watcher=SILENT):
    """Train in a folder and return weights, log and checkpoints."""
    texts = read_corpus(**recipe.corpus.model_dump())
    tokenizer = Tokenizer.from_pretrained(vocabulary)
    tokens = make_token_file(texts, tokenizer, folder / "tokens", SILENT)
    kept = {}

    def keep(model, step):
        kept[step] = {n: p.detach().clone() for n, p in model.named_parameters()}

    model = loop.train(recipe, tokens, 300, folder, read_progress(folder), keep, watcher=watcher)
    return dict(model.named_parameters()), read_log(folder / "log.csv"), kept


@pytest.fixture(scope="module")
def finished(vocabulary, tmp_path_factory):
    """A function that returns the folder and the results of a finished run, made once."""

    @cache
    def finished(optimizer="adamw"):
        folder = tmp_path_factory.mktemp(optimizer)
        recipe = tiny_recipe(vocabulary / "texts", training__optimizer=optimizer)
        return folder, run(recipe, folder, vocabulary)

    return finished


@pytest.fixture
def go(tmp_path, vocabulary):
    """A function that trains in a folder of this test."""
    return lambda recipe, name="run", **others: run(recipe, tmp_path / name, vocabulary, **others)


def losses(log):
    return [(row.loss, row.gradient_norm, str(row.held_out_loss)) for row in log]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("killed_after", [1, 7, 8])
def test_a_killed_run_goes_on_to_the_same_weights_and_losses(
    go, make_recipe, finished, optimizer, killed_after
):
    recipe = make_recipe(training__optimizer=optimizer)
    _, (whole, log, kept) = finished(optimizer)
    torch.manual_seed(99)  # random draws between the two have no effect
    with pytest.raises(KeyboardInterrupt):
        go(recipe, watcher=Killer(killed_after))
    resumed, log_of_resumed, kept_after = go(recipe)
    assert losses(log) == losses(log_of_resumed)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert all(torch.equal(kept[12][name], kept_after[12][name]) for name in whole)


def test_a_finished_run_is_not_begun_again(go, make_recipe, finished, tmp_path):
    folder, (whole, log, _) = finished()
    shutil.copytree(folder, tmp_path / "run")
    again, log_again, kept = go(make_recipe())
    assert losses(log) == losses(log_again)
    assert not kept
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_the_seed_decides(go, make_recipe, finished):
    assert losses(finished()[1][1]) != losses(go(make_recipe(seed=1))[1])


def test_nothing_of_the_global_generator_is_used(go, make_recipe):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    go(make_recipe())
    assert torch.equal(torch.rand(3), expected)


def test_dropout_changes_the_loss_and_parts_of_a_batch_add_up_to_the_whole(
    go, make_recipe, finished
):
    still = {f"model__{name}": 0.0 for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop")}
    whole = go(make_recipe(**still), "whole")[1]
    assert finished()[1][1][0].loss != whole[0].loss
    parts = go(make_recipe(training__accumulate=4, **still), "parts")[1]
    for one, other in zip(whole, parts, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-4)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-2)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "steps", "most"),
    [
        ("adamw", "float32", 150, 3.0),
        ("muon", "bfloat16", 70, 3.2),
        pytest.param("muon", "bfloat16", 150, 3.0, marks=pytest.mark.nightly),
    ],
)
def test_it_learns(go, make_recipe, optimizer, dtype, steps, most):
    training = {"optimizer": optimizer, "dtype": dtype, "steps": steps, "learning_rate": 1e-2}
    changes = {f"training__{name}": value for name, value in training.items()}
    _, log, _ = go(make_recipe(**changes, repeats__share=(0.0, 0.0), validation__every=steps))
    assert log[0].loss > 5.5
    # The words are drawn evenly: 15 of them, and where a sentence ends.
    assert log[-1].held_out_loss < most


def test_the_first_checkpoint_is_the_network_before_training(make_recipe, finished):
    _, (_, _, kept) = finished()
    assert sorted(kept) == [0, 6, 12]
    fresh = dict(GPT2(make_recipe().model.config(300), seed=0).named_parameters())
    assert all(torch.equal(fresh[name], kept[0][name]) for name in fresh)


def test_measurements_stand_where_they_were_asked_for(finished):
    _, (_, log, _) = finished()
    assert [row.step for row in log if row.held_out_loss == row.held_out_loss] == [5, 10, 12]
    assert [row.step for row in log] == list(range(1, 13))
    assert log[-1].tokens == 12 * 4 * 32


def test_a_state_of_other_tokens_is_refused(go, make_recipe, corpus, finished, tmp_path, refused):
    shutil.copytree(finished()[0], tmp_path / "run")
    (corpus / "a.txt").write_text((corpus / "a.txt").read_text()[::-1])
    refused(go, make_recipe())


def test_a_run_killed_between_log_and_state_is_resumed(go, make_recipe, finished, tmp_path):
    """The log may have more steps than the state; the extra rows may be cut anywhere."""
    folder, (_, whole, _) = finished()
    with pytest.raises(KeyboardInterrupt):
        go(make_recipe(), watcher=Killer(5))
    path = tmp_path / "run/log.csv"
    ahead = (folder / "log.csv").read_text().splitlines(keepends=True)[5:9]
    path.write_text(path.read_text() + "".join(ahead)[:-7])
    _, resumed, _ = go(make_recipe())
    assert losses(resumed) == losses(whole)


def test_a_training_that_diverges_ends_with_a_way_out(go, make_recipe, tmp_path, refused):
    with pytest.raises(KeyboardInterrupt):
        go(make_recipe(), watcher=Killer(8))
    path = tmp_path / "run" / "state.safetensors"
    tensors = load_file(path)
    tensors["model.wpe.weight"][3] = torch.nan
    loop.write_state(path, tensors, read_progress(path.parent))
    refused(go, make_recipe())


N_CTX = 8


def batches(n_tokens=200, n_rows=4, share=(0.0, 0.0), seed=3, **repeats):
    repeats = RepeatsSection(share=share, period=(2, 4), **repeats)
    return loop.Batches(np.arange(n_tokens, dtype=np.uint16), n_rows, N_CTX, 500, repeats, seed)


def test_each_token_of_the_text_predicts_the_next():
    ids, targets = batches().at(0)
    assert ids.shape == targets.shape == (4, N_CTX)
    assert (targets == ids + 1).all()


def test_a_pass_reads_every_window_once_and_the_next_in_another_order():
    one = batches(n_rows=1)
    n = one.n_windows
    steps = range(n), range(n, 2 * n)
    passes = [[one.at(step)[0][0].tolist() for step in some] for some in steps]
    for rows in passes:
        read = sorted(token for row in rows for token in row)
        assert len(read) == len(set(read)) == one.n_windows * N_CTX
    assert sorted(passes[0]) != passes[0]
    assert passes[0] != passes[1]


def test_no_window_reaches_beyond_the_text():
    for n_tokens in range(2 * N_CTX, 4 * N_CTX):
        for seed in range(10):
            one = batches(n_tokens, n_rows=1, seed=seed)
            assert all(one.at(step)[1].shape == (1, N_CTX) for step in range(4))


def test_a_step_is_deterministic():
    first, second = batches(share=(0.5, 0.5)), batches(share=(0.5, 0.5))
    second.at(7), second.at(2)
    for step in (5, 2):
        assert all((a == b).all() for a, b in zip(first.at(step), second.at(step), strict=True))
    assert (first.at(5)[0] != batches(share=(0.5, 0.5), seed=4).at(5)[0]).any()


def test_repeated_rows_repeat_and_only_what_can_be_known_is_counted():
    ids, targets = batches(n_rows=6, share=(0.99, 0.99)).at(20)
    for row, target in zip(ids, targets, strict=True):
        period = 1 + int((target == NOT_COUNTED).sum())
        assert 2 <= period <= 4
        assert (row[period:] == row[:-period]).all()
        assert (target[: period - 1] == NOT_COUNTED).all()
        known = np.resize(row[:period], 2 * N_CTX)[period : N_CTX + 1]
        assert (target[period - 1 :] == known).all()


@pytest.mark.parametrize("steps", [50, 400])
def test_the_share_of_repeated_rows_moves_from_first_to_last(steps):
    falling = batches(n_rows=10, share=(0.6, 0.2), grow_steps=200)
    counted = sum(int((falling.at(n)[1] == NOT_COUNTED).any(1).sum()) for n in range(steps))
    shares = [0.6 - 0.4 * min(1, (n + 0.5) / 200) for n in range(steps)]
    assert counted == pytest.approx(10 * sum(shares), abs=1.5)


def test_pieces_grow():
    growing = batches(n_rows=10, share=(0.9, 0.9), grow_steps=100)
    longest = [int((growing.at(n)[1] == NOT_COUNTED).sum(1).max()) + 1 for n in (0, 1, 99, 150)]
    assert longest == [2, 2, 4, 4]


def test_uniform_pieces_come_from_the_whole_vocabulary():
    even = batches(n_rows=20, share=(0.99, 0.99), uniform=1.0).at(3)[0]
    of_text = batches(n_rows=20, share=(0.99, 0.99), uniform=0.0).at(3)[0]
    assert even.max() > 200 > of_text.max()


CONFIG = GPT2Config(n_layer=2, n_head=3, n_embd=21, n_inner=11, vocab_size=97, n_positions=16)


@pytest.fixture
def model():
    return GPT2(CONFIG, seed=3)


def plain_loss(model, rows):
    with torch.no_grad():
        logits = model(rows).log_softmax(-1)[:, :-1]
    return -logits.gather(2, rows[:, 1:, None])[..., 0]


def test_the_held_out_loss_is_the_mean_over_whole_windows(model):
    tokens = np.random.default_rng(0).integers(97, size=20 * 16 + 7).astype(np.uint16)
    rows = torch.from_numpy(tokens[: 20 * 16].reshape(20, 16).astype(np.int64))
    assert held_out_loss(model, tokens) == pytest.approx(plain_loss(model, rows).mean().item())
    spread = plain_loss(model, rows[[0, 5, 10, 15]]).mean().item()
    assert held_out_loss(model, tokens, rows=4) == pytest.approx(spread)
    assert held_out_loss(model, tokens, rows=99) == held_out_loss(model, tokens)


@pytest.mark.parametrize(
    "call", ["batches(2 * N_CTX - 1)", "held_out_loss(GPT2(CONFIG), np.zeros(15, dtype=np.uint16))"]
)
def test_too_few_tokens_are_refused(call, refused):
    refused(eval, call, globals())


class Copier(GPT2):
    """A network that predicts the token half a row earlier."""

    def loss(self, tokens, mask=None, *, targets=None):
        logits = torch.full((*tokens.shape, 97), 0.0)
        half = tokens.shape[1] // 2
        known = torch.roll(tokens, half - 1, dims=1)[:, half - 1 :]
        logits[:, half - 1 :].scatter_(2, known[..., None], 20.0)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_induction_lowers_only_the_loss_of_the_second_half():
    first, second = repeat_losses(Copier(CONFIG))
    assert first == pytest.approx(np.log(97), abs=1e-4)
    assert second == pytest.approx(0, abs=1e-4)


def test_sinusoids_change_only_the_positions_and_have_the_requested_scale(make_recipe):
    drawn = loop.initial_model(make_recipe(), 300).state_dict()
    begun = loop.initial_model(make_recipe(model__position_waves=0.1), 300).state_dict()
    assert {name for name in drawn if not torch.equal(drawn[name], begun[name])} == {"wpe.weight"}
    assert abs(begun["wpe.weight"].pow(2).mean().sqrt() - 0.1) < 1e-3


def test_one_rotation_leads_from_every_position_to_the_next():
    positions = loop.sinusoids(64, 24).double()
    rotation = torch.linalg.lstsq(positions[:-1], positions[1:]).solution
    assert (positions[:-1] @ rotation - positions[1:]).abs().max() < 1e-4
    drawn = torch.randn(64, 24, generator=torch.Generator().manual_seed(0)).double()
    rotation = torch.linalg.lstsq(drawn[:-1], drawn[1:]).solution
    assert (drawn[:-1] @ rotation - drawn[1:]).abs().max() > 0.5


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("tied", [True, False])
def test_each_parameter_is_in_one_group(optimizer, tied):
    model = GPT2(GPT2Config(**(CONFIG.to_json() | {"tie_word_embeddings": tied})))
    optimizers = make_optimizers(model, TrainingSection(steps=1, batch=1, optimizer=optimizer))
    groups = [group for one in optimizers for group in one.param_groups]
    assert places(p for g in groups for p in g["params"]) == places(model.parameters())
    decayed = places(p for g in groups if g["weight_decay"] for p in g["params"])
    assert decayed == places(p for p in model.parameters() if p.ndim == 2)
    of_blocks = {n: p for n, p in model.named_parameters() if n.startswith("h.") and p.ndim == 2}
    if optimizer == "muon":  # it trains only the matrices of the blocks
        assert places(optimizers[0].param_groups[0]["params"]) == places(of_blocks.values())


def places(parameters):
    """Return the memory address of each element; views of one matrix share its storage."""
    found = [p.data_ptr() + 4 * n for p in parameters for n in range(p.numel())]
    assert len(found) == len(set(found))
    return set(found)


def stepped(name, **training):
    """The gradient of a weight in the first step, and its change."""
    model = GPT2(CONFIG).requires_grad_()
    weight = model.get_parameter(name)
    before = weight.detach().clone()
    model.loss(torch.arange(12).reshape(1, 12)).backward()
    for one in make_optimizers(model, TrainingSection(steps=1, batch=1, **training)):
        one.step()
    return weight.grad, weight.detach() - before


def test_muon_moves_queries_and_keys_as_much_as_values():
    both = stepped("h.0.attn.c_attn.weight", optimizer="muon")
    gradients, moved = ([part.norm().item() for part in one.chunk(3)] for one in both)
    assert gradients[2] > 10 * max(gradients[:2])
    assert min(moved) > 0.6 * max(moved)


def test_both_optimizers_make_updates_of_equal_size():
    how = {"name": "h.0.mlp.c_fc.weight", "learning_rate": 1e-3}
    muon, adamw = (stepped(**how, optimizer=one)[1].norm().item() for one in ("muon", "adamw"))
    # Muon's steps have a fifth of the size of AdamW's first, whose entries all have size 1.
    assert 0.1 < muon / adamw < 0.5
