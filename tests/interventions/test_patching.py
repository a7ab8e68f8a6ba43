"""Patched and ablated passes equal whole passes with the same edit, at every site and position."""

import numpy as np
import pytest
import torch

from probekit.errors import ConfigError, DataError, UnknownNameError
from probekit.interventions.base_pass import BasePass
from probekit.interventions.edits import replace, run_edited
from probekit.interventions.measures import AnswerMeasure, check_pairs, single_tokens
from probekit.interventions.names import MEASURES
from probekit.interventions.patching import PAIRS_AT_ONCE, ablated_values, patch
from probekit.model.passes.taps import head_or_neuron
from probekit.model.sites.sites import SiteSelection
from probekit.model.text.tokenizer import Tokenizer
from tests.interventions.tiny import as_batch, differences, measure_of, pairs
from tests.model.reference import TINY

LENGTHS = [5, 3, 8]
SITES = [
    "hook_embed",
    "hook_pos_embed",
    "blocks.*.hook_resid_*",
    "blocks.*.hook_attn_out",
    "blocks.*.hook_mlp_out",
    "blocks.1.attn.hook_z",
    "blocks.*.attn.hook_z[head=*]",
    "blocks.2.attn.hook_result[head=1]",
    "blocks.0.mlp.hook_post[neuron=4]",
    "blocks.3.mlp.hook_post",
    "blocks.2.mlp.hook_pre",
    "blocks.3.mlp.hook_pre",
    "blocks.3.attn.hook_q",
    "blocks.1.attn.hook_q[head=2]",
    "blocks.2.attn.hook_v",
    "blocks.2.attn.hook_pattern",
    "blocks.2.attn.hook_pattern[head=0]",
    "blocks.1.ln2.hook_normalized",
]


def expected(model, clean, corrupt, where, at, measure):
    """The measure of a whole pass with the counterfactual's activations at the positions `at`."""
    (selection,) = model.sites.select([where])
    _, source = model.run_with_cache(corrupt, [selection.site])
    values = head_or_neuron(model.sites, source[selection.site], selection)
    if "resid_post" in where and "3" in where and at is None:
        assert values.shape[1] == clean.ids.shape[1]
    logits = run_edited(model, clean, [(where, replace(values, at))])
    return differences(logits, clean, measure)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("where", SITES)
def test_a_patch_of_all_positions_equals_a_whole_pass(model, side, where):
    clean, corrupt = pairs(side)
    measure = measure_of()
    for row in patch(model, clean, corrupt, measure, where):
        own = expected(model, clean, corrupt, row.site, None, measure)
        assert row.patched == pytest.approx(own.mean(), rel=1e-5, abs=1e-6), row.site


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("where", SITES)
def test_a_patch_of_one_position_equals_a_whole_pass(model, side, where):
    clean, corrupt = pairs(side)
    measure, first = measure_of(), clean.mask.int().argmax(1)
    rows = patch(model, clean, corrupt, measure, where, at="each")
    assert {row.position for row in rows} == set(range(8))
    for row in rows:
        if row.position in (1, 4):
            have = torch.tensor(LENGTHS) > row.position
            mask = torch.zeros_like(clean.mask)
            mask[have, (first + row.position)[have]] = True
            own = expected(model, clean, corrupt, row.site, mask, measure)[have.numpy()]
            assert row.patched == pytest.approx(own.mean(), rel=1e-5, abs=1e-6), row.site
            assert row.n == int(have.sum())


def test_a_position_of_each_text(model):
    clean, corrupt = pairs()
    at = torch.tensor([7, 6, 2])
    site = "blocks.1.hook_resid_post"
    (row,) = patch(model, clean, corrupt, measure_of(), site, at=at)
    own = expected(model, clean, corrupt, site, at, measure_of())
    assert row.patched == pytest.approx(own.mean(), rel=1e-5)
    assert row.position == "chosen"


def test_positions_after_the_measured_one_have_no_effect(model):
    clean, corrupt = pairs("right", [8, 8, 8])
    site = "blocks.1.hook_resid_post"
    rows = patch(
        model, clean, corrupt, measure_of(), site, at="each", measured=torch.tensor([4, 4, 4])
    )
    effects = np.array([row.effect for row in rows])
    assert (np.abs(effects[:5]) > 1e-5).all()
    np.testing.assert_allclose(effects[5:], 0, atol=1e-6)


