"""`benchmarks.known_circuits` runs on any GPT-2, and reports missing weights."""

from benchmarks.known_circuits import main
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.text.tokenizer import Tokenizer


def test_a_random_network_differs_from_the_literature(tmp_path, shared, capsys):
    config = GPT2Config(n_layer=2, n_head=3, n_embd=24, n_inner=40, n_positions=40)
    GPT2(config, seed=0).save_pretrained(tmp_path)
    Tokenizer.from_pretrained(shared / "tokenizer" / "gpt2").save_pretrained(tmp_path)
    assert main(["--model", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert all(line.startswith(("DIFFERS ", "ok ")) for line in lines[:-1])
    assert lines[0].startswith("DIFFERS mean logit difference: published 3.55; measured ")
    assert lines[-1].endswith("values differ.")


def test_missing_weights_are_not_passed_over_in_silence(tmp_path, capsys):
    assert main(["--model", str(tmp_path / "none")]) == 3
    assert capsys.readouterr().out.startswith("NOTHING IS CHECKED")
