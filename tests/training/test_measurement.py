"""Measured losses equal a direct computation over tokens."""

import numpy as np
import pytest
import torch

from probekit.errors import DataError
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.training.measurement import held_out_loss, repeat_losses

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


def test_too_few_held_out_tokens_are_refused(model):
    with pytest.raises(DataError, match="15 held-out tokens do not fill one context of 16"):
        held_out_loss(model, np.zeros(15, dtype=np.uint16))


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


def test_an_untrained_network_has_equal_losses_on_both_halves(model):
    first, second = repeat_losses(model)
    assert abs(first - second) < 0.1
    assert first == pytest.approx(np.log(97), abs=0.2)
