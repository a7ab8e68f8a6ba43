"""Training loop: the network and its optimizers, batches, measurements, checkpoints, resumption.

The token rows of a step depend on corpus, recipe and step, not on earlier steps, so a resumed run
reads the same rows as one that was never interrupted.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Muon, Optimizer

from probekit.errors import CheckpointError, ConfigError, DataError
from probekit.files import write_atomic
from probekit.model.families.gpt2 import GPT2
from probekit.model.passes.inputs import NOT_COUNTED, next_tokens
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import write_checkpoint
from probekit.terminal import SILENT, Watcher
from probekit.training import run_files
from probekit.training.corpus import TokenArray, TokenFile
from probekit.training.recipe import (
    Recipe,
    RepeatsSection,
    TrainingSection,
    checkpoint_steps,
    learning_rate,
)

IntArray = npt.NDArray[np.int64]
SaveCheckpoint = Callable[[GPT2, int], None]  # called with the network and the completed steps

SECONDS_BETWEEN_REPORTS = 30
ROWS_AT_ONCE = 16  # held-out rows in one forward pass
N_REPEATS = 32  # rows of repeated random tokens
LONGEST_HALF = 64  # tokens of such a row before their repetition, at most


def initial_model(recipe: Recipe, d_vocab: int) -> GPT2:
    """Return the network before training, initialised with the seed of the recipe.

    With `position_waves` its position embeddings are sinusoids instead of random numbers.
    """
    model = GPT2(recipe.model.config(d_vocab), seed=recipe.seed)
    if recipe.model.position_waves:
        with torch.no_grad():
            positions = model.position_embedding
            positions.copy_(sinusoids(*positions.shape) * recipe.model.position_waves)
    return model


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """Return sinusoidal position embeddings, shape [n_ctx d_model].

    Their mean square is 1, or nearly so if d_model is odd.

    Wavelengths range from 2 pi tokens to nearly 2 pi n_ctx. A shift by one token is then the same
    rotation at every position, so a head that attends to the previous token has to learn only one.

    Source: Vaswani et al. 2017, section 3.5; there the longest wavelength is 2 pi times 10,000.

    >>> sinusoids(256, 64).pow(2).mean().round(decimals=2)
    tensor(1.)
    """
    pairs = torch.arange(d_model, dtype=torch.float64) // 2
    phase = torch.arange(d_model) % 2 * (math.pi / 2)  # cos(x) = sin(x + pi / 2)
    frequency = n_positions ** (-pairs / max(1, d_model // 2))  # d_model may be 1
    position = torch.arange(n_positions, dtype=torch.float64)[:, None]
    # The mean square of a sine is 1 / 2.
    return (math.sqrt(2) * torch.sin(position * frequency + phase)).float()


def make_optimizers(model: GPT2, training: TrainingSection) -> tuple[Optimizer, ...]:
    """Return the optimizers; each parameter belongs to exactly one.

    Weight decay applies to matrices, including embeddings, and not to biases and layer norms. The
    training loop sets the learning rates.

    Source: Brown et al. 2020, appendix B, for AdamW; Jordan et al. 2024, "Muon: an optimizer for
    hidden layers in neural networks", with the scaling of Liu et al. 2025, "Muon is scalable for
    LLM training", so that both optimizers use the same learning rate.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> model = GPT2(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=97, n_positions=16))
    >>> [type(o).__name__ for o in make_optimizers(model, TrainingSection(steps=1, batch=1))]
    ['AdamW']
    """
    named = dict(model.named_parameters())
    matrices = {name: parameter for name, parameter in named.items() if parameter.ndim > 1}
    in_blocks = {name: matrix for name, matrix in matrices.items() if name.startswith("h.")}
    of_muon = in_blocks if training.optimizer == "muon" else {}
    others = [matrix for name, matrix in matrices.items() if name not in of_muon]
    groups = [
        {"params": others, "weight_decay": training.weight_decay},
        {"params": [vector for vector in named.values() if vector.ndim == 1], "weight_decay": 0.0},
    ]
    adamw = AdamW(groups, lr=training.learning_rate, betas=training.betas, fused=True)
    return (_muon(of_muon, training), adamw) if of_muon else (adamw,)


def _muon(matrices: dict[str, nn.Parameter], training: TrainingSection) -> Muon:
    """Return Muon over the matrices, with queries, keys and values as separate matrices.

    c_attn stacks the three. If they were orthogonalised together, the part with the largest
    gradients, usually the values, would get most of the update.
    """
    parts: list[tuple[nn.Parameter, list[nn.Parameter]]] = []
    for name, parameter in matrices.items():
        stacked = parameter.detach().chunk(3 if "c_attn" in name else 1)
        parts.append((parameter, [nn.Parameter(part) for part in stacked]))  # sharing its storage
    muon = Muon(
        [view for _, views in parts for view in views],
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )

    def split_gradients(*_: object) -> None:
        """Give each separate matrix its part of the gradient of the stacked one."""
        for parameter, views in parts:
            if parameter.grad is not None:
                for view, gradient in zip(views, parameter.grad.chunk(len(views)), strict=True):
                    view.grad = gradient

    muon.register_step_pre_hook(split_gradients)
    return muon


@dataclass(frozen=True)
class Learner:
    """A network and its optimizers."""

    model: GPT2
    optimizers: tuple[Optimizer, ...]

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters as model.NAME and optimizer states as optimizer.NUMBER.INDEX.KEY."""
        named = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                named |= {f"optimizer.{number}.{index}.{key}": v for key, v in values.items()}
        return named


