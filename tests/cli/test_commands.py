"""Commands: exit code, streams and new files are those that are stored; mistakes add no file."""

import re
import shlex
import shutil
from pathlib import Path

import click
import pandas as pd
import pytest

from probekit.cli.main import cli
from probekit.cli.options import CacheRoot, OutFolder, OutputFile
from probekit.cli.pictures import draw_figures
from probekit.experiment.document import dump_settings
from tests.cli.conftest import save_probe, without_digits
from tests.pipeline.planted import YAML, write_rows
from tests.training.recipes import tiny_recipe, write_corpus

KEYS = "--text 'The keys'"
HOSTILE = "--text 'The keys to\nit \x1b[2J'"
COLOURS = "FORCE_COLOR=1 COLORTERM=truecolor TERM=xterm"
PATCH = "patch --model mini --clean 'The key to the old door' --corrupt"
PAIR = f"{PATCH} 'The keys to the old door' --wrong ' are'"
GENERATE = "generate --model mini --prompt 'The old man' --max-new-tokens 12"
LENS = "lens --model mini --text 'The keys to the old cabinet'"
ATTRIBUTION = "attribution --model mini --text 'The keys to the old cabinet' --token ' the'"
LATE, ALIKE = (f" planted.yaml --set data.file={name}.csv" for name in ("late", "alike"))
ATTENTION = f"attention --model mini {KEYS}"
SCORES = "attention --model mini --scores"
COMMANDS = [
    f"apply probe {KEYS} --text 'A dog\t\x1b[2J\n'",
    "apply probe.json --text 'The keys\n' --per token",
    f"apply words {KEYS}",
    f"apply words {KEYS} --out scores.csv",
    f"apply many {KEYS}",
    f"apply number {KEYS}",
    "apply probe --file texts.csv --format csv --column said",
    f"apply probe {KEYS} --out pages/page.html",
    f"apply probe {KEYS} --out scores.jsonl --per token",
    f"apply other {KEYS} --allow-other-model",
    f"apply untested {KEYS}",
    f"FORCE_COLOR=1 COLORTERM= TERM=xterm apply probe {KEYS}",
    *(f"{COLOURS} apply {probe} {HOSTILE}" for probe in ("probe", "many", "number")),
    *(f"{COLOURS} apply {probe} {HOSTILE} --per token" for probe in ("probe", "many", "number")),
    f"{ATTENTION} --head 2.3 --out page.html",
    f"{LENS} --file more.txt --top-k 2 --position 1 --out lens.csv",
    f"{LENS} --out pages/page.html",
    f"{ATTRIBUTION} --minus ' his' --out parts.csv",
    f"{ATTRIBUTION} --minus-mean --out pages/page.html",
    f"{SCORES} --random-repeats 2 --length 20",
    f"{SCORES} --text 'One two'",
    f"{SCORES} --text 'The keys' --file more.txt --out pages/page.html",
    f"{PAIR} --answer ' is' --site blocks.*.hook_resid_mid --heads --top 3 --out rows.csv",
    f"{PAIR} --answer ' is' --site blocks.2.hook_resid_post --attribution --top 2 --out page.html",
    f"{PAIR} --answer is --site blocks.2.hook_resid_post",
    "validate planted.yaml",
    "validate planted.yaml --set data.file=hostile.csv",
    f"{GENERATE} --top-k 5",
    f"{GENERATE} --steer probe --by 0 --by 60 --towards no",
    "generate --model mini --prompt '' --max-new-tokens 3 --bos",
]
# Here all numbers are compared, too.
EXACT = [
    "params gpt2",
    "params gpt2 --untied --json",
    "params model",
    "weights --model mini --tensor wpe.weight --column 7 --column 9 --out page.html",
    "cache --help",
    "experiments",
    "sites mini",
    # Mistakes.
    "run none.yaml",
    "run planted.yaml --set probe.fold=3",
    "run planted.yaml --device warp",
    "cache planted.yaml --device warp --workers 2",
    "plan planted.yaml --device warp",
    "apply probe --text a --device warp",
    f"{GENERATE} --device warp",
    f"{LENS} --device warp",
    "repair",
    f"{ATTENTION} --out page.pdf",
    "runn planted.yaml",
    "run planted.yaml --engine ray --workers 0",
    "cache planted.yaml --address auto",
    "cache planted.yaml --threads 2",
    "cache planted.yaml --workers -1",
    "plan planted.yaml --tokens 5",
    "plan gpt2",
    "plan gpt2 --tokens 5",
    "plan gpt2 --tokens 5 --set a=1",
    "plan gpt2 --tokens 5 --devices 2",
    "worker nowhere",
    "cache gc --older-than -1",
    "cache vrify",
    "cache nothing.yaml",
    f"run planted.yaml --out {'x' * 300}",
    "PROBEKIT_CACHE=more.txt cache ls",
    "run empty.yaml --out a/b --cache c/d",
    *(f"{line} --set data.columns.split=side" for line in ("validate" + LATE, "run" + ALIKE)),
    "report nowhere",
    "apply probe",
    "apply probe --text a --column b",
    "apply probe --text a --threshold 0.01",
    "apply probe --text a --threshold 0.01 --threshold 0.1",
    "apply words --text a --per text",
    "apply probe --text a --out x.svg",
    "apply probe --text a --layers",
    "apply probe --text a --layers --out x.svg",
    "apply probe --text a --layers --out x.svg --per text",
    "weights --model mini",
    "weights --model mini --out x.html --corner 9999",
    "weights --model mini --tensor wpe.weight --column 9999 --out x.html",
    "weights --model mini --width 3 --out x.html",
    "report planted --width 3",
    f"{ATTENTION} --head 2.3 --width 3 --out page.pdf",
    f"{GENERATE} --stream --num-samples 2",
    f"{GENERATE} --by 4",
    f"{GENERATE} --width 3.25",
    f"{GENERATE} --steer probe",
    f"{GENERATE} --steer probe --by 4 --stream",
    f"{LENS} --position 9",
    f"{SCORES} --text a --random-repeats 3",
    f"{SCORES} --layer 3",
    f"{ATTENTION} --random-repeats 3",
    f"{ATTENTION} --out page.csv",
    ATTENTION,
    "pretrain tiny.yaml --set corpus.files=[c.txt]",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, mini_digests):
    """A folder with experiments, a recipe, texts, a configuration and saved probes."""
    folder = tmp_path_factory.mktemp("commands")
    write_rows(folder / "rows.csv")
    header, *rows = (folder / "rows.csv").read_text().splitlines()
    late = [*(f"{row},train" for row in rows), "Late rows,green,y,test", "Later rows,red,z,test"]
    (folder / "late.csv").write_text("\n".join([f"{header},side", *late]) + "\n")
    alike = [f"{row.rpartition(',')[0]},a,train" for row in rows]
    (folder / "alike.csv").write_text("\n".join([f"{header},side", *alike, *late[-2:]]) + "\n")
    labels = ("po\x1b[31ms", "ne\x1bg")
    hostile = [f"text {n},{labels[n % 2]},{n // 2}" for n in range(16)]
    (folder / "hostile.csv").write_text("\n".join(["text,label,group", *hostile]))
    (folder / "planted.yaml").write_text(YAML)
    (folder / "empty.yaml").write_text("")
    write_corpus(folder / "texts")
    (folder / "tiny.yaml").write_text(dump_settings(tiny_recipe("texts")))
    (folder / "texts.csv").write_text("id,said\n1,The keys\n2,A dog\n")
    (folder / "more.txt").write_text("The door and the door\n")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"n_layer": 1, "bias": false, "n_inner": 5}')
    for name, facts in {
        "probe": {"projection_sd": (2.0,)},
        "words": {"position": {"at": "word", "pieces": "last"}},
        "many": {"classes": ("a", "b", "c")},
        "number": {"classes": ()},
        "other": {"weights": "other"},
        "untested": {"is_tested": False},
    }.items():
        save_probe(folder, mini_digests, name, **facts)
    return folder


