"""Which token comes next: greedy, by temperature, among the k best, in the nucleus."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.model.config import GPT2Config, is_number

# Each entry of a seed is one word of 32 bits, so that no two lists of them are the same words.
MAX_SEED = 2**32 - 1

# Says of the new ids of one row whether it is at its end.
Stop = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class Decoding:
    """How a text is gone on with.

    Attributes:
        max_new_tokens: how many tokens are added to each prompt, at most.
        temperature: 0 takes the most probable token; 1 draws as the model says, lower values keep
            to the probable, higher ones draw more evenly.
        top_k: draw among the k most probable tokens only (and those that tie with the last).
        top_p: draw among the fewest most probable tokens whose probabilities, after temperature
            and top_k, sum to p or more.
        num_samples: how many continuations each prompt gets.
        seed: of the draws, below 2^32. They depend on it, on the tokens of the prompt and on the
            number of the sample alone: not on what else is in the batch.
        stop: says of the new ids of a row whether it is at its end.
        slide: beyond the context, let the earliest tokens go instead of refusing. Each token then
            takes a full pass over the context, for the positions of all tokens move.

    Raises:
        ConfigError: a value is outside of what is described.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    num_samples: int = 1
    seed: int = 0
    stop: Stop | None = None
    slide: bool = False

    def __post_init__(self) -> None:
        _check_whole("max_new_tokens", self.max_new_tokens, least=1)
        _check_whole("num_samples", self.num_samples, least=1)
        _check_whole("seed", self.seed, least=0, most=MAX_SEED)
        if self.top_k is not None:
            _check_whole("top_k", self.top_k, least=1)
        if not is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ConfigError(
                "temperature must be 0 (the most probable token) or more, not "
                f"{self.temperature!r}."
            )
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(f"top_p must be above 0 and at most 1, not {self.top_p!r}.")

    def check_length(self, config: GPT2Config, n_prompt: int) -> None:
        """Refuse a prompt of `n_prompt` tokens that does not fit the context with what is added.

        Raises:
            DataError: there are more tokens than the context, and it does not slide.
        """
        if self.slide or n_prompt + self.max_new_tokens - 1 <= config.n_positions:
            return
        room = config.n_positions - n_prompt + 1
        mend = f"ask for at most {room} new ones" if room > 0 else "shorten the prompt"
        raise DataError(
            f"{n_prompt} prompt tokens and {self.max_new_tokens} new ones do not fit the context "
            f"of {config.n_positions}: {mend}, or slide, which lets the earliest tokens go."
        )

    def generators(self, prompts: Sequence[Sequence[int]]) -> list[np.random.Generator]:
        """Return what draws for each row, one number a step; nothing where nothing is drawn.

        The samples of a prompt stand one after another.

        >>> len(Decoding(1, temperature=1, num_samples=2).generators([[5, 6], [7]]))
        4
        """
        if self.temperature == 0:
            return []
        # numpy fills short lists with zeros: without its length, [5] would draw as [5, 0].
        return [
            np.random.default_rng([self.seed, sample, len(prompt), *prompt])
            for prompt in prompts
            for sample in range(self.num_samples)
        ]

    def choose(self, logits: Tensor, draws: Tensor) -> Tensor:
        """Return a token for each row, shape [batch].

        Args:
            logits: shape [batch d_vocab].
            draws: uniform in [0, 1), shape [batch]; not looked at when temperature is 0.

        >>> logits = torch.tensor([[0.0, 3.0, 2.9, 0.0]])
        >>> Decoding(1, temperature=1, top_k=2).choose(logits, torch.tensor([0.99]))
        tensor([2])

        Raises:
            DataError: a row has a logit that is NaN or inf, or none above -inf.
        """
        best = logits.amax(-1, keepdim=True)
        self._check_finite(best[:, 0])
        if self.temperature == 0:
            return logits.argmax(-1)
        # The best at 0: a small temperature then makes the others -inf, and none of them NaN.
        scaled = (logits - best).double() / self.temperature
        if self.top_k is not None:
            scaled = keep_top_k(scaled, self.top_k)
        if self.top_p is not None:
            scaled = keep_top_p(scaled, self.top_p)
        sums = scaled.softmax(-1).cumsum(-1)
        # The first token whose sum is beyond the draw: one of probability 0 never is.
        return torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True)[:, 0]

    def _check_finite(self, best: Tensor) -> None:
        # NaN is the largest of all, and -inf the best of a row that has nothing else.
        if bool(best.isfinite().all()):
            return
        row = int((~best.isfinite()).nonzero()[0])
        prompt, sample = (number + 1 for number in divmod(row, self.num_samples))
        raise DataError(
            f"The logits of prompt {prompt}, sample {sample} are not finite (the largest is "
            f"{best[row].item()}), so no token can be chosen. A tap that returns NaN or inf does "
            "that, and so do float16 weights whose values overflow: look at the tap, or load the "
            "model in float32 or bfloat16."
        )


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Return the logits with all but the k highest of each row, and their ties, at -inf.

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2)
    tensor([[-inf, 3., 2.]])
    """
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Return the logits with all outside of the nucleus at -inf.

    The nucleus are the fewest most probable tokens whose probabilities sum to p or more.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.

    >>> keep_top_p(torch.tensor([[0.5, 0.2, 0.3]]).log(), 0.6).exp()
    tensor([[0.5000, 0.0000, 0.3000]])
    """
    ordered, order = logits.softmax(-1).sort(descending=True, stable=True)
    outside = ordered.cumsum(-1) - ordered >= p  # what stands before it is enough
    return logits.masked_fill(outside.scatter(1, order, outside), -torch.inf)


def _check_whole(name: str, value: object, least: int, most: float = math.inf) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        allowed = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
        raise ConfigError(f"{name} must be a whole number {allowed}, not {value!r}.")
