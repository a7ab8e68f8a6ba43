"""The additions in a block: its output is its input plus the outputs of modules inside it.

They are found by their values: a sum counts if it equals a recorded tensor bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import torch
from torch import Tensor

from probekit.model.proven.doors import Event, Keys, Trace, close_sum, same

Factors = Mapping[str, float | Tensor]  # by name: numbers, and vectors of shape (d_model,)

# How a parallel block adds two terms to its input; floating-point sums depend on the order.
ORDERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "(pre + a) + m": lambda pre, a, m: (pre + a) + m,
    "pre + (a + m)": lambda pre, a, m: pre + (a + m),
    "(pre + m) + a": lambda pre, a, m: (pre + m) + a,
}
MOST_ADDITIONS = 4  # in a block
N_COMPARED_FIRST = 48  # coordinates; whole tensors are compared only if these agree


def times(x: Tensor, factor: float | Tensor) -> Tensor:
    """Return a product; a factor of exactly 1 returns `x` itself."""
    return x if isinstance(factor, float) and factor == 1 else x * factor


@dataclass
class Place:
    """An output of a module; `scale` times it is added to the stream."""

    module: str
    path: Keys
    scale: str = "1"


@dataclass
class Step:
    """One addition: the stream becomes outer * (keep * stream + scale * sum of the places).

    Factors are named, see `ProvenModel.factors`.

    Attributes:
        places: the outputs of modules that are added, one or two.
        scale: factor of their sum.
        keep: factor of the stream before.
        outer: factor of the stream after.
        role: attn, mixer or mlp; empty if the addition has no site.
    """

    places: list[Place]
    scale: str = "1"
    keep: str = "1"
    outer: str = "1"
    role: str = ""

    def added(self, values: Sequence[Tensor], factors: Factors) -> Tensor:
        """Return the summand, computed in the order of the model's own operations."""
        first, *others = (
            times(v, factors[p.scale]) for v, p in zip(values, self.places, strict=True)
        )
        return times(sum(others, first), factors[self.scale])

    def after(self, x: Tensor, values: Sequence[Tensor], factors: Factors) -> Tensor:
        """Return the stream after the addition."""
        total = times(x, factors[self.keep]) + self.added(values, factors)
        return times(total, factors[self.outer])


@dataclass
class Layer:
    """The additions of one block.

    Attributes:
        steps: the additions, in their order.
        seen: module, kind and path at which the stream between two additions was recorded.
        parallel: key of `ORDERS` if both terms read the input of the block.
        reason: why there are none.
    """

    steps: list[Step] = field(default_factory=list)
    seen: list[tuple[str, str, Keys]] = field(default_factory=list)
    parallel: str = ""
    reason: str = ""

    def fault(
        self,
        streams: Sequence[Tensor],
        values: Sequence[Sequence[Tensor]],
        factors: Factors,
        *,
        exact: bool,
    ) -> str:
        """Return which addition does not hold in a pass; empty if all do.

        Args:
            streams: input of the block, the recorded streams between its additions (or none of
                them), and its output.
            values: outputs of the places of each addition.
            factors: the factors by their names.
            exact: whether sums must be equal bit by bit, not only up to rounding.
        """
        x, post = streams[0], streams[-1]
        if self.parallel:
            a, m = (step.added(v, factors) for step, v in zip(self.steps, values, strict=True))
            holds = _holds(ORDERS[self.parallel](x, a, m), post, [x, a, m], exact)
            return "" if holds else "the sum of its parallel parts"
        terms = [x]
        for number, (step, parts) in enumerate(zip(self.steps, values, strict=True), 1):
            total, terms = step.after(x, parts, factors), [*terms, *parts]
            is_last = number == len(self.steps)
            if not is_last and len(streams) == 2:  # the next one starts from the computed stream
                x = total
                continue
            x = post if is_last else streams[number]
            if not _holds(total, x, terms, exact):
                return f"addition {number}"
            terms = [x]
        return ""


def _holds(total: Tensor, y: Tensor, terms: Sequence[Tensor], exact: bool) -> bool:
    return same(total.to(y.dtype), y) or (not exact and close_sum(total, y, terms))


def find_additions(trace: Trace, name: str, pre: Tensor, post: Tensor, factors: Factors) -> Layer:
    """Return the additions of a block, or the reason why there are none.

    First additions of one term are searched, then a parallel block, then additions of two terms: a
    sum of two terms can hide a parallel block.

    Args:
        trace: a pass with all tensors of the stream's width inside the block.
        name: name of the block.
        pre: its input, shape (n, d_model).
        post: its output, likewise.
        factors: factors that may occur in a sum.
    """
    d_model = pre.shape[-1]
    new = [
        replace(event, value=event.value.reshape(-1, d_model))
        for event in trace.events
        if event.module.startswith(f"{name}.") and trace.calls[event.module] == 1
    ]
    new = [event for event in new if not same(event.value, pre)]
    terms = [e for e in new if e.kind == "out" and not same(e.value, post) and e.value.any()]
    search = _Search(terms, factors, pre)
    span = (trace.spans[name][0], trace.spans[name][1] + 1)
    layer = search.sequential(new, pre, post, span, 1)
    if not layer.steps:
        layer = search.parallel(pre, post) or search.sequential(new, pre, post, span, 2)
    return layer


