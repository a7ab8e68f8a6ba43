"""Parameter counts of a GPT-2, computed from its config without creating tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from probekit.model.config import GPT2Config


@dataclass(frozen=True)
class Component:
    """A module with parameters: a weight and, if the config has it, a bias.

    Attributes:
        name: name shown to users.
        module: name in a state dict, with `{l}` for the index of the block.
        axes: axes of the weight, from input to output; the bias has the last one.
        bias: field of the config that turns the bias on; empty if there is never one.
    """

    name: str
    module: str
    axes: tuple[str, ...]
    bias: str = ""

    @property
    def in_block(self) -> bool:
        """Whether every block has such a module."""
        return "{l}" in self.module

    def tensors(self, config: GPT2Config) -> dict[str, tuple[str, ...]]:
        """Return the axes of each tensor, by name."""
        if self.module == "lm_head" and config.tie_word_embeddings:
            return {}
        tensors = {f"{self.module}.weight": self.axes}
        if self.bias and getattr(config, self.bias):
            tensors[f"{self.module}.bias"] = self.axes[-1:]
        return tensors


# In the order of the forward pass.
COMPONENTS = (
    Component("token embedding", "wte", ("d_vocab", "d_model")),
    Component("position embedding", "wpe", ("n_ctx", "d_model")),
    Component("ln_1", "h.{l}.ln_1", ("d_model",), "bias"),
    Component("attn.c_attn", "h.{l}.attn.c_attn", ("d_model", "3 d_model"), "has_qkv_bias"),
    Component("attn.c_proj", "h.{l}.attn.c_proj", ("d_model", "d_model"), "bias"),
    Component("ln_2", "h.{l}.ln_2", ("d_model",), "bias"),
    Component("mlp.c_fc", "h.{l}.mlp.c_fc", ("d_model", "d_mlp"), "bias"),
    Component("mlp.c_proj", "h.{l}.mlp.c_proj", ("d_mlp", "d_model"), "bias"),
    Component("final norm", "ln_f", ("d_model",), "bias"),
    Component("unembedding", "lm_head", ("d_vocab", "d_model")),
)

# Commonly quoted sums: name, formula in words, and prefix of the modules that are summed.
_SUMS = (
    ("attention", "c_attn + c_proj", "h.{l}.attn."),
    ("MLP", "c_fc + c_proj", "h.{l}.mlp."),
    ("block", "ln_1 + attention + ln_2 + MLP", "h.{l}."),
)


@dataclass(frozen=True)
class ParameterCount:
    """Number of parameters of one component, or of a sum of several.

    Attributes:
        name: name of the component.
        formula: how `number` is computed.
        number: number of parameters in one instance.
        times: number of instances in the model.
    """

    name: str
    formula: str
    number: int
    times: int = 1

    @property
    def total(self) -> int:
        """Number of parameters of all instances."""
        return self.number * self.times

    def megabytes(self, bytes_each: int) -> float:
        """Return the size of all instances in units of 2^20 bytes."""
        return self.total * bytes_each / 2**20


def count_components(config: GPT2Config) -> tuple[ParameterCount, ...]:
    """Return the parameter count of every component; the totals sum to that of the model.

    >>> count_components(GPT2Config())[3]
    ParameterCount(name='attn.c_attn', formula='d_model x 3 d_model + 3 d_model', number=1771776,
                   times=12)
    """
    return tuple(_count(component, config) for component in COMPONENTS)


def count_sums(config: GPT2Config) -> tuple[ParameterCount, ...]:
    """Return commonly quoted parameter counts: attention, MLP, a block, the whole model.

    >>> [(count.name, count.number) for count in count_sums(GPT2Config())]
    [('attention', 2362368), ('MLP', 4722432), ('block', 7087872), ('total', 124439808)]
    """
    counts = dict(zip(COMPONENTS, count_components(config), strict=True))
    sums = []
    for name, formula, prefix in _SUMS:
        number = sum(n.number for part, n in counts.items() if part.module.startswith(prefix))
        sums.append(ParameterCount(name, formula, number, config.n_layer))
    total = count_parameters(config)
    return (*sums, ParameterCount("total", "n_layers x block + the others", total))


def count_parameters(config: GPT2Config) -> int:
    """Return the total number of parameters of a model.

    >>> f"{count_parameters(GPT2Config()):,}"
    '124,439,808'
    """
    return sum(count.total for count in count_components(config))


def _count(component: Component, config: GPT2Config) -> ParameterCount:
    tensors = component.tensors(config).values()
    return ParameterCount(
        component.name,
        " + ".join(" x ".join(axes) for axes in tensors) or "tied: the token embedding",
        sum(_product(axes, config) for axes in tensors),
        config.n_layer if component.in_block else 1,
    )


def _product(axes: Sequence[str], config: GPT2Config) -> int:
    sizes = config.axis_sizes | {"3 d_model": 3 * config.n_embd}  # query, key and value
    return math.prod(sizes[axis] for axis in axes)