@pytest.mark.parametrize("line", [*COMMANDS, *EXACT], ids=lambda line: ascii(line)[-90:])
def test_exit_code_streams_and_new_files_are_those_that_are_stored(
    printed, made, tmp_path, snapshot, line
):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    text = printed(line)
    assert (without_digits(text) if line in COMMANDS else text) == snapshot


def options(kind):
    """Return a command line for each option of a type, of all commands."""
    groups = {"": cli.commands, "cache ": cli.commands["cache"].commands}
    return [
        f"{group}{name} {option.opts[0]}"
        for group, commands in groups.items()
        for name, command in commands.items()
        for option in command.params
        if isinstance(option.type, kind)
    ]


@pytest.mark.parametrize(
    "line",
    [
        *(f"{o} {p}" for o in options((OutFolder, CacheRoot)) for p in ("file", "file/below")),
        *(f"{option} file/page.html" for option in options(OutputFile)),
        *(f"{option} folder.html" for option in options(OutputFile)),
    ],
)
def test_a_file_for_a_folder_and_a_folder_for_a_file_are_usage_errors(call, tmp_path, line):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.html").mkdir()
    problem = (
        "folder.html is a folder. Give the path of a file."
        if line.endswith("folder.html")
        else "file is a file, not a folder. Give a new or existing folder."
    )
    done = call(*line.split())
    assert done.code == 2
    assert f"Error: Invalid value for '{line.split()[-2]}': {problem}\n" in done.stderr
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("option", options(OutputFile))
def test_an_extension_that_cannot_be_written_is_refused_before_any_work(call, option):
    done = call(*option.split(), "page.docx")
    assert done.code == 2
    assert re.fullmatch(r"Error: --out page\.docx: .* Allowed: \.\w+(, \.\w+)*\.\n", done.stderr)
    assert ("figures require --layers or --over" in done.stderr) == (option == "apply --out")


