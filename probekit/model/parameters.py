"""Parameter counts of a network, computed from its config without creating tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from probekit.model.config import Component, ModelConfig


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


def count_components(config: ModelConfig) -> tuple[ParameterCount, ...]:
    """Return the parameter count of every component; the totals sum to that of the model.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> count_components(GPT2Config())[3]
    ParameterCount(name='attn.c_attn', formula='d_model x 3 d_model + 3 d_model', number=1771776,
                   times=12)
    """
    return tuple(_count(component, config) for component in config.components)


def count_sums(config: ModelConfig) -> tuple[ParameterCount, ...]:
    """Return commonly quoted parameter counts: attention, MLP, a block, the whole model.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> [(count.name, count.number) for count in count_sums(GPT2Config())]
    [('attention', 2362368), ('MLP', 4722432), ('block', 7087872), ('total', 124439808)]
    """
    in_block = [component for component in config.components if component.in_block]
    parts = dict.fromkeys(component.part for component in in_block if component.part)
    sums = [_sum(name, [one for one in in_block if one.part == name], config) for name in parts]
    outer = dict.fromkeys(component.part or component.name for component in in_block)
    block = _sum("block", in_block, config, " + ".join(outer))
    total = count_parameters(config)
    return (*sums, block, ParameterCount("total", "n_layers x block + the others", total))


def _sum(
    name: str, components: Sequence[Component], config: ModelConfig, formula: str = ""
) -> ParameterCount:
    names = (component.name.rpartition(".")[2] for component in components)
    number = sum(_count(component, config).number for component in components)
    return ParameterCount(name, formula or " + ".join(names), number, config.n_layers)


def count_parameters(config: ModelConfig) -> int:
    """Return the total number of parameters of a model.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> f"{count_parameters(GPT2Config()):,}"
    '124,439,808'
    """
    return sum(count.total for count in count_components(config))


def _count(component: Component, config: ModelConfig) -> ParameterCount:
    tensors = component.tensors(config).values()
    return ParameterCount(
        component.name,
        " + ".join(" x ".join(axes) for axes in tensors) or "tied: the token embedding",
        sum(math.prod(_size(axis, config) for axis in axes) for axes in tensors),
        config.n_layers if component.in_block else 1,
    )


def _size(axis: str, config: ModelConfig) -> int:
    """Return the size of an axis, which may be a product such as `3 d_model`."""
    sizes = config.axis_sizes
    return math.prod(
        int(factor) if factor.isdecimal() else sizes[factor] for factor in axis.split()
    )
