"""Tokens of an experiment: beginning-of-text, special tokens in texts, and normalized texts."""

import json
import shutil

import pytest
from tokenizers import normalizers

from probekit.experiment.loader import load_experiment
from probekit.model.weights.sources import MINI
from probekit.pipeline.engines.table import prepare
from tests.model.text.test_settings import of_merges, template, write

YAML = """
name: tokens
model: {source: model}
data: {name: rows, format: csv, file: rows.csv, columns: {start: start, end: end}}
tokens: {position: {at: word}}
capture: {sites: [blocks.0.hook_resid_post]}
"""


@pytest.fixture
def experiment(tmp_path):
    """A function that loads an experiment on texts, of mini with another tokenizer."""

    def experiment(texts, *overrides, encoder=None, **files):
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write(folder, encoder, **files)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(MINI / name, folder)
        rows = [f"{text},{'ab'[n % 2]},0,{len(text.rstrip())}" for n, text in enumerate(texts)]
        (tmp_path / "rows.csv").write_text("\n".join(["text,label,start,end", *rows]) + "\n")
        (tmp_path / "tokens.yaml").write_text(YAML)
        return load_experiment(tmp_path / "tokens.yaml", overrides)

    return experiment


def codes(engine):
    return [finding.code for finding in engine.design.findings]


TEXTS = ["The keys", "A key", "The door", "A door"]
# Without this class, transformers makes the steps of GPT-2 in place of those of the file.
FAST = {"tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast"}}
BEGINS = {"tokenizer_config": {"bos_token": "<|endoftext|>", "eos_token": ";"}}


def test_what_auto_means_is_recorded_and_has_the_same_cache(experiment, refused):
    encoder = of_merges(processor=template("<|endoftext|>"))
    sources = [
        prepare(experiment(TEXTS, *given, encoder=encoder, **BEGINS)).ready("cpu")
        for given in ((), ["tokens.bos=true"], ["tokens.bos=false"])
    ]
    auto, true, false = sources
    assert [source.experiment.tokens.bos for source in sources] == [True, True, False]
    assert auto.identity() == true.identity() != false.identity()
    assert auto.texts.ids[0][0] == auto.texts.tokenizer.bos_id
    assert [codes(source) for source in sources] == [[], [], ["other-bos"]]
    assert "puts it before each text, and a network" in false.design.findings[0].message
    others = experiment(TEXTS, encoder=of_merges(processor=template("", "<|endoftext|>")), **BEGINS)
    refused(prepare, others)


def test_a_token_that_is_not_added_is_a_warning_unless_it_ends_texts(experiment, tmp_path):
    for eos, expected in ((";", ["other-bos"]), ("<|endoftext|>", [])):
        settings = {"bos_token": "<|endoftext|>", "eos_token": eos}
        files = {"encoder": of_merges(), "tokenizer_config": settings}
        loaded = experiment(TEXTS, "tokens.bos=true", **files)
        config = tmp_path / "model" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": None}))
        assert codes(prepare(loaded)) == expected
    assert codes(prepare(experiment(TEXTS, "tokens.bos=true"))) == []  # GPT-2


def test_special_tokens_that_are_written_out_are_counted(experiment):
    texts = ["The <|endoftext|> keys", "A key", "<|endoftext|>", "A door"]
    plain, read = (
        prepare(experiment(texts, *given)) for given in ((), ["data.special_tokens=tokens"])
    )
    (finding,) = plain.design.findings
    assert finding.message.startswith("2 of 4 texts contain special tokens of the model, such as")
    assert finding.level == "warning"
    assert "<|endoftext|>" in finding.message
    assert not read.design.findings
    assert read.texts.ids[2].tolist() == [0]
    assert len(plain.texts.ids[2]) > 1


@pytest.mark.parametrize("normalizer", [normalizers.NFC(), normalizers.NFKC(), normalizers.Strip()])
def test_texts_whose_last_characters_are_joined_or_removed_are_whole(experiment, normalizer):
    texts = ["The cafe\u0301", "A cafe", "The cafe\u0301 ", "A key "]
    encoder = of_merges()
    encoder.normalizer = normalizer
    rows = prepare(experiment(texts, encoder=encoder, **FAST)).design
    assert [example.text for example in rows.dataset.examples] == texts
    assert not rows.findings
    assert not rows.dataset.notes
    assert len(rows.labels) == 4


def test_texts_that_are_cut_are_read_as_far_by_baselines(experiment):
    encoder = of_merges()
    encoder.normalizer = normalizers.NFC()
    texts = ["The cafe\u0301" * 200, *TEXTS]
    whole = ["tokens.too_long=truncate", "tokens.position.at=last"]
    whole += ["data.columns.start=null", "data.columns.end=null"]
    rows = prepare(experiment(texts, *whole, encoder=encoder, **FAST))
    read = rows.design.dataset.examples[0].text
    assert codes(rows) == ["truncated"]
    assert len(rows.texts.ids[0]) == rows.texts.config.n_ctx
    assert rows.texts.tokenizer.encode(read).ids.tolist() == rows.texts.ids[0].tolist()
