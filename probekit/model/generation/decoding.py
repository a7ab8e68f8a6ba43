"""Choice of the next token: greedy, temperature, top-k and nucleus sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.model.config import ModelConfig, is_number

# NumPy splits larger entries of a seed into 32-bit words, so that different seeds could collide.
MAX_SEED = 2**32 - 1

# Stopping criterion: the new ids of one row -> whether the row ends.
Stop = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class Decoding:
    """Decoding parameters.

    Attributes:
        max_new_tokens: maximum number of new tokens of each prompt.
        temperature: 0 is greedy decoding, 1 samples from the model's distribution; lower values
            sharpen it, higher values flatten it.
        top_k: sample from the k most probable tokens only, and from those tied with the last.
        top_p: sample from the smallest set of most probable tokens whose probabilities, after
            temperature and top_k, sum to at least p.
        num_samples: number of continuations of each prompt.
        seed: random seed for sampling, below 2^32. Samples depend only on it, on the tokens of the
            prompt and on the index of the sample, not on the rest of the batch.
        stop: stopping criterion: receives the new ids of a row, returns whether the row ends.
        slide: when the context is full, drop the earliest tokens instead of raising an error. Each
            new token then needs a full forward pass, because all positions shift.

    Raises:
        ConfigError: a value is out of range.
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
        _check_integer("max_new_tokens", self.max_new_tokens, minimum=1)
        _check_integer("num_samples", self.num_samples, minimum=1)
        _check_integer("seed", self.seed, minimum=0, maximum=MAX_SEED)
        if self.top_k is not None:
            _check_integer("top_k", self.top_k, minimum=1)
        if not is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ConfigError(
                f"temperature must be at least 0 (greedy decoding), not {self.temperature!r}."
            )
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(f"top_p must be above 0 and at most 1, not {self.top_p!r}.")

    def check_length(self, config: ModelConfig, n_prompt: int) -> None:
        """Raise DataError if `n_prompt` prompt tokens and the new ones exceed the context.

        Raises:
            DataError: there are more tokens than the context, and `slide` is false.
        """
        if self.slide or n_prompt + self.max_new_tokens - 1 <= config.n_ctx:
            return
        room = config.n_ctx - n_prompt + 1
        remedy = f"request at most {room} new ones" if room > 0 else "shorten the prompt"
        raise DataError(
            f"{n_prompt} prompt tokens and {self.max_new_tokens} new ones do not fit the context "
            f"of {config.n_ctx}: {remedy}, or set slide, which drops the earliest tokens."
        )

    def generators(self, prompts: Sequence[Sequence[int]]) -> list[np.random.Generator]:
        """Return the random generator of each row; none for greedy decoding.

        The samples of a prompt are consecutive rows.

        >>> len(Decoding(1, temperature=1, num_samples=2).generators([[5, 6], [7]]))
        4
        """
        if self.temperature == 0:
            return []
        # NumPy pads short seeds with zeros: without the length, [5] and [5, 0] would be equal.
        return [
            np.random.default_rng([self.seed, sample, len(prompt), *prompt])
            for prompt in prompts
            for sample in range(self.num_samples)
        ]

    def choose(self, logits: Tensor, draws: Tensor) -> Tensor:
        """Return the next token of each row, shape [batch].

        Args:
            logits: shape [batch d_vocab].
            draws: uniform in [0, 1), shape [batch]; unused if temperature is 0.

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
        # Relative to the maximum, so that a small temperature gives -inf rather than NaN.
        scaled = (logits - best).double() / self.temperature
        if self.top_k is not None:
            scaled = keep_top_k(scaled, self.top_k)
        if self.top_p is not None:
            scaled = keep_top_p(scaled, self.top_p)
        sums = scaled.softmax(-1).cumsum(-1)
        # The first token whose cumulative sum exceeds the draw; never one of probability 0.
        return torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True)[:, 0]

    def _check_finite(self, best: Tensor) -> None:
        # The maximum of a row with a NaN is NaN, that of a row of -inf is -inf.
        if bool(best.isfinite().all()):
            return
        row = int((~best.isfinite()).nonzero()[0])
        prompt, sample = (number + 1 for number in divmod(row, self.num_samples))
        raise DataError(
            f"The logits of prompt {prompt}, sample {sample} are not finite (the largest is "
            f"{best[row].item()}), so no token can be chosen. Either a tap returns NaN or inf, or "
            "float16 overflows: check the tap, or load the model in float32 or bfloat16."
        )


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k highest logits of each row, and any equal to the last of them; -inf elsewhere.

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2)
    tensor([[-inf, 3., 2.]])
    """
    threshold = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < threshold, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the logits of the nucleus of each row; -inf elsewhere.

    The nucleus is the smallest set of most probable tokens whose probabilities sum to at least p.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.

    >>> keep_top_p(torch.tensor([[0.5, 0.2, 0.3]]).log(), 0.6).exp()
    tensor([[0.5000, 0.0000, 0.3000]])
    """
    ordered, order = logits.softmax(-1).sort(descending=True, stable=True)
    outside = ordered.cumsum(-1) - ordered >= p  # the more probable tokens reach p
    return logits.masked_fill(outside.scatter(1, order, outside), -torch.inf)


def _check_integer(name: str, value: object, minimum: int, maximum: float = math.inf) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        allowed = (
            f"of at least {minimum}" if maximum == math.inf else f"from {minimum} to {maximum}"
        )
        raise ConfigError(f"{name} must be an integer {allowed}, not {value!r}.")