def test_the_whole_stream_recovers_everything(model):
    clean, corrupt = pairs()
    change = (model(corrupt) - model(clean))[:, -1]
    measure = AnswerMeasure(change.argmin(-1), change.argmax(-1))
    rows = patch(model, clean, corrupt, measure, "blocks.*.hook_resid_pre")
    assert [row.recovery for row in rows] == pytest.approx([1, 1, 1, 1], abs=1e-4)


def test_more_pairs_than_a_batch(model):
    n = PAIRS_AT_ONCE + 5
    clean, corrupt = pairs("left", [4 + i % 3 for i in range(n)])
    measure, site = measure_of(n=n), "blocks.2.hook_resid_mid"
    (row,) = patch(model, clean, corrupt, measure, site, groups=np.arange(n) // 3)
    own = expected(model, clean, corrupt, site, None, measure)
    assert row.patched == pytest.approx(own.mean(), rel=1e-5)
    assert (row.n, row.groups) == (n, n // 3 + 1)
    assert row.effect_low < row.effect < row.effect_high
    assert 0 < row.p <= row.p_best <= 1


@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_those_of_the_logits(model, name):
    clean, _ = pairs()
    base, measure = BasePass.keep(model, clean), measure_of(name)
    other = base.final.flip(0)
    rows = torch.tensor([2, 0, 1, 1])
    found = measure.score(model, other[rows], rows, base.final)
    logits = model.final_norm(other[rows]) @ model.unembedding.T
    unchanged = model.final_norm(base.final[rows]) @ model.unembedding.T
    p, q = unchanged.softmax(-1), logits.softmax(-1)
    at = torch.arange(4)
    right, wrong = measure.answer[rows], measure.wrong[rows]
    wanted = {
        "logit_difference": logits[at, right] - logits[at, wrong],
        "accuracy": (logits[at, right] > logits[at, wrong]).double(),
        "probability": q[at, right] - q[at, wrong],
        "loss": -q[at, right].log(),
        "kl": (p * (p / q).log()).sum(-1),
    }[name]
    torch.testing.assert_close(found, wanted.double(), atol=1e-5, rtol=1e-4)


def test_without_a_wrong_answer_accuracy_is_the_largest_logit(model):
    clean, _ = pairs()
    base = BasePass.keep(model, clean)
    best = (model.final_norm(base.final) @ model.unembedding.T).argmax(-1)
    measure = AnswerMeasure(torch.where(torch.tensor([True, False, True]), best, best - 1),
                            name="accuracy")  # fmt: skip
    found = measure.score(model, base.final, torch.arange(3), base.final)
    assert found.tolist() == [1, 0, 1]


def test_pairs_that_cannot_be_patched_are_reported_with_their_rows(model):
    clean, corrupt = pairs()
    first, second = (corrupt.ids[row][corrupt.mask[row]] for row in (0, 1))
    short = as_batch([first, torch.tensor([5, 6]), torch.arange(8)], "left")
    with pytest.raises(DataError, match=r"1 pair of 3 cannot be patched: row 1 has 3 tokens, but"):
        patch(model, clean, short, measure_of(), SITES[0])
    with pytest.raises(DataError, match=r"row 2 has the same tokens as its counterfactual"):
        check_pairs(clean, as_batch([first, second, clean.ids[2]], "left"))
    with pytest.raises(DataError, match="padded differently"):
        check_pairs(clean, pairs("right")[1])
    with pytest.raises(DataError, match="3 texts and 2 counterfactuals"):
        check_pairs(clean, corrupt[:2])


def test_answers_of_several_tokens_are_reported_with_their_rows():
    tokenizer = Tokenizer.from_pretrained("mini")
    assert tokenizer.strings(single_tokens(tokenizer, [" is", " are"]).tolist()) == [" is", " are"]
    with pytest.raises(DataError, match=r"1 answer of 2 .*: row 1, ' is are' is \[' is', ' are'\]"):
        single_tokens(tokenizer, [" is", " is are"])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"measure": measure_of(n=2)}, DataError, "answers for 2 texts"),
        ({"at": "eech"}, ConfigError, "Nearest: each"),
        ({"at": torch.tensor([8, 0, 0])}, DataError, "Position 8 of row 0"),
        ({"sites": "blocks.1.hook_resid_prr"}, UnknownNameError, "Nearest"),
        ({"groups": ["a"]}, DataError, "1 groups for 3 pairs"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(model, change, error, message):
    clean, corrupt = pairs()
    arguments = {"measure": measure_of(), "sites": "hook_embed"} | change
    with pytest.raises(error, match=message):
        patch(model, clean, corrupt, **arguments)


def test_measures_that_cannot_be_scored_are_refused():
    ids = torch.tensor([3, 4])
    with pytest.raises(ConfigError, match="Nearest: accuracy"):
        AnswerMeasure(ids, ids + 1, "acuracy")
    with pytest.raises(ConfigError, match="requires a wrong token"):
        AnswerMeasure(ids)
    with pytest.raises(DataError, match="Row 1: the answer and the wrong token are the same"):
        AnswerMeasure(ids, torch.tensor([9, 4]))


HEAD = SiteSelection("blocks.1.attn.hook_z", head=1)
AT = torch.tensor([2, 1, 3, 0])


def equal_lengths(n_tokens=5):
    generator = torch.Generator().manual_seed(1)
    return as_batch(list(torch.randint(0, TINY.vocab_size, (4, n_tokens), generator=generator)))


def ablated(model, replacement, at, **options):
    batch, measure = equal_lengths(), measure_of(n=4)
    where = "all" if at is None else at
    [found] = ablated_values(model, batch, [measure], [HEAD], replacement, at=where, **options)
    np.testing.assert_allclose(found.base, differences(model(batch), batch, measure), atol=1e-5)
    ((_, values),) = found.patched.items()
    return values


def edited(model, values, at):
    batch = equal_lengths()
    logits = run_edited(model, batch, [(HEAD, replace(values, at))])
    return differences(logits, batch, measure_of(n=4))


@pytest.mark.parametrize("at", [None, AT])
def test_zero_and_the_mean_of_other_texts_equal_a_whole_pass(model, at):
    others = equal_lengths(7)
    _, cache = model.run_with_cache(others, [HEAD.text])
    values = cache[HEAD.text]
    own = values if at is None else values[torch.arange(4), at]
    mean = own.reshape(-1, own.shape[-1]).mean(0)
    found = ablated(model, "mean", at, averaged=(others, at))
    np.testing.assert_allclose(found, edited(model, mean, at), atol=1e-5)
    found = ablated(model, "zero", at)
    np.testing.assert_allclose(found, edited(model, torch.zeros_like(mean), at), atol=1e-5)


@pytest.mark.parametrize("at", [None, AT])
def test_the_activations_of_another_text(model, at):
    """Each row has the value of a whole pass with the activations of some other row."""
    found = ablated(model, "resample", at, seed=5)
    _, cache = model.run_with_cache(equal_lengths(), [HEAD.text])
    options = []
    for shift in (1, 2, 3):
        donors = (torch.arange(4) + shift) % 4
        given = cache[HEAD.text][donors]
        if at is not None:
            moved = cache[HEAD.text].clone()
            moved[torch.arange(4), at] = given[torch.arange(4), at[donors]]
            given = moved
        options.append(edited(model, given, at))
    assert (np.abs(np.array(options) - found).min(0) < 1e-5).all()


def test_ablations_without_a_replacement_are_refused(model):
    texts = as_batch([one[n == 0 :] for n, one in enumerate(equal_lengths().ids)])
    with pytest.raises(DataError, match=r"1 text of 4 have no other.*row 0 with 4 tokens"):
        ablated_values(model, texts, [measure_of(n=4)], [HEAD], "resample")
    pattern = SiteSelection("blocks.1.attn.hook_pattern")
    with pytest.raises(ConfigError, match="not a part of the residual stream"):
        ablated_values(model, texts, [measure_of(n=4)], [pattern], "mean")
