"""Passes of a loaded model of transformers that read and change named activations."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from probekit.model.passes.taps import ForwardStoppedError, Tap
from probekit.model.proven.additions import Factors, Layer, Step, times
from probekit.model.proven.doors import (
    Keys,
    NotProvenError,
    Pair,
    Trace,
    attention_through,
    evaluating,
    get_at,
    input_at,
    output_logits,
    put_at,
    put_input,
    record,
    same,
)

LENGTHS = (11, 5, 23, 9)  # tokens of the texts of the proof
STREAMS = ("hook_resid_pre", "hook_resid_post")
SITE_OF = {"attn": "hook_attn_out", "mixer": "hook_mixer_out", "mlp": "hook_mlp_out"}
HEAD_SITES = ("hook_rot_q", "hook_rot_k", "hook_v", "hook_pattern", "hook_z")
# The output of a block is read at the block, and inputs of modules at these modules.
_WITHOUT_INPUT = {"hook_resid_post", "mlp.hook_post", *(f"attn.{site}" for site in HEAD_SITES)}

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments of a module
Hooks = Iterator[Any]  # handles of registered hooks
# Words in the names of numbers of a config that may scale or cap, and beginnings of names of
# those that may scale what is added to the stream.
_SCALING = ("scal", "mult", "cap", "alpha", "beta")
_OF_RESIDUALS = ("resid", "scale_depth", "attention_out_m", "ssm_out_m", "mup")
# Sites whose values in a step of a generation also cover the positions before.
_OF_ALL_POSITIONS = ("attn.hook_rot_k", "attn.hook_v", "attn.hook_pattern")


class ProvenModel:
    """A loaded model of transformers, and the names of its activations that are proven.

    `prove` makes one. Nothing is known of any architecture: blocks, norms and sublayers are found
    by tensors that are equal bit by bit, and the names of modules are never read.

    Attributes:
        model: the model; if `torch.compile` or `DataParallel` wrapped it, the one inside.
        modules: its modules by name.
        config: the config of its text network.
        implementation: its implementation of attention, such as eager or sdpa.
        sites: name of each proven site -> its name inside a block, such as attn.hook_z.
        refused: feature or site -> why it is not proven.
        facts: results of tests: errors, and parts of the model.
        layers: the additions of each block.
        attention: number of a block -> name of the module that calls the attention function.
        linears: (number of a block, "z" or "post") -> name of the output map of heads or neurons.
        direct: keys of `linears` whose output is the summand, without a norm in between.
        limits: limit of the effect of rounding, by site.
        pad_positions: sides of padding that are proven -> whether they need `position_ids`.
        n_layers: number of blocks.
        d_model: width of the residual stream.
        n_vocab: number of logits of a position, once the unembedding is found.
        alone: arguments of each block in a pass over the first text, if the blocks, called alone,
            give the same streams bit by bit; else None.
    """

    def __init__(self, model: nn.Module) -> None:
        for wrapped in ("module", "_orig_mod") * 2:
            inner = getattr(model, wrapped, model)
            model = inner if isinstance(inner, nn.Module) else model
        self.model: Any = model
        self.modules: dict[str, Any] = dict(model.named_modules())
        self.config: Any = _text_config(self.model.config)
        self.implementation = getattr(self.config, "_attn_implementation", None) or "eager"
        self.sites: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self.layers: list[Layer] = []
        self.attention: dict[int, str] = {}
        self.linears: dict[tuple[int, str], str] = {}
        self.direct: set[tuple[int, str]] = set()
        self.limits: dict[str, float] = {}
        self.pad_positions: dict[str, bool] = {}
        self.alone: list[Call] | None = None
        self.doors: set[str] = set()  # modules that `inside` records; empty for all
        # What the search finds: the list of blocks, the paths of the stream in their arguments and
        # outputs, and the way from the last stream to the logits.
        self.list_name = ""
        self.in_path: Keys = ()
        self.out_path: Keys = ()
        self.n_layers = self.d_model = self.n_vocab = 0
        self.norm: str | None = None
        self.norm_path: Keys = ()
        self.head = ""
        self.before_head = self.after_head = ("", 1.0, 0.0)  # description, factor, soft cap
        parameters = inspect.signature(self.model.forward).parameters.values()
        names = {parameter.name for parameter in parameters}
        has_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
        self.takes = {"use_cache", "position_ids"} if has_any else names

    # ------------------------------------------------------------------ passes
    def call(self, ids: Tensor | None, mask: Tensor | None = None) -> Any:
        """Return the output of the model for token ids and a mask, shape (batch, pos).

        Raises:
            NotProvenError: the mask has padding on a side for which it is not proven.
        """
        given: dict[str, Any] = {"input_ids": ids}
        if "use_cache" in self.takes:
            given["use_cache"] = False
        if mask is not None:
            given["attention_mask"] = mask.long()
            side = "right" if bool(mask[:, 0].all()) else "left"
            if not mask.all():
                self.require(f"padding on the {side}")
            if self.pad_positions.get(side):
                given["position_ids"] = (mask.long().cumsum(1) - 1).clamp_min(0)
        return self.model(**given)

    def require(self, feature: str) -> None:
        """Raise NotProvenError if a feature, such as generation, is refused."""
        if feature in self.refused:
            raise NotProvenError(f"{feature} is not proven: {self.refused[feature]}")

    def texts(self) -> list[Tensor]:
        """Return the random token ids of the proof, each of shape (1, pos)."""
        weight = getattr(self.model.get_input_embeddings(), "weight", None)
        n = 100 if weight is None else weight.shape[0]
        low = 20 if n > 60 else 1  # the first ids are often special
        n = min(n, getattr(self.config, "vocab_size", n) or n)
        generator = torch.Generator().manual_seed(0)
        texts = [torch.randint(low, n - 1, (1, k), generator=generator) for k in LENGTHS]
        return [ids.to(self.device) for ids in texts]

    @property
    def device(self) -> torch.device:
        """The device of the first weight."""
        return next((one.device for one in self.model.parameters()), torch.device("cpu"))

    def block(self, layer: int) -> str:
        """Return the name of a block."""
        return f"{self.list_name}.{layer}"

    def layer_of(self, module: str) -> int:
        """Return the number of the block that a module is in."""
        return int(module.removeprefix(f"{self.list_name}.").partition(".")[0])

    def stream(self, trace: Trace, layer: int) -> tuple[Tensor, Tensor]:
        """Return the input and the output of a block in a recorded pass."""
        name = self.block(layer)
        return trace.at(name, "in", self.in_path), trace.at(name, "out", self.out_path)

    def inside(
        self,
        ids: Tensor,
        hooks: Callable[[], Hooks] = lambda: iter(()),
        call: Callable[[], Any] | None = None,
        block: str = "",
    ) -> Trace:
        """Return the tensors of the stream's width inside the blocks, in a pass or a call.

        These are all tensors until the additions are found, then those of the additions.

        Args:
            ids: token ids, shape (1, pos).
            hooks: registers hooks before those that record.
            call: replaces the pass over the ids.
            block: only this block is recorded.
        """
        prefix, size = f"{self.list_name}.", ids.numel() * self.d_model

        def keep(name: str, tensor: Tensor) -> bool:
            has_width = tensor.numel() == size and tensor.shape[-1] == self.d_model
            return has_width and (name in self.doors if self.doors else name.startswith(prefix))

        with ExitStack() as stack:
            for handle in hooks():
                stack.callback(handle.remove)
            return record(self.model, call or (lambda: self.call(ids)), keep, block)

    def one_block(self, layer: int, resid: Tensor, calls: Sequence[Call]) -> Tensor:
        """Return the output of a block for another stream, called alone with recorded arguments."""
        args, kwargs = put_input(*calls[layer], self.in_path, resid.clone())
        out: Tensor = get_at(self.modules[self.block(layer)](*args, **kwargs), self.out_path)
        return out

    def recorded_calls(self, ids: Tensor) -> list[Call]:
        """Return the arguments of every block in a pass, for `one_block`."""
        calls: list[Call] = []
        with ExitStack() as stack:
            stack.enter_context(evaluating(self.model))
            for layer in range(self.n_layers):
                block = self.modules[self.block(layer)]
                handle = block.register_forward_pre_hook(
                    lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
                )
                stack.callback(handle.remove)
            self.call(ids)
        return calls

    def unembed(self, resid: Tensor) -> Tensor:
        """Return the logits of a stream after the last block, shape (..., d_vocab).

        Raises:
            NotProvenError: the logits are not the unembedding of the last stream.
        """
        self.require("lens")
        return softcapped(self.uncapped_logits(self.normed(resid)), self.after_head[2])

    def normed(self, resid: Tensor) -> Tensor:
        """Return the input of the unembedding for a stream after the last block."""
        weight = getattr(self.modules[self.head], "weight", resid)
        x = resid.to(weight.device)
        if self.norm:
            with evaluating(self.modules[self.norm]):
                x = self.modules[self.norm](x)
        return softcapped(times(x, self.before_head[1]), self.before_head[2])

    def uncapped_logits(self, x: Tensor) -> Tensor:
        """Return the logits before their softcap for inputs of the unembedding."""
        head = self.modules[self.head]
        with evaluating(head):
            out: Tensor = head(x.to(getattr(head, "weight", x).dtype))
        return times(out[..., : self.n_vocab], self.after_head[1])

    # ------------------------------------------------------------------ factors of sums
    @cached_property
    def numbers(self) -> dict[str, float]:
        """Numbers of the config that may scale or cap, and the quotients in which they occur."""
        found: dict[str, float] = {}
        for key, value in vars(self.config).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and value > 0 and any(word in key for word in _SCALING):
                found[key], found[f"1 / {key}"] = float(value), 1 / value
                found[f"{key} / sqrt(n_layers)"] = value / math.sqrt(self.n_layers)
        base, size = (getattr(self.config, k, None) for k in ("dim_model_base", "hidden_size"))
        return found | ({"dim_model_base / hidden_size": base / size} if base and size else {})

    def factors(self, layer: int) -> Factors:
        """Return the factors that may occur in the additions of a block.

        These are 1, numbers of the config, and the block's own scalars and vectors.
        """
        block = self.modules[self.block(layer)]
        found: dict[str, float | Tensor] = {"1": 1.0}
        found |= {k: v for k, v in self.numbers.items() if v != 1 and k.startswith(_OF_RESIDUALS)}
        for name, one in (
            *block.named_parameters(recurse=False),
            *block.named_buffers(recurse=False),
        ):
            if one.is_floating_point() and one.numel() in (1, self.d_model):
                found[f"block.{name}"] = one.detach()
        return found

    def summand(self, trace: Trace, layer: int, step: Step) -> Tensor:
        """Return the summand of an addition in a recorded pass, shape (n, d_model)."""
        return step.added(self.outputs(trace, step), self.factors(layer))

    def outputs(self, trace: Trace, step: Step) -> list[Tensor]:
        """Return the outputs that an addition reads in a recorded pass, shape (n, d_model)."""
        found = (trace.at(place.module, "out", place.path) for place in step.places)
        return [one.reshape(-1, self.d_model) for one in found]

    def broken_sum(self, trace: Trace, number: int, *, exact: bool = False) -> str:
        """Return which addition of a block does not hold in a recorded pass; empty if all do."""
        layer = self.layers[number]
        if not layer.steps:
            return ""
        pre, post = self.stream(trace, number)
        between = (trace.at(*door) for door in layer.seen)
        streams = [one.reshape(-1, self.d_model) for one in (pre, *between, post)]
        values = [self.outputs(trace, step) for step in layer.steps]
        fault = layer.fault(streams, values, self.factors(number), exact=exact)
        return fault and f"{fault} of block {number} does not hold"

    # ------------------------------------------------------------------ taps
    def run(
        self,
        ids: Tensor | None,
        mask: Tensor | None = None,
        sites: Iterable[str] = (),
        tap: Tap | None = None,
        *,
        grad: bool = False,
        logits: bool = True,
        via: Callable[[], Any] | None = None,
        check: bool = False,
        keep: bool = True,
    ) -> tuple[Any, dict[str, Tensor]]:
        """Return the logits of a pass, shape (batch, pos, d_vocab), and the values at sites.

        Args:
            ids: token ids, shape (batch, pos).
            mask: False or 0 at padding; None if there is none.
            sites: names of proven sites.
            tap: returns the value to continue with at each of these sites.
            grad: whether to compute with gradients; values are then not detached.
            logits: whether the logits are needed; else the pass stops after the last site, and
                they are None.
            via: replaces the pass over the ids, such as a generation. Its result is returned in
                place of the logits, and the values of its steps are joined along the positions.
            check: whether to compare, in every block, the input with the output of the block
                before and the proven additions with the output, bit by bit. Values are compared
                as the model computes them: a write changes both sides.
            keep: whether the values are returned; else they are empty, which saves memory.

        Raises:
            NotProvenError: a site or feature is not proven, or a check fails.
        """
        todo = set(sites)
        cache: dict[str, Tensor] = {}
        if unknown := sorted(todo - set(self.sites)):
            raise NotProvenError(f"{unknown[0]} is not proven")
        if grad:
            self.require("gradients")
        if via:
            self.require("generation")
        if via and (whole := [site for site in todo if site.endswith(_OF_ALL_POSITIONS)]):
            raise NotProvenError(f"{whole[0]} is not proven in a generation")

        def is_done() -> bool:
            return not logits and len(cache) == len(todo)

        def visit(name: str, value: Tensor) -> Tensor:
            if name not in todo:
                return value
            new = tap(name, value) if tap else value
            if keep:
                kept = new if grad else new.detach().clone()
                # Each step of a generation visits a site once.
                cache[name] = torch.cat([cache[name], kept], 1) if name in cache else kept
            else:
                cache[name] = new.new_empty(0)
            if is_done() and not check:
                raise ForwardStoppedError
            # A model may add in place to what it is given.
            return new.clone() if grad or new is not value else value

        checks = _Checks(self, is_done) if check else None
        out = None
        with ExitStack() as stack, torch.set_grad_enabled(grad):
            stack.enter_context(evaluating(self.model))
            if any(".attn." in site for site in todo):
                stack.enter_context(attention_through(self.implementation, self.attend(visit)))
            # One after the other, so that none is left if the next one fails.
            for handle in chain(
                checks.before_taps() if checks else (),
                self.hooks(todo, visit),
                checks.after_taps() if checks else (),
            ):
                stack.callback(handle.remove)
            with suppress(ForwardStoppedError):
                out = via() if via else output_logits(self.call(ids, mask))
        if checks and checks.fault:
            raise NotProvenError(checks.fault)
        if lacking := sorted(todo - cache.keys()):
            raise NotProvenError(f"the pass did not reach {lacking[0]}")
        return out, cache

    def hooks(self, todo: Collection[str], visit: Tap) -> Hooks:
        """Register the hooks of the requested sites outside attention, and yield their handles."""
        for number in range(self.n_layers):
            at = f"blocks.{number}."
            wanted = {site.removeprefix(at) for site in todo if site.startswith(at)}
            if not wanted:
                continue
            block = self.modules[self.block(number)]
            state: dict[str, Tensor] = {}  # the stream before the block
            if wanted - _WITHOUT_INPUT:
                before = _at_input(f"{at}hook_resid_pre", self.in_path, state, visit)
                yield block.register_forward_pre_hook(before, with_kwargs=True)
            for step in self.layers[number].steps if self.layers else ():
                mid = "hook_resid_mid" in wanted and step is self.layers[number].steps[0]
                if mid or SITE_OF.get(step.role) in wanted:
                    yield from self._at_terms(number, step, state, visit, mid=mid)
            if "mlp.hook_post" in wanted:
                linear = self.modules[self.linears[number, "post"]]
                before = _at_input(f"{at}mlp.hook_post", (0,), {}, visit)
                yield linear.register_forward_pre_hook(before, with_kwargs=True)
            if "hook_resid_post" in wanted:
                yield block.register_forward_hook(self._at_output(at, visit))

    def _at_output(self, at: str, visit: Tap) -> Callable[..., Any]:
        """Return the hook of the stream after a block."""

        def after(_: nn.Module, __: tuple[Any, ...], out: Any) -> Any:
            x = get_at(out, self.out_path)
            new = visit(f"{at}hook_resid_post", x)
            return None if new is x else put_at(out, self.out_path, new)

        return after

    def _at_terms(
        self, number: int, step: Step, state: dict[str, Tensor], visit: Tap, *, mid: bool
    ) -> Hooks:
        """Register hooks at the terms of an addition; the last of them has the site's changes.

        Args:
            number: number of the block.
            step: the addition.
            state: has the stream before the block.
            visit: returns the value to continue with at a site.
            mid: whether the stream after the addition is a requested site.
        """
        parts: list[Tensor] = []
        last = len(step.places) - 1

        def changed(index: int) -> Callable[..., Any]:
            path = step.places[index].path

            def change(_: nn.Module, __: tuple[Any, ...], out: Any) -> Any:
                raw = get_at(out, path)
                if index == 0:
                    parts.clear()
                parts.append(raw)
                new = (
                    self._term(number, step, state["pre"], parts, visit, mid)
                    if index == last
                    else None
                )
                return None if new is None else put_at(out, path, new)

            return change

        for index, place in enumerate(step.places):
            yield self.modules[place.module].register_forward_hook(changed(index))

    def _term(
        self, number: int, step: Step, pre: Tensor, parts: list[Tensor], visit: Tap, mid: bool
    ) -> Tensor | None:
        """Return the last term of an addition after taps; None if they change nothing."""
        factors, at, raw = self.factors(number), f"blocks.{number}.", parts[-1]
        values = [part.reshape(pre.shape) for part in parts]  # experts and OPT flatten the rows
        whole = step.added(values, factors)
        new = visit(f"{at}{SITE_OF[step.role]}", whole) if step.role else whole
        if mid:
            x = times(pre, factors[step.keep])
            stream = times(x + new, factors[step.outer])
            goal = visit(f"{at}hook_resid_mid", stream)
            if goal is not stream:
                # For gradients it is goal - x; if the tap only reads, it is `new` bit by bit.
                change = goal - stream.detach()
                new = new.detach() + _over(change, factors, step.outer) - (x - x.detach())
                if change.any():  # remove the rounding error of the sum
                    new = new + (_over(goal, factors, step.outer) - (x + new)).detach()
        if new is whole:
            return None
        last, places = step.places[-1].scale, step.places[:-1]
        others = [times(v, factors[p.scale]) for v, p in zip(values[:-1], places, strict=True)]
        change = new - whole.detach()
        is_read = not change.any()  # then no bit may change, while gradients flow through `new`
        rest = _over(change if is_read else new, factors, step.scale)
        for other in others:
            rest = rest - (other - other.detach() if is_read else other)
        rest = _over(rest, factors, last).to(raw.dtype).reshape(raw.shape)
        return raw.detach() + rest if is_read else rest

    def attend(self, visit: Tap) -> Callable[..., Pair]:
        """Return a function of attention with taps: queries, keys, values, pattern and z."""
        layers = {id(self.modules[name]): layer for layer, name in self.attention.items()}

        def attention(
            native: Any, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *given: Any
        ) -> Pair:
            args, kwargs = given
            out: Pair
            if id(module) not in layers:
                out = native(module, q, k, v, *args, **kwargs)
                return out
            at = f"blocks.{layers[id(module)]}.attn."
            q, k, v = (
                visit(at + site, one.transpose(1, 2)).transpose(1, 2)  # batch pos n_heads d_head
                for site, one in zip(HEAD_SITES[:3], (q, k, v), strict=True)
            )
            z, pattern = native(module, q, k, v, *args, **kwargs)
            if pattern is not None:
                new = visit(f"{at}hook_pattern", pattern)
                if new is not pattern:
                    values = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
                    change = new - pattern
                    is_read = not change.any()  # gradients flow, and no bit changes
                    made = (change if is_read else new).to(v.dtype) @ values
                    z = ((z if is_read else 0) + made.transpose(1, 2)).contiguous()
                pattern = new
            return visit(f"{at}hook_z", z), pattern

        return attention


def _text_config(config: Any) -> Any:
    """Return the config of the text network of a model that may have several."""
    try:
        return config.get_text_config(decoder=True)
    except (AttributeError, ValueError):  # none, or several
        return config


def softcapped(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap); `x` itself if the cap is 0."""
    return cap * torch.tanh(x / cap) if cap else x