def write_state(path: Path, tensors: Mapping[str, Tensor], progress: run_files.Progress) -> None:
    """Write a training state atomically, with a digest of all that it contains.

    Raises:
        StoreError: the file cannot be written.
    """
    # safetensors requires contiguous arrays; transposed views are not.
    arrays = {name: tensors[name].cpu().contiguous().numpy() for name in sorted(tensors)}
    write_atomic(path, save(arrays, run_files.sealed(progress, arrays)))


def load_state(path: Path, learner: Learner) -> None:
    """Load a state into a learner.

    `read_progress` must have verified its digest before, and `Progress.check_recipe` its settings.

    Raises:
        CheckpointError: the state belongs to another network, or to more optimizers.
    """
    try:
        with safe_open(path, "pt") as file:
            named = {name: file.get_tensor(name) for name in list(file.keys())}
        names = [name for name, _ in learner.model.named_parameters()]
        learner.model.load_state_dict({name: named.pop(f"model.{name}") for name in names})
        # The other tensors are optimizer.NUMBER.INDEX.KEY; see `Learner.tensors`.
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in learner.optimizers]
        for name, tensor in named.items():
            _, number, index, key = name.split(".")
            states[int(number)].setdefault(int(index), {})[key] = tensor
        for optimizer, state in zip(learner.optimizers, states, strict=True):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as error:
        raise run_files.damaged_state(path, error) from error


def save_checkpoint(
    run: Path, model: GPT2, step: int, dtype: torch.dtype, tokenizer: Tokenizer
) -> Path:
    """Save the model after a step in the hub's format and return its folder.

    Args:
        run: run folder.
        model: the network.
        step: number of completed steps.
        dtype: dtype on disk.
        tokenizer: tokenizer of the run; its <|endoftext|> is saved as BOS and EOS token.

    Raises:
        StoreError: the folder cannot be written.
        CheckpointError: the folder has a damaged digests.json.
    """
    folder = run_files.checkpoint_folder(run, step)
    tokenizer.save_pretrained(folder)
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    end = tokenizer.bos_id
    write_checkpoint(folder, replace(model.config, bos_token_id=end, eos_token_id=end), tensors)
    return folder


