"""Training loop with measurements, checkpoints and resumption."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

from probekit.errors import CheckpointError, ConfigError
from probekit.model.gpt2 import GPT2
from probekit.model.passes.inputs import NOT_COUNTED
from probekit.terminal import SILENT, Watcher
from probekit.training.batches import Batches
from probekit.training.first_weights import initial_model
from probekit.training.log import LogRow, read_verified_log, write_log
from probekit.training.measurement import held_out_loss, held_out_windows, repeat_losses
from probekit.training.optimizers import make_optimizers
from probekit.training.progress import LOG, STATE, Progress, read_progress
from probekit.training.recipe import Recipe, TrainingSection
from probekit.training.schedule import checkpoint_steps, learning_rate
from probekit.training.state import Learner, load_state, write_state
from probekit.training.token_file import TokenFile

SECONDS_BETWEEN_REPORTS = 30

SaveCheckpoint = Callable[[GPT2, int], None]  # called with the network and the completed steps


def train(
    recipe: Recipe,
    tokens: TokenFile,
    d_vocab: int,
    folder: Path,
    save: SaveCheckpoint,
    *,
    device: str = "cpu",
    watcher: Watcher = SILENT,
) -> GPT2:
    """Train a network as the recipe specifies and return it in evaluation mode.

    log.csv and state.safetensors are written to the folder every few steps. If they exist, training
    resumes from them. On the same machine, a resumed run has the same weights and losses as an
    uninterrupted one, bit for bit.

    Args:
        recipe: the pretraining recipe.
        tokens: training and held-out tokens.
        d_vocab: vocabulary size.
        folder: run folder.
        save: called with the network at each checkpoint, before the training state is written.
        device: torch device.
        watcher: receives progress and measurements.

    Raises:
        CheckpointError: state or log in the folder is damaged or belongs to another run.
        DataError: there are too few tokens.
        ConfigError: the folder contains a run of another recipe, or training diverges.
        StoreError: the folder cannot be written.
    """
    training, shape = recipe.training, recipe.model
    model = initial_model(recipe, d_vocab).to(device)
    learner = Learner(model, make_optimizers(model, training))
    batches = Batches(
        tokens.train, training.batch, shape.n_positions, d_vocab, recipe.repeats, recipe.seed
    )
    held_out_windows(tokens.held_out, shape.n_positions)  # raises early if there are too few tokens
    log = _resume(recipe, tokens, folder, learner)
    done = len(log)
    save_steps = set(checkpoint_steps(recipe.checkpoints, training.steps))
    if done == 0 and 0 in save_steps:
        save(model, 0)
    n_reported, reported_at = len(log), time.monotonic()
    for step in range(done, training.steps):
        row, is_last = _update(learner, batches, recipe, step), step + 1 == training.steps
        is_measured = row.step % recipe.validation.every == 0 or is_last
        if is_measured:
            row = _measured(row, model, tokens, None if is_last else recipe.validation.rows)
        log.append(row)
        if is_measured or time.monotonic() - reported_at > SECONDS_BETWEEN_REPORTS:
            watcher.tell(_summary(log[n_reported:]))
            n_reported, reported_at = len(log), time.monotonic()
        if row.step in save_steps:
            save(model, row.step)
        if row.step % recipe.checkpoints.resume_every == 0 or is_last:
            logged = write_log(folder / LOG, log)
            progress = Progress.of(row.step, recipe, tokens.corpus, tokens.digest, logged)
            write_state(folder / STATE, learner.tensors(), progress)
        watcher.progress("pretrain", row.step, training.steps)
    return model.eval()


def _resume(recipe: Recipe, tokens: TokenFile, folder: Path, learner: Learner) -> list[LogRow]:
    """Load the training state in the folder, if any, and return the log rows up to it."""
    progress = read_progress(folder)
    if progress is None:
        return []
    progress.check_recipe(recipe, folder)
    if progress.tokens != tokens.digest:
        raise CheckpointError(
            f"{folder / STATE} was trained on other tokens: the texts or the vocabulary have "
            "changed, or it belongs to another run. Restore them, or delete it to start again."
        )
    log = read_verified_log(folder / LOG, progress.step, progress.log)
    load_state(folder / STATE, learner)
    return list(log)


def _update(learner: Learner, batches: Batches, recipe: Recipe, step: int) -> LogRow:
    """Run one training step and return its log row."""
    started, training = time.perf_counter(), recipe.training
    rate = learning_rate(step, training)
    for group in (g for optimizer in learner.optimizers for g in optimizer.param_groups):
        group["lr"] = rate
    with _dropout(learner.model, recipe.seed, step):
        loss = _gradients(learner.model, *batches.at(step), training)
    if not math.isfinite(loss):
        raise ConfigError(
            f"The loss at step {step + 1:,} is {loss}: training has diverged. Lower "
            "training.learning_rate or increase training.warm_up, and start again."
        )
    norm = clip_grad_norm_(learner.model.parameters(), training.clip).item()
    for optimizer in learner.optimizers:
        optimizer.step()
    learner.model.zero_grad()
    n_read = training.batch * recipe.model.n_positions
    speed = n_read / (time.perf_counter() - started)
    return LogRow(step + 1, (step + 1) * n_read, rate, loss, norm, speed)


def _gradients(
    model: GPT2, ids: torch.Tensor, targets: torch.Tensor, training: TrainingSection
) -> float:
    """Accumulate the gradients of a batch part by part; return the loss of the whole batch."""
    device = model.device
    n_counted = (targets != NOT_COUNTED).sum()
    rows = training.batch // training.accumulate
    total = 0.0
    for part, target in zip(torch.split(ids, rows), torch.split(targets, rows), strict=True):
        # The loss averages over counted targets, and parts may have different numbers of them.
        share = ((target != NOT_COUNTED).sum() / n_counted).item()
        with torch.autocast(device.type, torch.bfloat16, enabled=_uses_bfloat16(training, device)):
            loss = model.loss(part.to(device), targets=target.to(device)) * share
        torch.autograd.backward(loss)
        total += loss.item()
    return total


def _uses_bfloat16(training: TrainingSection, device: torch.device) -> bool:
    """Return whether matrix products are computed in bfloat16."""
    if training.dtype != "auto":
        return training.dtype == "bfloat16"
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


@contextmanager
def _dropout(model: GPT2, seed: int, step: int) -> Iterator[None]:
    """Enable dropout in the block, seeded by run and step; restores the global generators."""
    device = model.device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed((seed << 31) + step)
        model.train()
        yield
        model.eval()


def _measured(row: LogRow, model: GPT2, tokens: TokenFile, rows: int | None) -> LogRow:
    loss = held_out_loss(model, tokens.held_out, rows)
    first, second = repeat_losses(model)
    return replace(
        row,
        held_out_loss=loss,
        held_out_per_character=loss * tokens.tokens_per_character,
        repeated_first=first,
        repeated_second=second,
    )


def _summary(rows: Sequence[LogRow]) -> str:
    """Return a one-line summary of the rows since the last summary."""
    last, n = rows[-1], len(rows)
    loss = sum(row.loss for row in rows) / n
    speed = n / sum(1 / row.tokens_per_second for row in rows)
    summary = f"step {last.step:,}: loss {loss:.3f}, {speed:,.0f} tokens/s"
    if math.isnan(last.held_out_loss):
        return summary
    return (
        f"{summary}; held out {last.held_out_loss:.3f} ({last.held_out_per_character:.4f} per "
        f"character), random repeats {last.repeated_first:.2f} then {last.repeated_second:.2f}"
    )
