"""Create the release files of `mini` from a pretraining run: model, vocabulary and model card.

    python -m benchmarks.mini_release RUN CORPUS OUT [OLD]

RUN is the folder of a run of experiments/pretrain_mini.yaml; its last checkpoint is used.
CORPUS is the folder of its training texts. The files are written to OUT. OLD is another
model to evaluate for comparison. Every number in the card is measured or read from the run. The
exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

from benchmarks.mini import HALF, ROWS, SCORES, Evaluation, held_out_texts, measure
from probekit.experiment.loader import load_recipe
from probekit.model.weights.files import DIGESTS
from probekit.training.run_files import find_checkpoints, read_log

MOST_BYTES = 16_000_000
FILES = ("config.json", "merges.txt", "model.safetensors", "vocab.json")

CARD = Path(__file__).with_name("mini_card.md")


def head_table(evaluation: Evaluation) -> str:
    """Return the scores of every head as a table in Markdown."""
    previous, induction = evaluation.table("previous_token"), evaluation.table("induction")
    lines = ["| head | previous token | induction |", "|---|---|---|"]
    lines += [
        f"| L{layer}H{head} | {previous[layer][head]:.3f} | {induction[layer][head]:.3f} |"
        for layer in range(len(previous))
        for head in range(len(previous[layer]))
    ]
    return "\n".join(lines)


def hashes(out: Path, run: dict[str, dict[str, str]]) -> str:
    """Return the digests of the files and of the training texts, one per line."""
    files = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in FILES}
    lines = [f"    {digest}  {name}" for name, digest in files.items()]
    return "\n".join([*lines, f"    {run['digests']['corpus']}  texts"])


def card(run: Path, step: int, out: Path, evaluation: Evaluation) -> str:
    """Return the model card of the checkpoint at a step, in Markdown."""
    recipe = load_recipe(run / "recipe.yaml")
    facts = json.loads((run / "run.json").read_text())
    training = recipe.training
    [last] = [row for row in read_log(run / "log.csv") if row.step == step]
    return CARD.read_text(encoding="utf-8").format(
        **recipe.model.model_dump(),
        **training.model_dump(exclude={"steps", "decay_steps", "optimizer"}),
        **recipe.repeats.model_dump(),
        optimizer={"adamw": "AdamW", "muon": "Muon and AdamW"}[training.optimizer],
        steps=last.step,
        decay_steps=training.decay_steps or training.steps - training.warm_up,
        vocab_size=facts["vocabulary"],
        parameters=evaluation.parameters,
        learnt_share=1 - recipe.corpus.held_out,
        held_share=recipe.corpus.held_out,
        n_texts=len(facts["texts"]),
        numbers=" ".join(name.removesuffix(".txt") for name in facts["texts"]),
        tokens=last.tokens / 1e6,
        passes=last.tokens / facts["tokens"]["train"],
        per_token=evaluation.per_token,
        per_character=evaluation.per_character,
        n_characters=evaluation.n_characters,
        n_tokens=evaluation.n_tokens,
        first=evaluation.repeats[0],
        second=evaluation.repeats[1],
        rows=ROWS,
        half=HALF,
        heads=head_table(evaluation),
        hashes=hashes(out, facts),
    )


def goals(evaluation: Evaluation, out: Path) -> dict[str, bool]:
    """Return the goals of the release as sentences, and whether each is met."""
    size = (out / "model.safetensors").stat().st_size
    (previous, best_previous), (induction, best_induction) = map(evaluation.best, SCORES)
    first, second = evaluation.repeats
    return {
        f"{size:,} bytes, at most {MOST_BYTES:,}": size <= MOST_BYTES,
        f"{evaluation.per_character:.4f} nats per character, at most 1.05": evaluation.per_character
        <= 1.05,
        f"{first - second:.3f} nats lower at the second occurrence, at least 1": first - second
        >= 1,
        f"induction {best_induction:.3f} at {induction}, over 0.4": best_induction > 0.4,
        f"previous token {best_previous:.3f} at {previous}, over 0.5": best_previous > 0.5,
    }


def main() -> None:
    """Write the files and print which goals they meet."""
    run, corpus, out, *old = map(Path, sys.argv[1:])
    step, folder = max(find_checkpoints(run).items())
    out.mkdir(parents=True, exist_ok=True)
    for name in (*FILES, DIGESTS):
        shutil.copyfile(folder / name, out / name)
    texts = held_out_texts(corpus)
    evaluation = measure(out, texts)  # of the float16 weights that are released
    (out / "README.md").write_text(card(run, step, out, evaluation), encoding="utf-8")
    for source in old:
        previous = measure(source, texts)
        print(
            f"{source}: {previous.per_character:.4f} nats per character, random tokens "
            "{:.3f} then {:.3f}, ".format(*previous.repeats)
            + ", ".join(
                "{} {} {:.3f}".format(s, *previous.best(s)) for s in ("previous_token", "induction")
            )
        )
    met = goals(evaluation, out)
    for goal, is_met in met.items():
        print(f"{'met   ' if is_met else 'missed'} {goal}")
    sys.exit(not all(met.values()))


if __name__ == "__main__":
    main()
