"""Every family agrees with transformers, and a planted difference is found where it begins."""

import re
from dataclasses import replace
from functools import partialmethod

import pytest
import torch

from probekit.analysis import verification
from probekit.analysis.verification import verify_model
from probekit.model.families.table import load_model
from probekit.model.text.hub_tokenizer import HubTokenizer
from tests.model.families.configurations import TYPICAL, rows
from tests.model.text.test_chat import TEMPLATES, write


@pytest.fixture(scope="module", params=rows(TYPICAL), ids=lambda row: row.name)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    request.param.reference().save_pretrained(folder)
    return folder


@pytest.fixture
def alter(monkeypatch):
    """A function that changes those parameters of our networks whose names match a pattern."""

    def alter(pattern, change):
        def altered(source, dtype):
            model = load_model(source, dtype)
            chosen = [one for name, one in model.named_parameters() if re.search(pattern, name)]
            assert chosen
            for parameter in chosen:
                change(parameter)
            return model

        monkeypatch.setattr(verification, "load_model", altered)

    return alter


def differing(folder, **how):
    return [one.site for one in verify_model(folder, **how) if not one.agrees]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-5), ("float64", 1e-10)])
def test_a_checkpoint_without_a_vocabulary_agrees(folder, dtype, tolerance):
    found = verify_model(folder, dtype=dtype)
    assert all(one.agrees and one.tolerance == tolerance for one in found)
    assert len(found) == 1 + 3 + 2 + 3  # stream, patterns, streams, then norm, logits and loss
    assert all(one.largest > 0.01 for one in found)


FINAL = r"^(?!.*layers\.).*norm\.weight$"


def test_a_difference_below_the_rounding_of_float32_is_found_in_float64(folder, alter):
    alter(FINAL, lambda parameter: parameter.mul_(1 + 1e-8))
    assert (differing(folder), differing(folder, dtype="float64")[0]) == ([], "final norm")


def test_only_conversions_from_float64_are_skipped():
    wide, narrow = torch.full((2,), 0.1, dtype=torch.float64), torch.full((2,), 0.1)
    with verification._WithoutRounding():
        skipped = [wide.float(), wide.to(torch.float32), wide.to(dtype=torch.float32)]
        skipped.append(torch.nn.functional.softmax(wide, dim=-1, dtype=torch.float32))
        assert [x.dtype for x in skipped] == [torch.float64] * 4
        assert torch.equal(skipped[1], wide)
        assert narrow.half().float().dtype == torch.float32
        assert wide.half().dtype == torch.float16
    assert wide.float().dtype == torch.float32


@pytest.mark.parametrize(
    ("tensor", "first"),
    [
        ("embed", "blocks.0.hook_resid_pre"),
        (r"layers\.1\.(post_attention|final)_layer_?norm\.weight", "blocks.1.hook_resid_post"),
        (FINAL, "final norm"),
    ],
)
def test_a_difference_is_found_where_it_begins(folder, alter, tensor, first):
    alter(tensor, lambda parameter: parameter.add_(0.01))
    assert differing(folder)[0] == first


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_tokens_of_a_chat_are_compared(template, tmp_path, monkeypatch):
    (row,) = rows(["llama3"])
    row = replace(row, settings=dict(row.settings) | {"vocab_size": 330})
    row.reference().save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    write(tmp_path, template)
    (tmp_path / "config.json").write_text(config)
    chat = verify_model(tmp_path)[1]
    assert (chat.site, chat.largest, chat.agrees) == ("chat tokens", 3, True)
    monkeypatch.setattr(HubTokenizer, "encode_chat", partialmethod(HubTokenizer.encode, bos=False))
    assert not verify_model(tmp_path)[1].agrees


def test_other_tokens_are_found(monkeypatch):
    monkeypatch.setattr(verification._Reference, "ids", lambda self, text: [1, 2])
    tokens = verify_model("mini", ["The keys to the old cabinet"])[0]
    assert (tokens.difference, tokens.agrees) == (1, False)


def agreement(*texts):
    compared = [verification._compared(ours, theirs) for ours, theirs in texts]
    return verification._agreement("logits", compared, 5e-5)


def test_numbers_that_are_not_finite_do_not_agree():
    theirs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    same, other = (theirs, theirs), (theirs.where(theirs > 1, torch.nan), theirs)
    assert agreement(same).agrees
    assert not agreement(other, same).agrees
    assert not agreement(same, other).agrees


def test_a_huge_value_elsewhere_hides_no_difference():
    theirs = torch.tensor([[1e6, 1.0], [1.0, 1.0]])
    found = agreement((theirs + torch.tensor([[0.0, 0.0], [1e-3, 0.0]]), theirs))
    assert found.relative == pytest.approx(1e-3, rel=1e-3)
    assert not found.agrees


def test_mistakes_are_refused(refused):
    refused(verify_model, "mini", dtype="bfloat16")
    for texts in ([], ["a"], ["keys " * 300]):
        refused(verify_model, "mini", texts)