class _Search:
    """Search for sums among the outputs of the modules of one block."""

    def __init__(self, terms: list[Event], factors: Factors, like: Tensor) -> None:
        generator = torch.Generator().manual_seed(0)
        few = torch.randperm(like.numel(), generator=generator)[:N_COMPARED_FIRST]
        self.terms, self.few = terms, few.to(like.device)
        self.factors = {
            name: value if isinstance(value, float) else value.to(like.device).reshape(-1)
            for name, value in factors.items()
        }
        column = self.few % like.shape[-1]
        self.at_few = {
            name: value if isinstance(value, float) or value.numel() == 1 else value[column]
            for name, value in self.factors.items()
        }
        names = list(self.factors)
        own = [name for name in names if name == "1" or name.startswith("block.")]
        scalars = [
            name
            for name in own
            if isinstance(value := self.factors[name], float) or value.numel() == 1
        ]
        self.around = [(keep, outer) for keep in own for outer in scalars]
        # Factors of the sum and of its terms, by the number of terms.
        of_one: list[tuple[str, ...]] = [(name, "1") for name in names]
        of_two: list[tuple[str, ...]] = [(name, "1", "1") for name in names]
        of_two += [("1", a, b) for a in names for b in names]
        self.scales = {1: of_one, 2: of_two}

    def small(self, x: Tensor) -> Tensor:
        """Return the coordinates that are compared first."""
        return x.reshape(-1)[self.few]

    def steps(self, events: Sequence[Event]) -> Iterator[Step]:
        """Yield every addition of the outputs of these events."""
        for scale, *parts in self.scales[len(events)]:
            for keep, outer in self.around:
                places = [
                    Place(e.module, e.path, part) for e, part in zip(events, parts, strict=True)
                ]
                yield Step(places, scale, keep, outer)

    def step(self, x: Tensor, y: Tensor, after: int, until: int, n_terms: int) -> Step | None:
        """Return the addition of `n_terms` terms that makes `y` from `x`, if there is one.

        Args:
            x: the stream before, shape (n, d_model).
            y: the stream after, likewise.
            after: the terms are outputs after this event.
            until: the last event that may be a term.
            n_terms: number of terms.
        """
        # If most coordinates are equal, rounding hides the term: any small tensor would fit.
        if float((x != y).float().mean()) < 0.5:
            return None
        few_x, few_y = self.small(x), self.small(y)
        usable = [e for e in self.terms if after < e.order <= until]
        for chosen in combinations(usable[::-1], n_terms):  # the outermost module first
            events = chosen[::-1]
            few_values = [self.small(e.value) for e in events]
            for step in self.steps(events):
                if _equal(step.after(few_x, few_values, self.at_few), few_y) and _equal(
                    step.after(x, [e.value for e in events], self.factors), y
                ):
                    return step
        return None

    def sequential(
        self, new: list[Event], pre: Tensor, post: Tensor, span: tuple[int, int], most: int
    ) -> Layer:
        """Return the additions on the way from the input to the output of the block.

        Args:
            new: recorded tensors; any may be the stream between two additions.
            pre: the input, shape (n, d_model).
            post: the output, likewise.
            span: order of the first and the last event of the block.
            most: number of terms of an addition at most.
        """
        layer, x, (start, end) = Layer(), pre, span
        while len(layer.steps) < MOST_ADDITIONS:
            later = [e for e in new if e.order > start and not same(e.value, x)]
            goals = [*later, Event(end, "", "in", (), post)]
            found = self.next_step(x, goals, start, most)
            if found is None:
                break
            step, goal = found
            layer.steps.append(step)
            if same(goal.value, post):
                return layer
            layer.seen.append((goal.module, goal.kind, goal.path))
            x, start = goal.value, goal.order if goal.kind == "in" else goal.order - 1
        n = len(layer.steps)
        after = f"after {n} addition(s), the rest of the block is not a sum of outputs of modules"
        none = "the output is not the input plus outputs of modules"
        return Layer(reason=after if n else none)

    def next_step(
        self, x: Tensor, goals: list[Event], start: int, most: int
    ) -> tuple[Step, Event] | None:
        """Return the next addition to the stream, and the event at which its sum was recorded."""
        for n_terms in range(1, most + 1):
            tried: list[Tensor] = []
            for goal in goals:
                if any(same(goal.value, one) for one in tried):
                    continue
                if n_terms == 2 and goal.kind == "out":
                    continue
                tried.append(goal.value)
                step = self.step(x, goal.value, start, goal.order, n_terms)
                if step is not None:
                    return step, goal
        return None

    def parallel(self, pre: Tensor, post: Tensor) -> Layer | None:
        """Return the two additions of a parallel block, if it is one."""
        few_pre, few_post, last_first = self.small(pre), self.small(post), self.terms[::-1]
        for m, a in combinations(last_first, 2):
            for label, order in ORDERS.items():
                if torch.equal(
                    order(few_pre, self.small(a.value), self.small(m.value)), few_post
                ) and torch.equal(order(pre, a.value, m.value), post):
                    steps = [Step([Place(e.module, e.path)]) for e in (a, m)]
                    return Layer(steps, parallel=label)
        return None


def _equal(total: Tensor, y: Tensor) -> bool:
    """Return whether a sum equals a tensor bit by bit, also after rounding to its dtype."""
    return torch.equal(total, y) or torch.equal(total.to(y.dtype), y)