def _over(x: Tensor, factors: Factors, *names: str) -> Tensor:
    """Return a tensor divided by factors; a factor that is named 1 returns `x` itself."""
    for name in names:
        x = x if name == "1" else x / factors[name]
    return x


def _at_input(
    name: str, path: Keys, values: dict[str, Tensor], visit: Tap
) -> Callable[..., Call | None]:
    """Return the hook of a site at the input of a module, which keeps its value as `pre`."""

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        x = input_at(args, kwargs, path)
        new = values["pre"] = visit(name, x)
        return None if new is x else put_input(args, kwargs, path, new)

    return before


class _Checks:
    """Comparison of the chain of blocks and of the additions of each block in one pass.

    Attributes:
        fault: the first comparison that fails; empty if none does.
    """

    def __init__(self, model: ProvenModel, is_done: Callable[[], bool]) -> None:
        self.model, self.is_done = model, is_done
        self.fault = ""
        self.copies: dict[Any, Tensor] = {}  # a model may add in place; all blocks share them
        self.read: Any = None  # the tensor that was copied to "stream", if a block has read it
        self.ended = -1  # the last block that ended; -1 after the next one has begun

    def copy(self, key: Any, value: Tensor) -> None:
        """Copy a tensor into memory that is allocated once."""
        old, value = self.copies.get(key), value.detach()
        if old is None or old.shape != value.shape or old.dtype != value.dtype:
            self.copies[key] = value.clone()
        else:
            old.copy_(value)

    def fail(self, layer: int, post: Tensor, row: int, what: str) -> None:
        """Note what fails in a text, or that the output of a block is not finite."""
        is_finite = bool(torch.isfinite(post).all())
        what = what if is_finite else f"values are not finite after block {layer}"
        self.fault = f"{what} in text {row} of the batch"

    def before_taps(self) -> Hooks:
        """Register the hooks that read the inputs and outputs of blocks before taps."""
        for layer in range(self.model.n_layers):
            block = self.model.modules[self.model.block(layer)]
            chain = self._chain(layer, f"block {layer}", self.model.in_path)
            yield block.register_forward_pre_hook(chain, with_kwargs=True)
            yield block.register_forward_hook(self._sums(layer))
        if self.model.norm:
            chain = self._chain(self.model.n_layers, "the final norm", self.model.norm_path)
            norm = self.model.modules[self.model.norm]
            yield norm.register_forward_pre_hook(chain, with_kwargs=True)

    def after_taps(self) -> Hooks:
        """Register the hooks that read the inputs, terms and outputs of blocks after taps."""
        for layer in range(self.model.n_layers):
            block = self.model.modules[self.model.block(layer)]
            yield block.register_forward_pre_hook(self._keep_input, with_kwargs=True)
            for number, step in enumerate(self.model.layers[layer].steps):
                for index, place in enumerate(step.places):
                    module = self.model.modules[place.module]
                    keep = self._keep_term((number, index), place.path)
                    yield module.register_forward_hook(keep)
            yield block.register_forward_hook(self._keep_output(layer))

    def _chain(self, layer: int, reader: str, path: Keys) -> Callable[..., None]:
        def start(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ended, self.ended, self.read = self.ended, -1, None
            if self.fault or layer == 0 or (ended == -1 and layer == self.model.n_layers):
                return
            if ended != layer - 1:
                self.fault = f"{reader} does not follow block {layer - 1}"
                return
            x, post = input_at(args, kwargs, path), self.copies["stream"]
            self.read = x
            is_cut = layer == self.model.n_layers and x.shape != post.shape  # to the last tokens
            if not is_cut and not same(x, post):
                row = _first(lambda i: not same(x[i], post[i]), len(x))
                what = f"{reader} does not read the output of block {layer - 1}"
                self.fail(layer - 1, post, row, what)

        return start

    def _keep_input(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = input_at(args, kwargs, self.model.in_path)
        if x is not self.read:  # the first block, or a tap has changed it
            self.copy("stream", x)

    def _keep_term(self, key: tuple[int, int], path: Keys) -> Callable[..., None]:
        def keep(_: nn.Module, __: tuple[Any, ...], out: Any) -> None:
            self.copy(key, get_at(out, path))

        return keep

    def _sums(self, number: int) -> Callable[..., None]:
        layer = self.model.layers[number]

        def end(_: nn.Module, __: tuple[Any, ...], out: Any) -> None:
            if self.fault or not layer.steps:
                return
            pre, post = self.copies["stream"], get_at(out, self.model.out_path).detach()
            values = [
                [self.copies[i, j].reshape(pre.shape) for j in range(len(step.places))]
                for i, step in enumerate(layer.steps)
            ]
            factors = self.model.factors(number)

            def fault(rows: Any) -> str:
                terms = [[one[rows] for one in of_step] for of_step in values]
                streams = [pre[rows], post[rows]]
                return layer.fault(streams, terms, factors, exact=True)

            if what := fault(slice(None)):
                row = _first(lambda i: bool(fault(i)), len(pre))
                self.fail(number, post, row, f"{what} of block {number} does not hold")

        return end

    def _keep_output(self, layer: int) -> Callable[..., None]:
        def end(_: nn.Module, __: tuple[Any, ...], out: Any) -> None:
            self.ended = layer
            self.copy("stream", get_at(out, self.model.out_path))
            if self.is_done():
                raise ForwardStoppedError

        return end


def _first(is_bad: Callable[[int], bool], n: int) -> int:
    """Return the first of n numbers for which a test holds; 0 if there is none."""
    return next(filter(is_bad, range(n)), 0)
