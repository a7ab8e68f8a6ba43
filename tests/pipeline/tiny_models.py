"""Tiny networks of a family in a folder, with a vocabulary of bytes."""

from dataclasses import replace

from transformers import PreTrainedTokenizerFast

from tests.model.text.test_hub_tokenizer import byte_level


def write_model(folder, row, template=None):
    """Write the network of a row of configurations, as transformers saves it; return the folder."""
    larger = replace(row, settings=dict(row.settings) | {"vocab_size": 330, "eos_token_id": 1})
    larger.reference().save_pretrained(folder)
    encoder, bos, eos = byte_level()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder, bos_token=bos, eos_token=eos)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
