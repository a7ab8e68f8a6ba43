"""Models accept a TokenBatch; padding without a mask is never read as tokens."""

import warnings

import pytest
import torch

from probekit.model.families.gpt2 import GPT2
from probekit.model.generation import generate
from probekit.model.text.tokenizer import Tokenizer

TEXTS = ["The keys to the old cabinet", "The key", "She"]


@pytest.fixture(scope="module")
def model():
    return GPT2.from_pretrained("mini")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_pretrained("mini")


@pytest.fixture(scope="module", params=["left", "right"])
def batch(request, tokenizer):
    return tokenizer.batch(TEXTS, bos=False, side=request.param)


ENTRIES = {
    "forward": lambda model, *tokens: model(*tokens),
    "run_with_cache": lambda model, ids, mask=None: model.run_with_cache(ids, mask=mask)[0],
    "loss": lambda model, *tokens: model.loss(*tokens),
    "generate": lambda model, ids, mask=None: generate(model, ids, 3, mask=mask),
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_batch_is_read_with_its_mask(model, batch, entry):
    assert torch.equal(entry(model, batch), entry(model, batch.ids, batch.mask))


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_padded_ids_without_a_mask_are_refused(model, batch, refused, entry):
    for ids in (batch.ids, batch.ids[1:], batch.ids.clone()):
        refused(entry, model, ids)
    refused(entry, model, batch.ids, torch.ones_like(batch.mask))
    refused(entry, model, batch, batch.mask)


def test_part_of_a_batch_is_a_batch(model, batch):
    some = batch[1:]
    assert len(some) == 2
    assert torch.equal(some.mask, batch.mask[1:])
    assert torch.equal(some.offsets, batch.offsets[1:])
    found, whole = model(some), model(batch)[1:]
    torch.testing.assert_close(found[some.mask], whole[some.mask], rtol=1e-4, atol=1e-3)
    assert some.to("cpu").ids.device.type == "cpu"


def test_padding_has_no_text(tokenizer, batch, refused):
    refused(tokenizer.decode, batch.ids[1].tolist())


END = 0  # <|endoftext|> of mini


# Of another tokenizer, all rows or only some; and texts that begin or end there.
PADDED = [[[END, END, 5], [6, 7, 8]], [[END, 5, 6], [7, 8, 9]], [[END, END, 5]]]
PADDED += [[[END, END, 5], [END, 6, 7]]]
WHOLE = [[[END, 5, 6], [END, 7, 8]], [[END, 5]], [[END]], [[END, END]], [[5, END], [6, 7]]]
WHOLE += [[[END], [5]]]


@pytest.mark.parametrize("rows", PADDED)
@pytest.mark.parametrize("entry", ["forward", "run_with_cache", "generate"])
def test_what_looks_like_padding_by_another_tokenizer_is_warned_of(model, rows, entry):
    ids = torch.tensor(rows)
    with pytest.warns(UserWarning, match=r"begins with \d times id 0 .* pass the mask"):
        without = ENTRIES[entry](model, ids)
    whole = torch.ones_like(ids)
    assert torch.equal(without, ENTRIES[entry](model, ids, whole))  # no warning with a mask


@pytest.mark.parametrize("rows", WHOLE)
def test_a_beginning_of_text_is_no_padding(model, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.tensor(rows))
        generate(model, torch.tensor(rows), 2)


def test_packed_texts_are_learnt_from_without_a_warning(model):
    model.loss(torch.tensor([[END, 5, 6], [7, END, END]]))


def test_the_warning_names_the_line_of_the_caller(model):
    with pytest.warns(UserWarning, match="begins with") as caught:
        model(torch.tensor([[END, END, 5]]))
    assert caught[0].filename == __file__
