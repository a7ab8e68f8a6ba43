"""Verification of a network: its numbers compared with those of transformers.

Both load the checkpoint independently, in float32 or float64. The texts are compared at every
tensor that transformers returns. Ours come from one batch padded on the left, theirs from each text
alone, so that a fault of padding is found too.

In float64 the code of transformers rounds to float32 on its way: in RMS norms, in the softmax of
attention and in the loss. There its conversions of float64 to float32 are skipped; its formulas
stay as they are, and so do numbers that begin in float32, such as the angles of rotary positions.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor
from torch.overrides import TorchFunctionMode

from probekit.amounts import counted
from probekit.errors import ConfigError, MissingError, ProbekitError, nearest
from probekit.model.families.table import find_config, load_model
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.proven.identity import quiet_transformers
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.hub import find_model

TOKENS, CHAT = "tokens", "chat tokens"
TOLERANCES = {"float32": 5e-5, "float64": 1e-10}  # as a share of the largest value at a position
TEXTS = (
    "The cat sat on the mat.",
    "When Mary and John went to the store, John gave a drink to Mary, who thanked him for it.",
    "Prices rose by 3.5 % in 1987; naïve forecasts, however, had said “0”.",
)
_RANDOM = (3, 40)  # texts and tokens, for a checkpoint without a vocabulary
_RESID, _PATTERN = "hook_resid_post", "attn.hook_pattern"


@dataclass(frozen=True)
class Agreement:
    """The comparison of one tensor over all texts.

    Attributes:
        site: name of the tensor: a site, `logits` or `loss`; or `tokens` for the ids of the texts
            and `chat tokens` for those in the chat template.
        difference: largest absolute difference; for tokens the number of texts that differ.
        largest: largest absolute value of the reference; for tokens the number of texts.
        relative: largest difference at a position as a share of the largest value there; for
            tokens the share of the texts that differ.
        tolerance: largest `relative` at which they agree.
    """

    site: str
    difference: float
    largest: float
    relative: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether the relative difference is within the tolerance."""
        return self.relative <= self.tolerance


def verify_model(
    source: str | Path, texts: Sequence[str] = TEXTS, *, dtype: str = "float32"
) -> tuple[Agreement, ...]:
    """Compare the network and the tokenizer of a checkpoint with those of transformers.

    Args:
        source: `mini`, a hub name, or a folder.
        texts: texts of at least two tokens. A checkpoint without a vocabulary is compared on
            random tokens.
        dtype: float32 or float64, for both models. In float64 the tolerance is 1e-10, and
            transformers' conversions to float32 are skipped.

    Returns:
        A comparison for the tokens (unless there is no vocabulary, or transformers cannot read the
        tokenizer), those of each text as the user's turn of a chat (if there is a chat template,
        too), the residual stream before the first block and after each but the last, each attention
        pattern, the output of the final norm, the logits and the loss in nats per token. Both
        models are in memory.

    >>> all(one.agrees for one in verify_model("mini", ["The cat sat on the mat."]))
    True

    Raises:
        ConfigError: there are no texts, one has fewer than two tokens, or the dtype is another one.
        DataError: a text cannot be encoded, or has more tokens than the context.
        MissingError: no model has this name.
        CheckpointError: no family has the architecture, or the checkpoint is damaged.
    """
    if dtype not in TOLERANCES:
        raise ConfigError(
            f"Models cannot be compared in dtype {dtype!r}. {nearest(dtype, TOLERANCES)} Rounding "
            "in half precision hides differences."
        )
    tokenizer, batch = _batch(source, texts)
    ours, reference = load_model(source, dtype), _Reference(find_model(source), dtype)
    compared = [] if tokenizer is None else list(_tokens(reference, tokenizer, texts))
    measured: dict[str, list[list[float]]] = defaultdict(list)  # `_compared` of each text, by site
    with torch.inference_mode():
        expected: dict[int, Mapping[str, Tensor]] = {}  # the reference of the current text only
        # Our pass of all texts is first, because it raises an error if a text is too long.
        for site, text, value in _tensors(ours, batch):
            if text not in expected:
                expected = {text: reference.tensors(batch.ids[text][batch.mask[text]])}
            measured[site].append(_compared(value, expected[text][site]))
    compared += [_agreement(site, each, TOLERANCES[dtype]) for site, each in measured.items()]
    return tuple(compared)


def _compared(value: Tensor, theirs: Tensor) -> list[float]:
    """Return difference, largest and relative of an `Agreement` for one text.

    Positions are all axes but the last.
    """
    difference, largest = (value - theirs).abs().amax(-1), theirs.abs().amax(-1)
    # The least positive number in place of 0, for positions at which all values are 0.
    relative = difference / largest.clamp(min=torch.finfo(largest.dtype).tiny)
    return [of_positions.max().item() for of_positions in (difference, largest, relative)]


def _agreement(site: str, of_texts: Sequence[list[float]], tolerance: float) -> Agreement:
    """Return the comparison over all texts, from the numbers of each text; see `_compared`."""
    worst = torch.tensor(of_texts, dtype=torch.float64).amax(0)  # NaN if one is NaN
    difference, largest, relative = worst.tolist()
    return Agreement(site, difference, largest, relative, tolerance)