@dataclass(frozen=True)
class Batches:
    """Token rows of each training step.

    A row is a window of the text, or a short piece of tokens repeated to the length of a row. Each
    pass over the text begins at a new random offset, cuts the text into consecutive windows, and
    reads each of them once, in random order. Rows that repeat a piece are spread among the windows,
    evenly while their share is constant.

    Attributes:
        tokens: token ids of the text, shape (n_tokens,).
        n_rows: rows per batch.
        n_ctx: tokens per row.
        d_vocab: vocabulary size; random pieces draw ids uniformly from 0 to d_vocab - 1.
        repeats: settings of the rows that repeat a piece.
        seed: random seed.
    """

    tokens: TokenArray
    n_rows: int
    n_ctx: int
    d_vocab: int
    repeats: RepeatsSection
    seed: int

    def __post_init__(self) -> None:
        if self.n_windows < 1:
            raise DataError(
                f"The corpus has {len(self.tokens):,} training tokens; rows of {self.n_ctx} tokens "
                f"need at least {2 * self.n_ctx}."
            )

    @property
    def n_windows(self) -> int:
        """Number of windows, of n_ctx tokens each, that one pass over the text reads.

        A pass begins at a random offset below n_ctx. For every offset this number of windows fits,
        and one token more, the target of the last.
        """
        return (len(self.tokens) - self.n_ctx) // self.n_ctx

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return input ids and targets of a step, both shape [batch pos].

        The first occurrence of a repeated piece cannot be copied from earlier tokens. Its targets
        are NOT_COUNTED.
        """
        rng = np.random.default_rng([self.seed, step])
        rows, uncounted = [], []
        # Rows are numbered over the whole run. One that adds to the count of repeats is a repeat.
        for number in range(step * self.n_rows, (step + 1) * self.n_rows):
            before = self._repeats_before(number)
            if self._repeats_before(number + 1) > before:
                piece = self._piece(rng, step)
                rows.append(np.resize(piece, self.n_ctx + 1))  # repeats the piece
                uncounted.append(len(piece) - 1)  # its first token is no target
            else:
                # `number - before` windows were read before this one.
                epoch, place = divmod(number - before, self.n_windows)
                order, offset = _order(self.seed, epoch, self.n_windows, self.n_ctx)
                start = offset + int(order[place]) * self.n_ctx
                # One token more than a row: the target of the last one.
                rows.append(self.tokens[start : start + self.n_ctx + 1].astype(np.int64))
                uncounted.append(0)
        ids = torch.from_numpy(np.stack(rows))  # [batch n_ctx + 1]
        targets = ids[:, 1:].clone()
        for row, count in enumerate(uncounted):
            targets[row, :count] = NOT_COUNTED
        return ids[:, :-1].contiguous(), targets

    def _repeats_before(self, number: int) -> int:
        """Return how many of the first `number` rows repeat a piece: the floor of summed shares."""
        first, last = self.repeats.share
        n_growing = self.repeats.grow_steps * self.n_rows
        grown = min(number, n_growing)
        # The share at row n is last + (first - last) (1 - n / n_growing), and `last` from n_growing
        # on. Its integral up to `number` is last * number + falling. Without growth `grown` is 0.
        falling = (first - last) * grown * (1 - grown / max(1, 2 * n_growing))
        return math.floor(last * number + falling)

    def _piece(self, rng: np.random.Generator, step: int) -> IntArray:
        """Return the tokens that a row repeats: random ids with the probability `uniform`.

        Otherwise a piece of the text or, as often, its tokens in random order.
        """
        shortest, longest = self.repeats.period
        grown = min(1.0, (step + 1) / max(1, self.repeats.grow_steps))  # 1 without growth
        size = int(rng.integers(shortest, shortest + round((longest - shortest) * grown) + 1))
        if rng.random() < self.repeats.uniform:
            return rng.integers(self.d_vocab, size=size)
        start = int(rng.integers(len(self.tokens) - size))
        piece = self.tokens[start : start + size].astype(np.int64)
        return rng.permutation(piece) if rng.random() < 0.5 else piece


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, n_windows: int, n_ctx: int) -> tuple[IntArray, int]:
    """Return the order of the windows in one pass, and the token at which the first one begins."""
    # NumPy pads short seeds with zeros, so that the 0 changes nothing.
    rng = np.random.default_rng([seed, epoch, 0])
    return rng.permutation(n_windows), int(rng.integers(n_ctx))


@torch.no_grad()
def held_out_loss(model: GPT2, tokens: TokenArray, rows: int | None = None) -> float:
    """Return the mean loss in nats per token over windows of held-out text, without autocast.

    Windows have the length of the context and do not overlap. The first token of each is not
    predicted, and an incomplete window at the end is dropped.

    Args:
        model: any GPT-2 in evaluation mode.
        tokens: token ids of held-out text, shape (n_tokens,).
        rows: number of windows, evenly spaced; None for all, and all if there are fewer.

    >>> model = GPT2.from_pretrained("mini")
    >>> bool(8 < held_out_loss(model, np.arange(2048, dtype=np.uint16)) < 30)
    True

    Raises:
        DataError: there are fewer tokens than one window.
    """
    windows = held_out_windows(tokens, model.config.n_positions)
    if rows is not None and rows < len(windows):
        windows = windows[np.arange(rows) * len(windows) // rows]
    ids = torch.from_numpy(windows.astype(np.int64)).to(model.device)
    parts = torch.split(ids, ROWS_AT_ONCE)
    return sum(model.loss(part).item() * len(part) for part in parts) / len(ids)


def held_out_windows(tokens: TokenArray, n_ctx: int) -> TokenArray:
    """Split held-out text into windows, shape [n_windows n_ctx]; an incomplete one is dropped.

    >>> held_out_windows(np.arange(10, dtype=np.uint16), 4).tolist()
    [[0, 1, 2, 3], [4, 5, 6, 7]]

    Raises:
        DataError: there are fewer tokens than one window.
    """
    windows = tokens[: len(tokens) // n_ctx * n_ctx].reshape(-1, n_ctx)
    if not len(windows):
        raise DataError(
            f"{len(tokens):,} held-out tokens do not fill one context of {n_ctx}. Increase "
            "`corpus.held_out`, or reduce the context length."
        )
    return windows


@torch.no_grad()
def repeat_losses(model: GPT2, seed: int = 0) -> tuple[float, float]:
    """Return the mean loss on random tokens, and on their repetition in the same sequence.

    The first half of a sequence is drawn uniformly from the vocabulary, and the second half repeats
    it. A half has half a context of tokens, but at most 64. The decrease in loss from the first to
    the second half measures induction.

    Source: Olsson et al. 2022, "In-context learning and induction heads".

    >>> first, second = repeat_losses(GPT2.from_pretrained("mini"))
    >>> bool(first - second > 1)
    True
    """
    length = min(LONGEST_HALF, model.config.n_positions // 2)
    rng = np.random.default_rng(seed)
    half = torch.from_numpy(rng.integers(model.config.vocab_size, size=(N_REPEATS, length)))
    ids = half.repeat(1, 2).to(model.device)
    targets = next_tokens(ids, None)
    halves: list[Tensor] = []
    # Position i predicts token i + 1. The second half begins at the token `length`; the first token
    # of all is not predicted.
    for part in (slice(0, length - 1), slice(length - 1, 2 * length - 1)):
        counted = torch.full_like(targets, NOT_COUNTED)
        counted[:, part] = targets[:, part]
        halves.append(model.loss(ids, targets=counted))
    return halves[0].item(), halves[1].item()


def train(
    recipe: Recipe,
    tokens: TokenFile,
    d_vocab: int,
    folder: Path,
    before: run_files.Progress | None,
    save: SaveCheckpoint,
    *,
    device: str = "cpu",
    watcher: Watcher = SILENT,
) -> GPT2:
    """Train a network as the recipe specifies and return it in evaluation mode.

    log.csv and state.safetensors are written to the folder every few steps, and training resumes
    from them. On the same CPU and with as many threads, a resumed run has the same weights and
    losses as an uninterrupted one, bit for bit.

    Args:
        recipe: the pretraining recipe.
        tokens: training and held-out tokens.
        d_vocab: vocabulary size.
        folder: run folder.
        before: the progress of the state in the folder, of this recipe; None starts a new run.
        save: called with the network at each checkpoint, before the training state is written.
        device: torch device.
        watcher: receives progress and measurements.

    Raises:
        CheckpointError: state or log in the folder is damaged or belongs to another run.
        DataError: there are too few tokens.
        ConfigError: training diverges.
        StoreError: the folder cannot be written.
    """
    training, n_ctx = recipe.training, recipe.model.n_positions
    model = initial_model(recipe, d_vocab).to(device)
    learner = Learner(model, make_optimizers(model, training))
    batches = Batches(tokens.train, training.batch, n_ctx, d_vocab, recipe.repeats, recipe.seed)
    held_out_windows(tokens.held_out, n_ctx)  # raises early if there are too few tokens
    log: list[run_files.LogRow] = []
    if before is not None:
        if before.tokens != tokens.digest:
            raise CheckpointError(
                f"{folder / run_files.STATE} was trained on other tokens: the texts or the "
                "vocabulary have changed, or it belongs to another run. Restore them, or delete it "
                "to start again."
            )
        log = list(run_files.read_log(folder / run_files.LOG, before))
        load_state(folder / run_files.STATE, learner)
    done = len(log)
    save_steps = set(checkpoint_steps(recipe.checkpoints, training.steps))
    if done == 0 and 0 in save_steps:
        save(model, 0)
    n_reported, reported_at = len(log), time.monotonic()
    for step in range(done, training.steps):
        row = _update(learner, batches, recipe, step)
        is_last = row.step == training.steps
        is_measured = row.step % recipe.validation.every == 0 or is_last
        if is_measured:
            rows = None if is_last else recipe.validation.rows
            loss = held_out_loss(model, tokens.held_out, rows)
            first, second = repeat_losses(model)
            row = replace(
                row,
                held_out_loss=loss,
                held_out_per_character=loss * (len(tokens.held_out) / tokens.n_characters),
                repeated_first=first,
                repeated_second=second,
            )
        log.append(row)
        if is_measured or time.monotonic() - reported_at > SECONDS_BETWEEN_REPORTS:
            watcher.tell(_summary(log[n_reported:]))
            n_reported, reported_at = len(log), time.monotonic()
        if row.step in save_steps:
            save(model, row.step)
        if row.step % recipe.checkpoints.resume_every == 0 or is_last:
            digest = run_files.write_log(folder / run_files.LOG, log)
            progress = run_files.Progress.of(row.step, recipe, tokens.corpus, tokens.digest, digest)
            write_state(folder / run_files.STATE, learner.tensors(), progress)
        watcher.progress("pretrain", row.step, training.steps)
    return model.eval()


def _update(learner: Learner, batches: Batches, recipe: Recipe, step: int) -> run_files.LogRow:
    """Run one training step and return its log row."""
    started = time.perf_counter()
    training, model = recipe.training, learner.model
    rate = learning_rate(step, training)
    for optimizer in learner.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
    # Dropout is seeded by run and step, which is below 2^31. The global generators of CPU and CUDA
    # are restored.
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed((recipe.seed << 31) + step)
        model.train()
        loss = _gradients(model, *batches.at(step), training)
        model.eval()
    if not math.isfinite(loss):
        raise ConfigError(
            f"The loss at step {step + 1:,} is {loss}: training has diverged. Lower "
            "training.learning_rate or increase training.warm_up, and start again."
        )
    norm = clip_grad_norm_(model.parameters(), training.clip).item()
    for optimizer in learner.optimizers:
        optimizer.step()
    model.zero_grad()
    n_read = training.batch * recipe.model.n_positions
    speed = n_read / (time.perf_counter() - started)
    return run_files.LogRow(step + 1, (step + 1) * n_read, rate, loss, norm, speed)


def _gradients(model: GPT2, ids: Tensor, targets: Tensor, training: TrainingSection) -> float:
    """Accumulate the gradients of a batch part by part; return the loss of the whole batch."""
    device = model.device
    n_counted = (targets != NOT_COUNTED).sum()
    rows = training.batch // training.accumulate  # in each part
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


def _summary(rows: Sequence[run_files.LogRow]) -> str:
    """Return a one-line summary of the rows since the last summary.

    It ends with the measurements of the last row, unless this row has none (NaN).
    """
    last, n = rows[-1], len(rows)
    loss = sum(row.loss for row in rows) / n
    # The harmonic mean, because all steps have the same number of tokens.
    speed = n / sum(1 / row.tokens_per_second for row in rows)
    summary = f"step {last.step:,}: loss {loss:.3f}, {speed:,.0f} tokens/s"
    if math.isnan(last.held_out_loss):
        return summary
    return (
        f"{summary}; held out {last.held_out_loss:.3f} ({last.held_out_per_character:.4f} per "
        f"character), random repeats {last.repeated_first:.2f} then {last.repeated_second:.2f}"
    )