@pytest.mark.parametrize("option", options(OutputFile))
def test_a_read_only_folder_is_refused_before_any_work(call, tmp_path, monkeypatch, option):
    # The owner of this process may be root, to whom no folder is read-only.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    done = call(*option.split(), str(tmp_path / "new" / "page.html"))
    assert done.code == 2
    assert f"the folder {tmp_path} is read-only" in done.stderr


def test_a_file_named_figures_is_said_to_be_in_the_way(tmp_path):
    (tmp_path / "figures").write_text("kept")
    with pytest.raises(click.UsageError, match="figures is a file, not a folder"):
        draw_figures(list, tmp_path, ["png"], {})


def test_printed_numbers_are_those_that_are_written(call):
    def shown(lines):
        return [float(re.findall(r"[+−]?\d+\.\d\d", line)[-1].replace("−", "-")) for line in lines]

    *table, _, _, path = call(*shlex.split(ATTRIBUTION), "--out", "a.csv").stdout.splitlines()
    parts, total = shown(table[1:-1]), shown(table[-1:])
    assert sum(parts) == pytest.approx(*total, abs=0.005 * len(table))
    assert pd.read_csv(path)["value"].sum() == pytest.approx(*total, abs=0.006)
    answers = "'The keys to the old door' --answer ' is' --wrong ' are' --heads --top 3 --out p.csv"
    sites = ("--site", "blocks.*.hook_resid_mid")
    lines = call(*shlex.split(f"{PATCH} {answers}"), *sites).stdout.splitlines()
    header = next(n for n, line in enumerate(lines) if line.startswith("patch "))
    effects = [float(line.split()[-2].replace("−", "-")) for line in lines[header + 1 : header + 4]]
    rows = pd.read_csv("p.csv")
    largest = rows.loc[rows["position"].notna(), "effect"].abs().nlargest(3)
    assert list(map(abs, effects)) == pytest.approx(largest.tolist(), abs=0.006)
    lines = call(*shlex.split(LENS), "--position", "1", "--top-k", "2", "--out", "l.csv").stdout
    rows = pd.read_csv("l.csv").query("position == 1").iloc[-1]
    assert f"{rows['probability_2']:.3f}" in lines.splitlines()[8]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", "5e-05"), ("float64", "1e-10")])
def test_a_model_is_compared_with_transformers_in_a_dtype(call, dtype, tolerance):
    done = call("verify", "mini", "--text", "A cat sat.", "--dtype", dtype)
    assert done.code == 0, done.stderr
    assert f"All 16 tensors agree within {tolerance} of the largest value there." in done.stdout
    assert ("float64 to float32" in done.stdout) == (dtype == "float64")


def test_pretrain_continues_with_more_steps_and_report_draws_the_figure(
    printed, made, tmp_path, snapshot
):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    pretrain = "pretrain tiny.yaml --set training.decay_steps=0"
    lines = (pretrain, f"{pretrain} --set training.steps=14", "report runs/tiny")
    done = [without_digits(printed(line)) for line in (*lines, "report runs/tiny --figures svg")]
    assert "\n".join(done) == snapshot
