"""A network that transformers computes: the members of the package's own networks, as proven.

Sites that are not proven are absent, and what needs them raises ConfigError with the reason.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from probekit.errors import ConfigError, DataError
from probekit.model.network import Network
from probekit.model.passes import inputs as batches
from probekit.model.passes.context import select_positions
from probekit.model.passes.taps import Tap, check_returned, remember
from probekit.model.proven.additions import times
from probekit.model.proven.config import ProvenConfig
from probekit.model.proven.doors import ONE_PASS, NotProvenError, apart_rows, evaluating
from probekit.model.proven.identity import VERSION, agrees, identity_of_model, sketch_of, tensors_of
from probekit.model.proven.invariance import over_limit
from probekit.model.proven.norms import MeasuredNorm, measured_norm
from probekit.model.proven.proof import refuse_patches
from probekit.model.proven.taps import ProvenModel, softcapped
from probekit.model.sites.catalogue import component_of, layer_of
from probekit.model.sites.sites import Sites

if TYPE_CHECKING:
    from probekit.model.generation import KeyValueCache

# Sites of the last block that are computed at all positions, also if only some are requested.
_AT_ALL = ("hook_resid_pre", "attn.hook_rot_k", "attn.hook_v")
# Layers of these caches that have keys and values only.
_SELECTABLE = {"DynamicLayer", "DynamicSlidingWindowLayer"}
# Names of the caches of transformers, in outputs and arguments.
_CACHES = ("past_key_values", "cache_params", "state")
# Sites of the inputs of output maps, by their kind in a proof.
_SITE_OF = {"z": "blocks.{l}.attn.hook_z", "post": "blocks.{l}.mlp.hook_post"}


_SAMPLED = 64  # numbers of each weight that are compared


class ProvenNetwork(Network):
    """A loaded model of transformers, with the sites that are proven of it.

    Its members are those of the package's own networks. The model itself is not changed and not
    copied: a change of its weights changes the network. `load_model` and `from_transformers` return
    it for models that no family of the package computes.

    Attributes:
        VERSION: version of the numbers that taps give.
        config: sizes, sites and identity.
        model: the model of transformers.
        passes: the proven passes over it.
    """

    VERSION: ClassVar[int] = VERSION
    config: ProvenConfig

    def __init__(
        self, passes: ProvenModel, config: ProvenConfig, values: Mapping[str, list[float]]
    ) -> None:
        super().__init__()
        self.model: Any = passes.model
        self.passes = passes
        self.config = config
        config.source.network = weakref.ref(self)
        self.training = False
        # Whether steps with a cache agree with one pass, with padding and without it.
        self._agreed: dict[bool, bool | None] = {}
        self._is_running = False
        self._sample, self._values = _sample(self.model), values
        # The tokens that were read, and the cache of transformers, of each cache of ours.
        self._caches: WeakKeyDictionary[KeyValueCache, tuple[Tensor, dict[str, Any]]]
        self._caches = WeakKeyDictionary()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:  # noqa: ARG002
        raise ConfigError(
            f"The sites of this {self.config.TITLE} are proven for its dtype and device. Load it "
            "again with the dtype and device that you want."
        )

    # ---------------------------------------------------------------- facts
    @property
    def device(self) -> torch.device:
        """Device of the embedding."""
        return self.token_embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights that are not quantised."""
        return cast(torch.dtype, self.model.dtype)

    @property
    def has_sinks(self) -> bool:
        """Whether rows of attention patterns sum to less than 1."""
        return "pattern rows" in self.passes.facts

    def state_dict(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Return all weights and buffers by name; see `tensors_of`.

        Raises:
            ConfigError: settings or functions of the model were changed after its proof.
        """
        self._check_unchanged()
        return tensors_of(self.model)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the weights by the names of `state_dict`."""
        yield from self.model.named_parameters(*args, **kwargs)

    def get_parameter(self, target: str) -> Any:
        """Return a tensor of `state_dict` by its name."""
        tensors = tensors_of(self.model)
        if target not in tensors:
            raise AttributeError(f"The {self.config.TITLE} has no tensor {target!r}.")
        return tensors[target]

    @property
    def _has_mixers(self) -> bool:
        """Whether some blocks have no proven heads, so that they may be another kind of mixer."""
        return len(self.passes.attention) < self.config.n_layers

    def refuse(self, what: str, reason: str = "") -> NoReturn:
        """Raise ConfigError for a feature that is not proven.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{what} is not proven for this {self.config.TITLE}, which transformers computes"
            f"{f': {reason}' if reason else ''}. `probekit verify` prints what is proven."
        )

    # ---------------------------------------------------------------- passes
    def _compute(
        self, ids: Tensor, mask: Tensor | None, names: Sequence[str], visit: Tap | None, *,
        logits: bool, at: Tensor | None, past: KeyValueCache | None,
    ) -> Tensor | None:  # fmt: skip
        """Return the logits, or None, for the checked arguments of `forward`.

        Padding on a side that is not proven is moved to one that is. If none is, the texts are run
        one by one, and a tap cannot change a value. That the stream runs from block to block, and
        that every proven sum holds, is checked in each pass.

        Raises:
            ConfigError: a feature is not proven, or what was proven does not hold on these texts.
        """
        mask = None if mask is None or bool(mask.all()) else mask.bool().to(self.device)
        ids = ids.to(self.device)
        if past is not None:
            return self._continued(ids, mask, names, visit, past, at)
        n_tokens = ids.shape[1] if mask is None else int(mask.sum(1).max())
        if n_tokens > self.config.n_ctx:
            batches.check_context(self.config, torch.tensor([[n_tokens - 1]]))
        if mask is None:
            return self._pass(ids, None, None, names, visit, logits=logits, at=at)
        steps, sides = mask.long().diff(dim=1), self.passes.pad_positions
        is_on = {"left": bool((steps >= 0).all()), "right": bool((steps <= 0).all())}
        side = next((one for one in sides if is_on[one]), next(iter(sides), ""))
        if not side:
            return self._one_by_one(ids, mask, names, visit, logits=logits, at=at)
        source = (mask if side == "left" else ~mask).to(torch.int8).argsort(dim=1, stable=True)
        ids, moved = ids.gather(1, source), mask.gather(1, source)
        order = None if torch.equal(moved, mask) else source.argsort(dim=1)
        return self._pass(ids, moved, order, names, visit, logits=logits, at=at)

    def _pass(
        self, ids: Tensor, mask: Tensor | None, order: Tensor | None, names: Sequence[str],
        visit: Tap | None, *, logits: bool, at: Tensor | None, via: Callable[[], Any] | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Return the logits of one proven pass; taps get the positions in the order of the caller.

        Args:
            ids: token ids.
            mask: True at tokens; None for no padding.
            order: position in this pass of each position of the caller; None if they are equal.
            names: full names of the requested sites.
            visit: tap at whole sites.
            logits: False stops the pass after the last requested site.
            at: positions of the caller at which the last block is requested.
            via: function that runs the pass; None for the model on `ids`.
        """
        back = None if order is None else order.argsort(dim=1)

        def tap(name: str, value: Tensor) -> Tensor:
            assert visit is not None
            places, shown = _position_axes(self.sites, name), value
            for axis in places:
                shown = shown if order is None else _gathered(shown, order, axis)
            whole = shown
            selected = at if self._is_cut(name) else None
            if selected is not None:
                shown = _gathered(shown, selected, places[0])
            new = visit(name, shown.clone())  # a tap may change its argument
            check_returned(new, shown, name)
            if new.requires_grad and "gradients" in self.passes.refused:
                self.refuse("A gradient", self.passes.refused["gradients"])
            if not new.requires_grad and torch.equal(new, shown):
                return value
            if selected is not None:
                new = _scattered(whole, new, selected, places[0])
            for axis in places:
                new = new if back is None else _gathered(new, back, axis)
            return new

        try:
            with self._alone(), self._frozen():
                out, _ = self.passes.run(
                    ids, mask, names, tap if visit else None,
                    grad=torch.is_grad_enabled() and "gradients" not in self.passes.refused,
                    logits=logits, via=via, check=True, keep=False,
                )  # fmt: skip
        except NotProvenError as error:
            fault = str(error).rstrip(".")
            raise ConfigError(
                f"This {self.config.TITLE}, which transformers computes: {fault}. Its activations "
                "are not those of their names in this pass."
            ) from error
        if out is None:
            return None
        logits_of: Tensor = out if order is None else _gathered(out, order, 1)
        return logits_of if at is None else select_positions(logits_of, at.to(logits_of.device))

    def _is_cut(self, name: str) -> bool:
        """Return whether a site has some positions only if the last block computes only these."""
        inside = name.removeprefix(f"blocks.{self.config.n_layers - 1}.")
        return inside != name and inside not in _AT_ALL

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Allow one pass at a time in this process in the block, over the model that was proven.

        Raises:
            NotProvenError: a tap runs this network, or the model was changed after its proof.
        """
        with ONE_PASS:
            if self._is_running:
                raise NotProvenError("a tap runs the network whose pass it is part of")
            refuse_patches(self.passes)
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = False

    def _check_unchanged(self) -> None:
        """Raise ConfigError if settings or functions of the model are not those of its proof.

        Weights may change, because caches are known by their digest.
        """
        now, old = identity_of_model(self.model), self.config.identity
        changed = [key for key, value in now.items() if old[key] != value]
        fault = f"its {changed[0]} changed" if changed else ""
        if not changed and torch.equal(_sample(self.model), self._sample):
            try:
                with self._alone():
                    values = sketch_of(self.passes)
                is_equal = agrees(values, self._values, self.passes.limits)
                fault = "" if is_equal else "it gives other values"
            except NotProvenError as error:
                fault = str(error).rstrip(".")
        if fault:
            raise ConfigError(
                f"This {self.config.TITLE} is not the one that was proven: {fault}. Make the "
                "network again: from_transformers(model)."
            )

    def _one_by_one(
        self, ids: Tensor, mask: Tensor, names: Sequence[str], visit: Tap | None, *, logits: bool,
        at: Tensor | None,
    ) -> Tensor | None:  # fmt: skip
        """Return the logits of texts that are run one after the other, because padding is unproven.

        Raises:
            ConfigError: the tap changes a value.
        """
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        outs: list[Tensor] = []
        for row, real in zip(ids, mask, strict=True):
            values: dict[str, Tensor] = {}
            one = self._pass(
                row[real][None], None, None, names, remember(values) if names else None,
                logits=logits, at=None,
            )  # fmt: skip
            for name in names:
                places = _position_axes(self.sites, name)
                found[name].append(_spread(values[name], real, places))
            if one is not None:
                outs.append(_spread(one, real, [1]))
        for name, rows in found.items():
            assert visit is not None
            value = torch.cat(rows)
            if at is not None and self._is_cut(name):
                value = _gathered(value, at, _position_axes(self.sites, name)[0])
            if not torch.equal(visit(name, value.clone()), value):
                self.refuse("Padding", "so texts are run one by one, and a value cannot be changed")
        if not outs:
            return None
        out = torch.cat(outs)
        return out if at is None else select_positions(out, at.to(out.device))

    def _continued(
        self, ids: Tensor, mask: Tensor | None, names: Sequence[str], visit: Tap | None,
        past: KeyValueCache, at: Tensor | None,
    ) -> Tensor | None:  # fmt: skip
        """Return the logits of a pass that continues the tokens of a cache.

        Raises:
            ConfigError: generation, or padding on the left, is not proven.
            DataError: the earlier pass failed, so that the cache of transformers is incomplete.
        """
        refused = self.passes.refused
        seen = past.join_mask(self, ids, mask)
        if past.length and ids.shape[1] > 1 and self._has_mixers:
            self.refuse("A step of several tokens", "give one token at a time")
        if seen is not None and bool((seen.long().diff(dim=1) < 0).any()):
            self.refuse("Padding after a token, with a cache,", "pad on the left")
        if seen is not None and "left" not in self.passes.pad_positions:
            self.refuse("Padding on the left", refused.get("padding on the left", ""))
        if not self.continues(type(past), is_padded=seen is not None):
            what = "Generation" if seen is None else "Generation with padding"
            self.refuse(what, refused.get("generation", "its steps fail, or differ from one pass"))
        if past.length and past not in self._caches:
            raise DataError("An earlier pass with this cache failed. Pass a new KeyValueCache.")
        is_token = torch.ones(len(ids), past.length + ids.shape[1], device=ids.device)
        is_token = (is_token if seen is None else seen).long()
        positions = (is_token.cumsum(1) - 1).clamp_min(0)
        batches.check_context(self.config, positions)
        before, state = self._caches.pop(past, (ids[:, :0], {}))
        read = torch.cat([before, ids], 1)
        given = {"attention_mask": is_token}
        if seen is not None and self.passes.pad_positions["left"]:
            given["position_ids"] = positions

        def step() -> Any:
            # As `generate` of transformers, whose values are proven.
            arguments = self.model.prepare_inputs_for_generation(
                read, next_sequence_length=ids.shape[1], use_cache=True,
                is_first_iteration=not past.length, **state, **given,
            )  # fmt: skip
            if "logits_to_keep" in arguments:
                arguments["logits_to_keep"] = 0  # all; the default of some models is the last
            out = self.model(**arguments)
            kept.update({key: out[key] for key in _CACHES if out.get(key) is not None})
            return out.logits

        kept: dict[str, Any] = {}
        logits = self._pass(ids, None, None, names, visit, logits=True, at=at, via=step)
        self._caches[past] = read, kept  # of a pass that did not fail
        past.advance(ids.shape[1], seen)
        return logits

    def continues(self, cache: type[KeyValueCache], *, is_padded: bool = False) -> bool:
        """Return whether the logits of steps with a cache are those of one pass, up to rounding.

        The proof compares a generation of transformers, whose steps it chooses itself.

        Args:
            cache: the class of caches.
            is_padded: whether there is a mask of padding.
        """
        if "generation" in self.passes.refused:
            return False
        if self._agreed.get(is_padded) is None:
            self._agreed[is_padded] = True  # the steps of the test call this again
            found: bool | None = False
            # Steps of some models fail, or give the logits of the last token only.
            try:
                with suppress(RuntimeError, IndexError), torch.no_grad():
                    gap = self._step_gap(cache(), 3 if is_padded else 0)
                    found = over_limit(self.passes, "logits", gap) <= 1
            except (ConfigError, DataError):  # the model was changed: tested again when it is not
                found = None
            finally:
                self._agreed[is_padded] = found
        return bool(self._agreed[is_padded])

    def _step_gap(self, past: KeyValueCache, n_padding: int) -> float:
        """Return how far the logits of steps with a cache are from those of one pass.

        Args:
            past: an empty cache.
            n_padding: length of the padding on the left of the first of two texts.
        """
        ids = torch.cat([self.passes.texts()[2][:, start : start + 8] for start in (0, 8)])
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[0, :n_padding] = False
        sizes = [6, 1, 1] if self._has_mixers else [5, 1, 2]
        steps = [
            self(part, real if n_padding else None, past=past)
            for part, real in zip(*(torch.split(x, sizes, 1) for x in (ids, mask)), strict=True)
        ]
        return apart_rows(torch.cat(steps, 1)[mask], self(ids, mask)[mask])

    def forked(self, past: KeyValueCache, rows: Tensor) -> KeyValueCache | None:
        """Return a copy of a cache for some of its rows, which may repeat.

        None if the cache of transformers has more than keys and values.
        """
        read, state = self._caches[past]
        state = copy.deepcopy(state)
        for cache in state.values():
            layers = getattr(cache, "layers", None)
            if not layers or {type(one).__name__ for one in layers} - _SELECTABLE:
                return None
            cache.batch_select_indices(rows)
        forked = past.of_rows(rows)
        self._caches[forked] = read[rows], state
        return forked

    def _loss(self, ids: Tensor, mask: Tensor | None, targets: Tensor) -> Tensor:
        logits = self(ids, mask)
        targets = targets.to(logits.device)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Compute no gradients of weights, which a model in memory may require."""
        trained = [one for one in self.model.parameters() if one.requires_grad]
        for one in trained:
            one.requires_grad_(False)
        try:
            yield
        finally:
            for one in trained:
                one.requires_grad_(True)

    # ---------------------------------------------------------------- after the last block
    @property
    def has_lens(self) -> bool:
        """Whether the logits are proven to be the unembedding of the normed last stream."""
        return "lens" not in self.passes.refused

    def _need_head(self, what: str) -> None:
        """Raise ConfigError if the logits are not proven to follow from the last stream."""
        if "lens" in self.passes.refused:
            self.refuse(what, self.passes.refused["lens"])

    def final_norm(self, resid: Tensor, _tap: Any = None) -> Tensor:
        """Return the input of the unembedding for residuals, shape [... d_model].

        Raises:
            ConfigError: that the logits follow from it is not proven.
        """
        self._need_head("The final norm")
        with self._frozen():
            return self.passes.normed(resid)

    def uncapped_logits(self, x: Tensor) -> Tensor:
        """Return the logits before a softcap, shape [... d_vocab], of what `final_norm` returns."""
        self._need_head("The unembedding")
        with self._frozen():
            return self.passes.uncapped_logits(x)

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the softcap of the network; unchanged if it has none."""
        return softcapped(logits, self.passes.after_head[2])

    @property
    def unembedding(self) -> Tensor:
        """Matrix from the output of `final_norm` to the logits, shape [d_vocab d_model].

        The logits have `unembedding_bias`, too.

        Raises:
            ConfigError: that the logits follow from it is not proven.
        """
        self._need_head("The unembedding")
        matrix = _matrix(self.passes.modules[self.passes.head], self._like)
        return times(matrix[: self.passes.n_vocab], self.passes.after_head[1])

    @property
    def unembedding_bias(self) -> Tensor | None:
        """Bias of the logits, shape [d_vocab]; None if there is none."""
        bias = getattr(self.passes.modules[self.passes.head], "bias", None)
        factor = self.passes.after_head[1]
        return None if bias is None else bias.detach()[: self.passes.n_vocab] * factor

    @cached_property
    def _like(self) -> Tensor:
        """A row of a last residual stream, whose dtype and device are used."""
        name = f"blocks.{self.config.n_layers - 1}.hook_resid_post"
        with torch.no_grad():
            _, values = self.passes.run(self.passes.texts()[1], sites=[name], logits=False)
        return values[name][0, -1]

    @property
    def last_norm(self) -> MeasuredNorm:
        """Gain, bias and scale of the norm before the unembedding, measured.

        Raises:
            ConfigError: it is neither a layer norm nor an RMS norm.
        """
        norm = self.passes.norm and self.passes.modules[self.passes.norm]
        found = measured_norm(self.final_norm, self._like, norm)
        if found is None:
            self.refuse("The final norm", "it is neither a layer norm nor an RMS norm")
        return found

    def check_decomposes(self) -> None:
        """Raise ConfigError unless the last stream is the first plus what heads and MLPs add.

        Raises:
            ConfigError: a block adds something else, or scales the stream.
        """
        for layer, found in enumerate(self.passes.layers):
            for step in found.steps:
                if (step.keep, step.outer) != ("1", "1") or step.role not in ("attn", "mlp"):
                    self.refuse("A decomposition of the logits", f"block {layer} scales or mixes")
            if {step.role for step in found.steps} != {"attn", "mlp"}:
                self.refuse("A decomposition of the logits", f"block {layer}: {found.reason}")
        if self.unembedding_bias is not None:
            self.refuse("A decomposition of the logits", "the unembedding has a bias")

    # ---------------------------------------------------------------- in the blocks
    def _into_stream(self, site: str) -> tuple[str, float] | None:
        """Return the output map of heads or neurons, and the factor of what it adds to the stream.

        None if a norm, or anything else than a factor, is between its output and the sum.
        """
        place = layer_of(site) or 0, "z" if component_of(site) == "attn.z" else "post"
        if place not in self.passes.direct or site not in self.sites:
            return None
        factor = self._factor(place[0], self._step(_added_site(site)))
        return None if factor is None else (self.passes.linears[place], factor)

    def _step(self, site: str) -> Any:
        """Return the addition whose summand is a site; None if there is none."""
        role = {"attn_out": "attn", "mixer_out": "mixer", "mlp_out": "mlp"}[component_of(site)]
        steps = self.passes.layers[layer_of(site) or 0].steps
        return next((one for one in steps if one.role == role), None)

    def _factor(self, layer: int, step: Any) -> float | None:
        """Return the number that an output is multiplied by before it is added.

        None if it is a vector, or there are two terms.
        """
        factors = self.passes.factors(layer)
        one, other = factors[step.scale], factors[step.places[0].scale]
        if len(step.places) > 1 or isinstance(one, Tensor) or isinstance(other, Tensor):
            return None
        return one * other

    def stream_after(self, site: str) -> str | None:
        """Return the next residual stream that a tensor is a summand of, such as `resid_mid`.

        None if it is not proven that the stream changes by as much as the tensor, or its product
        with an output matrix.
        """
        component, layer = component_of(site), layer_of(site) or 0
        if component.startswith("resid_"):
            return component
        if component in ("attn.z", "mlp.post"):
            if self._into_stream(site) is None:
                return None
            site = _added_site(site)
        step, found = self._step(site), self.passes.layers[layer]
        if step is None or step.outer != "1":
            return None
        if found.parallel or step is found.steps[-1]:
            return "resid_post"
        is_mid = step is found.steps[0] and f"blocks.{layer}.hook_resid_mid" in self.sites
        return "resid_mid" if is_mid else None

    def _output_of(self, site: str) -> tuple[Tensor, Tensor | None]:
        """Return the matrix, shape [d_model n_features], and the bias of an output map."""
        found = self._into_stream(site)
        if found is None:
            self.refuse(f"The output matrix of {site}")
        name, factor = found
        module = self.passes.modules[name]
        bias = getattr(module, "bias", None)
        matrix = times(_matrix(module, self._like), factor)
        return matrix, None if bias is None else bias.detach() * factor

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of the heads of a layer and the bias of their sum.

        The matrix has the shape [d_model (n_heads d_head)], the bias [d_model]; None without bias.

        Raises:
            ConfigError: the heads are not mapped to the stream by a matrix alone.
        """
        return self._output_of(_SITE_OF["z"].format(l=layer))

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp].

        Raises:
            ConfigError: the neurons are not mapped to the stream by a matrix alone.
        """
        return self._output_of(_SITE_OF["post"].format(l=layer))[0]

    def attention_norm_gain(self, layer: int) -> None:
        """Return None: no norm is between the heads of a layer and the stream.

        Raises:
            ConfigError: that is not proven.
        """
        self._output_of(_SITE_OF["z"].format(l=layer))

    def norms_of(self, _layer: int) -> NoReturn:
        """Raise ConfigError: norms have no sites."""
        self.refuse("A norm of a block")

    def resume(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ConfigError: passes start at the tokens."""
        self.refuse("A pass from a block on")

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model in a folder, as transformers does."""
        self.model.save_pretrained(folder)

    @contextmanager
    def weights_of(self, _part: str) -> Iterator[None]:
        """Do nothing: all weights are in memory."""
        yield

    @property
    def token_embedding(self) -> Tensor:
        """Embedding of every token, shape [n_embeddings d_model]."""
        return cast(Tensor, self.model.get_input_embeddings().weight.detach())


def _added_site(site: str) -> str:
    """Return the attn_out or mlp_out site of a z or post site."""
    inside = "hook_attn_out" if component_of(site) == "attn.z" else "hook_mlp_out"
    return f"blocks.{layer_of(site)}.{inside}"


def _matrix(module: Any, like: Tensor) -> Tensor:
    """Return the matrix [d_out d_in] of a module that is a linear map plus a bias.

    `like` has the dtype and device of its input.
    """
    if type(module) is nn.Linear and not hasattr(module.weight, "__tensor_flatten__"):
        return module.weight.detach()
    if type(module).__name__ == "Conv1D":
        transposed: Tensor = module.weight.detach().T
        return transposed
    # An adapter, or quantised weights: the outputs of unit vectors.
    rows, n_in = [], module.in_features
    with torch.no_grad(), evaluating(module):
        zero = module(like.new_zeros(1, n_in))
        for start in range(0, n_in, 1024):
            unit = torch.eye(n_in, dtype=like.dtype, device=like.device)[start : start + 1024]
            rows.append(module(unit) - zero)
    return torch.cat(rows).T


def _position_axes(sites: Sites, name: str) -> list[int]:
    """Return the axes of a site that are positions."""
    axes = sites.describe(name).axes
    return [axes.index(one) for one in ("pos", "query_pos", "key_pos") if one in axes]


def _gathered(value: Tensor, order: Tensor, axis: int) -> Tensor:
    """Return the values at positions of each row, shape [batch n], along an axis."""
    shape = [1] * value.ndim
    shape[0], shape[axis] = order.shape
    return value.take_along_dim(order.to(value.device).view(shape), axis)


def _scattered(whole: Tensor, new: Tensor, at: Tensor, axis: int) -> Tensor:
    """Return a whole value with those at some positions of each row replaced."""
    shape = [1] * whole.ndim
    shape[0], shape[axis] = at.shape
    return whole.scatter(axis, at.to(whole.device).view(shape).expand_as(new), new)


def _spread(value: Tensor, real: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the value of one text with zeros at padding, along each of the axes."""
    places = real.nonzero()[:, 0]
    for axis in axes:
        shape = list(value.shape)
        shape[axis] = len(real)
        value = value.new_zeros(shape).index_copy(axis, places, value)
    return value


def _sample(model: nn.Module) -> Tensor:
    """Return some numbers of every weight, as bytes, to see cheaply whether the weights changed."""
    flat = (one.detach().flatten() for one in tensors_of(model).values())
    some = (one[:: max(1, len(one) // _SAMPLED)].cpu().contiguous() for one in flat)
    return torch.cat([torch.zeros(0, dtype=torch.uint8), *(one.view(torch.uint8) for one in some)])
