"""A killed and resumed run gives the same weights, and training lowers the loss."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from probekit.errors import CheckpointError, ConfigError
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.terminal import SILENT
from probekit.training.corpus import read_corpus
from probekit.training.log import read_log
from probekit.training.loop import train
from probekit.training.progress import read_progress
from probekit.training.state import write_state
from probekit.training.token_file import make_token_file
from probekit.training.vocabulary import train_vocabulary


class Killer:
    """A watcher that ends the run after a step."""

    def __init__(self, step):
        self.step = step

    def progress(self, name, done, total):
        if done == self.step:
            raise KeyboardInterrupt

    def tell(self, message):
        pass


@pytest.fixture
def go(tmp_path):
    """Return a function that trains in a folder and returns weights, log and checkpoints."""

    def go(recipe, name="run", watcher=SILENT):
        folder = tmp_path / name
        texts = read_corpus(**recipe.corpus.model_dump())
        if not (tmp_path / "vocab.json").is_file():
            train_vocabulary([text.train for text in texts], recipe.vocabulary.size, tmp_path)
        tokens = make_token_file(
            texts, Tokenizer.from_pretrained(tmp_path), tmp_path / "tokens", SILENT
        )
        kept = {}

        def keep(model, step):
            kept[step] = {n: p.detach().clone() for n, p in model.named_parameters()}

        model = train(recipe, tokens, 300, folder, keep, watcher=watcher)
        return dict(model.named_parameters()), read_log(folder / "log.csv"), kept

    return go


def losses(log):
    return [(row.loss, row.gradient_norm, str(row.held_out_loss)) for row in log]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("killed_after", [1, 7, 8])
def test_a_killed_run_goes_on_to_the_same_weights_and_losses(
    go, make_recipe, optimizer, killed_after
):
    recipe = make_recipe(training__optimizer=optimizer)
    whole, log, kept = go(recipe, "whole")
    torch.manual_seed(99)  # random draws between the two have no effect
    with pytest.raises(KeyboardInterrupt):
        go(recipe, "killed", Killer(killed_after))
    resumed, log_of_resumed, kept_after = go(recipe, "killed")
    assert losses(log) == losses(log_of_resumed)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert all(torch.equal(kept[12][name], kept_after[12][name]) for name in whole)


def test_a_finished_run_is_not_begun_again(go, make_recipe):
    _, log, _ = go(make_recipe())
    again, log_again, kept = go(make_recipe())
    assert log == log_again or losses(log) == losses(log_again)
    assert not kept
    assert len(again)


def test_the_seed_decides(go, make_recipe):
    first, second = (go(make_recipe(seed=seed), f"seed{seed}")[1] for seed in (0, 1))
    assert losses(first) != losses(second)


def test_dropout_is_drawn_anew_each_step_and_changes_the_loss(go, make_recipe):
    still = {f"model__{name}": 0.0 for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop")}
    with_dropout, without = (
        go(make_recipe(**changes), name)[1] for name, changes in (("with", {}), ("without", still))
    )
    assert with_dropout[0].loss != without[0].loss


def test_nothing_of_the_global_generator_is_used(go, make_recipe):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    go(make_recipe())
    assert torch.equal(torch.rand(3), expected)


def test_parts_of_a_batch_add_up_to_the_whole(go, make_recipe):
    still = {f"model__{name}": 0.0 for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop")}
    whole = go(make_recipe(**still), "whole")[1]
    parts = go(make_recipe(training__accumulate=4, **still), "parts")[1]
    for one, other in zip(whole, parts, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-4)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-2)


@pytest.mark.parametrize(("optimizer", "dtype"), [("adamw", "float32"), ("muon", "bfloat16")])
def test_it_learns(go, make_recipe, optimizer, dtype):
    recipe = make_recipe(
        training__optimizer=optimizer,
        training__dtype=dtype,
        training__steps=150,
        training__learning_rate=1e-2,
        repeats__share=(0.0, 0.0),
        validation__every=150,
    )
    _, log, _ = go(recipe)
    assert log[0].loss > 5.5
    # The words are drawn evenly: 15 of them, and where a sentence ends.
    assert log[-1].held_out_loss < 3.0


def test_the_first_checkpoint_is_the_network_before_training(go, make_recipe):
    _, _, kept = go(make_recipe())
    assert sorted(kept) == [0, 6, 12]
    fresh = dict(GPT2(make_recipe().model.config(300), seed=0).named_parameters())
    assert all(torch.equal(fresh[name], kept[0][name]) for name in fresh)


def test_measurements_stand_where_they_were_asked_for(go, make_recipe):
    _, log, _ = go(make_recipe())
    assert [row.step for row in log if row.held_out_loss == row.held_out_loss] == [5, 10, 12]
    assert [row.step for row in log] == list(range(1, 13))
    assert log[-1].tokens == 12 * 4 * 32


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"", lambda b: b"x" * 40])
def test_a_damaged_state_is_refused_with_a_way_out(go, make_recipe, tmp_path, damage):
    go(make_recipe())
    path = tmp_path / "run" / "state.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"state.safetensors is damaged.*Delete it"):
        go(make_recipe())


def test_a_state_of_another_network_is_refused(go, make_recipe, tmp_path):
    go(make_recipe())
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    with pytest.raises(ConfigError, match=r"another recipe: model.n_embd was 16, is 24"):
        go(make_recipe(model__n_embd=24), "other")


def test_a_log_that_lacks_steps_is_refused(go, make_recipe, tmp_path):
    go(make_recipe())
    path = tmp_path / "run" / "log.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:5]) + "\n")
    with pytest.raises(CheckpointError, match=r"log.csv is damaged.*its first 12 steps"):
        go(make_recipe())


def test_a_log_of_another_run_is_refused(go, make_recipe, tmp_path):
    go(make_recipe(), "one")
    go(make_recipe(training__batch=8), "other")
    shutil.copy(tmp_path / "other/log.csv", tmp_path / "one")
    with pytest.raises(CheckpointError, match=r"one/log.csv is damaged or belongs to another run"):
        go(make_recipe(), "one")


def test_a_state_of_other_tokens_is_refused(go, make_recipe, corpus):
    go(make_recipe())
    (corpus / "a.txt").write_text((corpus / "a.txt").read_text()[::-1])
    with pytest.raises(CheckpointError, match=r"state.safetensors was trained on other tokens"):
        go(make_recipe())


def test_a_run_killed_between_log_and_state_is_resumed(go, make_recipe, tmp_path):
    """The log may have more steps than the state; the extra rows may be cut anywhere."""
    _, whole, _ = go(make_recipe(), "whole")
    with pytest.raises(KeyboardInterrupt):
        go(make_recipe(), watcher=Killer(5))
    path = tmp_path / "run/log.csv"
    ahead = (tmp_path / "whole/log.csv").read_text().splitlines(keepends=True)[5:9]
    path.write_text(path.read_text() + "".join(ahead)[:-7])
    _, resumed, _ = go(make_recipe())
    assert losses(resumed) == losses(whole)


def test_a_training_that_diverges_ends_with_a_way_out(go, make_recipe, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(make_recipe(), watcher=Killer(8))
    path = tmp_path / "run" / "state.safetensors"
    tensors = load_file(path)
    tensors["model.wpe.weight"][3] = torch.nan
    write_state(path, tensors, read_progress(path.parent))
    with pytest.raises(ConfigError, match=r"loss at step 9 is nan.*training.learning_rate"):
        go(make_recipe())
