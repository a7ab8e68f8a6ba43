"""Mistakes on the command line: one message, the exit code, and nothing written."""

import shlex

import pytest

from probekit.experiment.document import dump_settings
from tests.cli.conftest import save_probe
from tests.pipeline.planted import YAML, write_rows
from tests.training.recipes import tiny_recipe, write_corpus

PATCH = "patch --model mini --clean 'A key' --corrupt"
GENERATE = "generate --model mini --prompt 'The old man' --max-new-tokens 12"
ERRORS = [
    ("run none.yaml", 3, "Experiment file"),
    ("run planted.yaml --set probe.fold=3", 2, "Nearest: folds"),
    ("run planted.yaml --set model.source=gpt-2", 3, "Nearest: gpt2"),
    ("run planted.yaml --set model.source=gpt2", 3, "work offline"),
    ("run planted.yaml --set data.file=none.csv", 3, "none.csv"),
    ("run planted.yaml --set capture.sites=[x]", 2, "--set capture.sites: No site"),
    ("run planted.yaml --device warp", 2, "--device warp"),
    ("cache planted.yaml --device warp --workers 2", 2, "--device warp"),
    ("runn planted.yaml", 2, "No such command 'runn'. Nearest: run"),
    ("run planted.yaml --workers x", 2, "'x' is not a valid integer"),
    ("cache gc --older-than -1", 2, "-1.0 is not in the range x>=0"),
    ("repair", 2, "Did you mean: cache repair?"),
    ("run", 2, "Missing argument"),
    ("report nowhere", 3, "nowhere"),
    ("apply nothing --text a", 3, "no probe file"),
    ("apply probe", 2, "--text or --file"),
    ("apply probe --text a --column b", 2, "require --file"),
    ("apply probe --text a --out a.pdf", 2, "Allowed: .html, .csv, .jsonl"),
    ("apply probe --text a --device warp", 2, "--device warp"),
    ("apply damaged --text a", 2, "cannot be used"),
    ("params gpt-2", 3, "Nearest: gpt2"),
    ("params gpt2 --vocab-size 0", 2, "vocab_size must be an integer from 1"),
    ("params gpt2 --n-positions -3", 2, "n_positions must be an integer from 1"),
    ("weights --model mini", 2, "--out"),
    ("weights --model mini --out x.html --column -1", 2, "--column"),
    ("weights --model mini --out x.html --corner 9999", 2, "--corner"),
    (f"{GENERATE} --top-k 0", 2, "top_k must be an integer of at least 1"),
    (f"{GENERATE} --seed -1", 2, "seed must be an integer from 0 to 4294967295"),
    (f"{GENERATE} --stop ''", 2, "non-empty"),
    (f"{GENERATE} --prompt ''", 2, "Prompt 2 is empty"),
    (f"{GENERATE} --max-new-tokens 300", 2, "request at most 254 new ones"),
    (f"{GENERATE} --stream --num-samples 2", 2, "--stream shows"),
    (f"{GENERATE} --device warp", 2, "--device warp"),
    (f"{GENERATE} --by 4", 2, "require --steer"),
    (f"{GENERATE} --steer probe", 2, "requires --by"),
    (f"{GENERATE} --steer probe --by 4 --stream", 2, "no --steer"),
    ("lens --model mini", 2, "--text or --file"),
    ("lens --model mini --text a --out page.pdf", 2, "Allowed: .csv, .html"),
    ("lens --model mini --text a --site blocks.0.attn.hook_z", 2, "does not apply to"),
    ("lens --model mini --text a --top-k 0", 2, "1 to 8192"),
    ("lens --model mini --text a --position 4", 2, "Position 4 is outside"),
    ("attribution --model mini --text a --minus-mean --minus b", 2, "not both"),
    ("heads --model mini --text a --random-repeats 3", 2, "not both"),
    (f"{PATCH} 'A key' --answer ' is' --wrong ' are'", 2, "patching changes nothing"),
    ("pretrain tiny.yaml --set corpus.files=[c.txt]", 3, "does not contain 'c.txt'"),
    ("pretrain tiny.yaml --set vocabulary.source=./nowhere", 3, "no model folder"),
    ("pretrain tiny.yaml --set model.n_positions=4096", 2, "held-out tokens do not fill"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, mini_digests):
    """A folder with an experiment, a recipe and saved probes, to which no mistake adds a file."""
    folder = tmp_path_factory.mktemp("errors")
    write_rows(folder / "rows.csv")
    (folder / "planted.yaml").write_text(YAML)
    (folder / "tiny.yaml").write_text(dump_settings(tiny_recipe(write_corpus(folder / "texts"))))
    save_probe(folder, mini_digests)
    damaged = save_probe(folder, mini_digests, "damaged").with_name("damaged.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    return folder


def files_of(folder):
    """Return the files of a folder, except caches, pretraining and marks of unfinished runs."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    left_out = {("cache",), ("hub",), ("runs", "tiny")}
    return sorted(
        path
        for path in files
        if path.name != ".started" and not left_out & {path.parts[:1], path.parts[:2]}
    )


@pytest.mark.parametrize(("line", "code", "message"), ERRORS, ids=[e[0][:60] for e in ERRORS])
def test_each_error_has_one_message_and_its_exit_code(
    call, folder, monkeypatch, line, code, message
):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROBEKIT_CACHE", str(folder / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
    before = files_of(folder)
    done = call(*shlex.split(line))
    assert (done.code, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert files_of(folder) == before