def _batch(source: str | Path, texts: Sequence[str]) -> tuple[Tokenizer | None, TokenBatch]:
    """Return the tokenizer, and the texts padded on the left.

    A checkpoint without a vocabulary has no tokenizer, and the batch has random tokens.
    """
    if not texts:
        raise ConfigError("There are no texts. Give at least one.")
    try:
        tokenizer = Tokenizer.from_pretrained(source)
    except MissingError:
        n_vocab = find_config(source).axis_sizes["d_vocab"]
        ids = torch.randint(n_vocab, _RANDOM, generator=torch.Generator().manual_seed(0))
        n_texts, n_tokens = _RANDOM
        # The first text has all tokens, the last one 2 of them, the fewest with a loss, after
        # padding on the left.
        lengths = torch.linspace(n_tokens, 2, n_texts).round()
        mask = torch.arange(n_tokens, 0, -1) <= lengths[:, None]
        return None, TokenBatch(ids, mask, torch.zeros(*_RANDOM, 2, dtype=torch.int64))
    batch = tokenizer.batch(list(texts), bos=False, side="left")
    for text, length in zip(texts, batch.mask.sum(1).tolist(), strict=True):
        if length < 2:
            raise ConfigError(
                f"{text!r} has {counted(length, 'token')}. A loss needs at least 2. Give a longer "
                "text."
            )
    return tokenizer, batch


class _Reference:
    """A checkpoint as transformers loads it, with attention whose patterns can be read."""

    def __init__(self, folder: Path, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        self.folder = folder
        eager = dict.fromkeys(("attn_implementation", "experts_implementation"), "eager")
        with quiet_transformers():
            self.model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, **eager
            )

    def tensors(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the tensors of one text, by the names of our sites, without the batch axis."""
        with quiet_transformers(), _WithoutRounding():
            out = self.model(
                ids[None], output_hidden_states=True, output_attentions=True, labels=ids[None]
            )
        # The residual stream before the first block and after each, the last one after the norm.
        *before, normed = out.hidden_states
        named = {"blocks.0.hook_resid_pre": before[0]}
        for layer, hidden in enumerate(before[1:]):
            named[f"blocks.{layer}.{_RESID}"] = hidden
        for layer, pattern in enumerate(out.attentions):
            named[f"blocks.{layer}.{_PATTERN}"] = pattern
        named |= {"final norm": normed, "logits": out.logits, "loss": out.loss[None]}
        return {name: value[0] for name, value in named.items()}

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer; None if transformers cannot read it."""
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError):
            return None

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text."""
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def chat_ids(self, text: str) -> list[int]:
        """Return the ids of a text as the user's turn, without today's date."""
        found: list[int] = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            chat_template="{% set strftime_now = undefined %}" + self.tokenizer.chat_template,
            add_generation_prompt=True,
            return_dict=True,
        )["input_ids"]
        return found


class _WithoutRounding(TorchFunctionMode):
    """Skips conversions of float64 to float32 in the code that runs within."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func` without the conversion and return its result."""
        named = dict(kwargs or {})
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float:
                return args[0]
            args = tuple(torch.float64 if x is torch.float32 else x for x in args)
            if named.get("dtype") is torch.float32:
                named["dtype"] = torch.float64
        return func(*args, **named)


def _tokens(
    reference: _Reference, tokenizer: Tokenizer, texts: Sequence[str]
) -> Iterator[Agreement]:
    """Yield the comparisons of the tokens: of the texts alone, and in the chat template.

    There are none if transformers cannot read the tokenizer, and only the first one if the
    tokenizer of transformers has no chat template. A text that only one of the two templates
    accepts differs, also if ours is missing; one that both refuse does not.
    """
    if reference.tokenizer is None:
        return
    of_texts = [
        tokenizer.encode(text, bos=False).ids.tolist() != reference.ids(text) for text in texts
    ]
    yield Agreement(TOKENS, sum(of_texts), len(texts), sum(of_texts) / len(texts), 0.0)
    if not isinstance(getattr(reference.tokenizer, "chat_template", None), str):
        return
    of_chats = [
        _unless_refused(lambda text: tokenizer.encode_chat(text).ids.tolist(), text)
        != _unless_refused(reference.chat_ids, text)
        for text in texts
    ]
    yield Agreement(CHAT, sum(of_chats), len(texts), sum(of_chats) / len(texts), 0.0)


def _unless_refused(ids: Callable[[str], list[int]], text: str) -> list[int] | None:
    """Return the ids of a text in a chat template; None if the template refuses it."""
    try:
        return ids(text)
    except (ProbekitError, TemplateError):
        return None


def _tensors(model: Network, batch: TokenBatch) -> Iterator[tuple[str, int, Tensor]]:
    """Yield our tensors of one text after the other: name, number of the text, and value.

    Those of a text are in forward order and without padding.
    """
    last = model.axis_sizes["n_layers"] - 1
    sites = [f"blocks.*.{_RESID}", f"blocks.*.{_PATTERN}", "blocks.0.hook_resid_pre"]
    logits, cache = model.run_with_cache(batch, sites)
    assert logits is not None
    for text, mask in enumerate(batch.mask):
        yield "blocks.0.hook_resid_pre", text, cache["resid_pre", 0][text, mask]
        for layer in range(last + 1):
            pattern = cache["pattern", layer][text][:, mask][:, :, mask]
            yield f"blocks.{layer}.{_PATTERN}", text, pattern
            if layer < last:  # transformers returns the last one after the final norm only
                yield f"blocks.{layer}.{_RESID}", text, cache["resid_post", layer][text, mask]
        yield "final norm", text, model.final_norm(cache["resid_post", last][text, mask])
        of_text = logits[text, mask]
        yield "logits", text, of_text
        targets = batch.ids[text, mask][1:, None]
        yield "loss", text, -of_text[:-1].log_softmax(-1).gather(1, targets).mean()
