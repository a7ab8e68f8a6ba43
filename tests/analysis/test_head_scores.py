import math

import pytest
import torch

from probekit.analysis.heads import HEAD_SCORES, head_scores
from probekit.errors import DataError

N = 7
IDS = torch.tensor([5, 6, 7, 5, 6, 7, 8])


def looking(*sources):
    """Return the pattern of a head in which each destination attends to one source."""
    return torch.eye(len(sources))[list(sources)]


# Each head does one thing only; a token without a source attends to itself.
PREVIOUS = looking(0, 0, 1, 2, 3, 4, 5)
DUPLICATE = looking(0, 1, 2, 0, 1, 2, 6)
INDUCTION = looking(0, 1, 2, 1, 2, 3, 6)
FIRST = looking(*[0] * N)
EVEN = torch.ones(N, N).tril() / torch.arange(1, N + 1)[:, None]
HEADS = torch.stack([PREVIOUS, DUPLICATE, INDUCTION, FIRST, EVEN])


def test_each_score_is_one_only_for_the_matching_head():
    scores = head_scores(HEADS, IDS)
    assert list(scores) == list(HEAD_SCORES)
    names = ("previous_token", "duplicate_token", "induction", "first_token")
    for head, name in enumerate(names):
        assert scores[name][head] == pytest.approx(1)
        others = [i for i in range(len(HEADS)) if i != head]
        assert max(scores[name][others]) <= 0.5


def test_scores_of_a_uniform_head():
    scores = {name: score[-1].item() for name, score in head_scores(HEADS, IDS).items()}
    rows = range(2, N + 1)  # destinations 1 to 6 see so many tokens
    assert scores == pytest.approx(
        {
            "previous_token": sum(1 / n for n in rows) / 6,
            "duplicate_token": (1 / 4 + 1 / 5 + 1 / 6) / 3,
            "induction": (1 / 4 + 1 / 5 + 1 / 6) / 3,
            "first_token": sum(1 / n for n in rows) / 6,
            "entropy": sum(math.log(n) for n in rows) / 6,
            "distance": sum((n - 1) / 2 for n in rows) / 6,
        }
    )


def test_weights_on_all_earlier_occurrences_are_summed():
    last = [0.1, 0.2, 0.3, 0.25, 0.15]
    patterns = torch.eye(5)[None].clone()
    patterns[0, 4] = torch.tensor(last)
    scores = head_scores(patterns, torch.tensor([5, 5, 6, 7, 5]))
    # Destinations 1 and 4 repeat an earlier token; 1 attends to itself, which does not count.
    assert scores["duplicate_token"].item() == pytest.approx((0 + 0.1 + 0.2) / 2)
    # What followed token 5 before position 4: positions 1 and 2. Before position 1: itself.
    assert scores["induction"].item() == pytest.approx(0.2 + 0.3)


def test_leading_axes_and_any_precision_are_supported():
    layers = torch.stack([HEADS, HEADS.flip(0), HEADS])
    scores = head_scores(layers.bfloat16(), IDS)
    for name, score in head_scores(HEADS, IDS).items():
        assert scores[name].shape == (3, 5)
        assert scores[name].dtype == torch.float32
        assert scores[name].is_contiguous()  # safetensors writes others wrongly
        assert torch.allclose(scores[name][1], score.flip(0), atol=0.02)
    assert head_scores(HEADS.double(), IDS)["entropy"].dtype == torch.float64


def test_a_score_defined_for_no_token_is_nan():
    scores = head_scores(HEADS, torch.arange(N))
    assert scores["duplicate_token"].isnan().all()
    assert scores["induction"].isnan().all()
    assert not scores["previous_token"].isnan().any()
    alone = head_scores(torch.ones(2, 3, 1, 1), torch.tensor([4]))
    assert all(score.isnan().all() and score.shape == (2, 3) for score in alone.values())


@pytest.mark.parametrize(
    ("patterns", "ids"),
    [
        (torch.ones(2, 3, 4), torch.arange(3)),
        (torch.ones(3, 3), torch.arange(3)),
        (torch.ones(2, 3, 3, dtype=torch.int64), torch.arange(3)),
        (torch.ones(2, 3, 3), torch.arange(4)),
        (torch.ones(2, 0, 0), torch.arange(0)),
        (torch.ones(2, 3, 3), torch.arange(3)[None]),
    ],
)
def test_mismatched_inputs_are_refused(patterns, ids):
    with pytest.raises(DataError, match="shape"):
        head_scores(patterns, ids)
