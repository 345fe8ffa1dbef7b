"""The target: a Hugging Face causal LM that hands out its taps, its embedding and its head, and whose cache rolls back."""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dflash2_core.errors import CheckpointError, CompatibilityError, Dflash2Error
from dflash2_core.transformers_engine.cache import LINEAR, Place, RollbackCache, causal_masks
from dflash2_core.transformers_engine.grouped import keep_groups

ORDINARY_LAYERS = ("full_attention", "sliding_attention")
TABLE_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Weights of other types are packed, or wait for their scales."""


class Target:
    """The frozen model whose text is to be written.

    model      any `AutoModelForCausalLM` with an ordinary key-value cache
    tokenizer  its tokenizer, or None where only token ids are used
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.config = model.config.get_text_config()
        self.device = model.device
        self.dtype = model.dtype
        self.layers = _decoder_layers(model)
        self._recurrent = _recurrent_modules(model, self.layers)
        for module in self._recurrent:
            module.register_forward_pre_hook(self._note_input, with_kwargs=True)
        self._inputs: dict[nn.Module, tuple[Tensor, dict[str, Any]]] | None = None
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._attention = model.config._attn_implementation
        self._window = getattr(self.config, "sliding_window", None)
        self._kinds = _attention_kinds(self.config)
        self._tapped: dict[int, Tensor] = {}
        self._taps: tuple[int, ...] = ()
        self._hooks: list[Any] = []

    @classmethod
    def from_pretrained(cls, path: str | Path, *, dtype: str | torch.dtype = "auto", device: str = "auto") -> "Target":
        """Load model and tokenizer from a local folder, without running code from it.

        dtype   "auto": float32 on a CPU, the checkpoint's on CUDA; else a torch dtype or its name. Only in float32 are the
                ids of a greedy text promised to be those of plain decoding: below it a block's pass rounds otherwise
        device  "auto": CUDA if there is one
        Raises CheckpointError in a sentence if the folder is not a causal LM.
        """
        path = Path(path)
        _require_folder(path)
        device = _device(device)
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            config = AutoConfig.from_pretrained(path, **local)
            _refuse_drafter(config, path)
            model, loaded = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=_dtype(dtype, device),
                use_safetensors=True,
                output_loading_info=True,
                **local,
            )
            tokenizer = AutoTokenizer.from_pretrained(path, **local)
        except Dflash2Error:
            raise
        except Exception as error:  # readers of damaged files raise what they like, tokenizers a bare Exception
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise CheckpointError(f"{path} could not be loaded as a causal language model: {reason:.300}") from error
        if missing := sorted(loaded["missing_keys"]):
            raise CheckpointError(
                f"{path} lacks {len(missing)} of the weights of a {type(model).__name__}, {missing[0]} first: "
                "they would be random. Copy the whole checkpoint"
            )
        if surplus := sorted(filter(_of_a_decoder_layer, loaded["unexpected_keys"])):
            raise CheckpointError(
                f"{path} has {len(surplus)} weights that its config.json leaves no place for, {surplus[0]} first: "
                "a part of the model would not run. Is its num_hidden_layers right?"
            )
        if not tokenizer("a")["input_ids"]:
            raise CheckpointError(f"the tokenizer in {path} reads nothing: its files are missing or empty. Copy them all")
        keep_groups(model.to(device))
        return cls(model, tokenizer)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def vocab_size(self) -> int:
        """Logical size: ids at or past it do not exist, however many rows the head is padded to."""
        return int(self.config.vocab_size)

    @property
    def context_limit(self) -> int | None:
        """Most positions the target takes, prompt and output together; None: not stated."""
        limit = getattr(self.config, "max_position_embeddings", None)
        return None if limit is None else int(limit)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """All ids that end a text: those of the generation config, the config and the tokenizer."""
        sources = (self.model.generation_config, self.config, self.tokenizer)
        ids: set[int] = set()
        for source in sources:
            eos = getattr(source, "eos_token_id", None)
            if eos is not None:
                ids.update([eos] if isinstance(eos, int) else eos)
        return frozenset(ids)

    def embed(self, ids: Tensor) -> Tensor:
        """ids [..] int64 -> the embedding table's rows [.., H], without any scale the model applies to them."""
        module = self.model.get_input_embeddings()
        weight = getattr(module, "weight", None)
        if type(weight) is nn.Parameter and weight.dtype in TABLE_DTYPES and weight.device == ids.device:
            return F.embedding(ids, weight)
        rows: Tensor = module(ids)  # packed or elsewhere: only the module can read it, and some apply their model's scale
        scales = [part.embed_scale for part in module.modules() if hasattr(part, "embed_scale")]
        return rows / scales[0] if scales else rows

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [.., H], any float dtype -> the head's raw output [.., >= V], without any scale or softcap of the model's."""
        logits: Tensor = self.model.get_output_embeddings()(hidden.to(self.dtype))
        return logits

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [.., H], the decoder's final hidden states -> the model's own logits [.., V].

        Raises CompatibilityError if the model makes its logits of the head's output in a way that is not known here.
        """
        return self._from_head(self.head(hidden))[..., : self.vocab_size]

    @cached_property
    def _from_head(self) -> Callable[[Tensor], Tensor]:
        """How the model goes on from its head: of the scales and caps that its config names, the one it is seen to apply."""
        ids = torch.arange(min(8, self.vocab_size), device=self.device)[None]
        raw = self.head(self.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state)
        own = self.model(input_ids=ids, use_cache=False).logits.float()
        apart = {way: float((way(raw).float() - own).abs().max()) for way in _ways_from_head(self.config)}
        way, error = min(apart.items(), key=lambda item: item[1])
        if not error <= 4 * torch.finfo(raw.dtype).eps * float(own.abs().max()):
            raise CompatibilityError(
                f"{type(self.model).__name__} does not make its logits of its head's output by a scale or a softcap of its "
                "config: a drafter cannot be trained on its distribution yet"
            )
        return way

    def tap(self, layer_ids: Sequence[int]) -> None:
        """Keep the outputs of these layers, and of no others, in each pass from now on. Empty: none."""
        if tuple(layer_ids) == self._taps:
            return
        for hook in self._hooks:
            hook.remove()
        self._taps = tuple(layer_ids)
        self._hooks = [self.layers[i].register_forward_hook(self._keeper(i)) for i in layer_ids]

    def encode(self, tokens: Tensor, layer_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """One pass without a cache over whole texts: their taps and final hidden states, in the target's dtype.

        tokens [D, T] int64, padded on the right (a causal target's real positions do not see what follows them)
        Returns taps [D, T, n_taps * H] and hidden [D, T, H].
        """
        self.tap(layer_ids)
        hidden: Tensor = self.model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        taps = torch.cat([self._tapped[i] for i in layer_ids], dim=-1)
        self._tapped.clear()
        return taps, hidden

    def _keeper(self, layer: int) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            self._tapped[layer] = output if isinstance(output, Tensor) else output[0]

        return keep

    def require_batches(self) -> None:
        """Raises CompatibilityError if rows of different lengths cannot share a pass."""
        if self._attention not in ("sdpa", "eager"):
            raise CompatibilityError(
                f"the target's attention is {self._attention!r}, which takes no mask for rows of different lengths: load it "
                "with attn_implementation 'sdpa' or 'eager', or keep max_batch_size at 1"
            )
        if self._why_alone is not None:
            raise CompatibilityError(
                f"rows of different lengths cannot share a pass of {type(self.model).__name__}: {self._why_alone}; "
                "keep max_batch_size at 1"
            )

    @cached_property
    def _why_alone(self) -> str | None:
        """Why it takes no mask for rows of different lengths, as it is seen to: some models make something else of a mask."""
        if "local" in getattr(self.config, "attention_layers", ()):
            return "its local attention takes all rows to be of one length"
        ids = torch.arange(5, device=self.device)[None] % self.vocab_size
        starts, shared = (3, 1), self.new_cache(2)
        for row, start in enumerate(starts):
            self.forward(ids[:, :start], shared, rows=1, first_row=row)
        try:
            together, _ = self.forward(ids[:, 3:].expand(2, -1), shared, rows=2)
        except Exception as error:  # whatever a model makes of a mask that it does not expect
            return f"{type(error).__name__}: {' '.join(str(error).split()):.100}"
        for row, start in enumerate(starts):
            cache = self.new_cache()
            self.forward(ids[:, :start], cache, rows=1)
            alone, _ = self.forward(ids[:, 3:], cache, rows=2)
            apart, scale = (together[row] - alone[0]).abs().max(), alone.abs().max()
            if not apart <= max(1e-2, 32 * torch.finfo(alone.dtype).eps) * scale:
                return f"a row's logits differ by {float(apart):.3g} of {float(scale):.3g} from those it has alone"
        return None

    def new_cache(self, max_rows: int = 1) -> RollbackCache:
        """An empty cache for up to `max_rows` requests."""
        return RollbackCache(max_rows, getattr(self.config, "layer_types", None) or ())

    @torch.inference_mode()
    def forward(
        self,
        ids: Tensor,
        cache: RollbackCache,
        *,
        rows: int,
        taps: Sequence[int] = (),
        first_row: int = 0,
        revocable: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """One pass over new tokens; the cache's rows grow by them.

        ids        [B, T] int64, of the cache's rows first_row .. first_row + B - 1, each after what it holds already
        rows       logits are computed for the last `rows` positions only
        taps       layers whose outputs are wanted, in this order; asked in each pass, since engines may share a target
        revocable  `rewind` will say how many of the tokens are kept
        Returns logits [B, rows, V] and, if there are taps, their features [B, T, n_taps * H].
        """
        self.tap(taps)
        place = cache.begin(first_row, *ids.shape)
        self._inputs = {} if revocable and self._recurrent else None
        if self._inputs is not None:
            for layer in cache.recurrent_layers:
                layer.remember()
        options: dict[str, Any] = {self._cache_argument: cache, "use_cache": True, "logits_to_keep": rows}
        if len(set(place.starts)) > 1:  # else the mask is left to the model, whatever attention it has
            options["attention_mask"] = self._masks(place)
        positions = place.positions(ids.device)
        limit = self.context_limit
        if limit is not None and place.end > limit:  # only the padding of a row can lie past it
            positions = positions.clamp(max=limit - 1)
        output = self.model(input_ids=ids, position_ids=positions, **options)
        logits = output.logits[..., : self.vocab_size]
        if not taps:
            return logits, None
        features = torch.cat([self._tapped[i] for i in taps], dim=-1)
        self._tapped.clear()
        if features.shape != (*ids.shape, len(taps) * self.hidden_size):
            raise CompatibilityError(
                f"{type(self.model).__name__} cannot be tapped: {list(ids.shape)} tokens, {self.hidden_size} wide, leave "
                f"its layers as {[*features.shape[:-1], features.shape[-1] // len(taps)]}"
            )
        return logits, features

    @torch.inference_mode()
    def rewind(self, cache: RollbackCache, kept: Sequence[int]) -> None:
        """Of the last pass, which was `revocable`, each row keeps its first `kept[row]` tokens.

        Recurrent layers read those once more, from their state before the pass: their inputs do not depend on what followed.
        """
        place = cache.place
        for row, (start, count) in enumerate(zip(place.starts, kept, strict=True), place.first_row):
            cache.rollback(start + count, row)
        if not self._inputs:
            return
        inputs, self._inputs = self._inputs, None
        for rows, count in _runs(kept, place.first_row):
            if count == place.length:
                continue
            of_pass = slice(rows.start - place.first_row, rows.stop - place.first_row)
            for layer in cache.recurrent_layers:
                layer.restore(rows, of_pass)
            if count == 0:
                continue
            cache.place = Place(rows.start, place.starts[of_pass], count)
            for module, (hidden, options) in inputs.items():
                module(hidden[of_pass, :count], **options)

    def _note_input(self, module: nn.Module, args: Any, options: dict[str, Any]) -> None:
        if self._inputs is not None:
            options = dict(options)
            hidden = args[0] if args else options.pop("hidden_states")
            self._inputs[module] = hidden, options

    def _masks(self, place: Place) -> Tensor | dict[str, Tensor | None]:
        """What the model takes for rows of different lengths: one mask, or one for each kind of layer."""
        kinds = [kind for kind in self._kinds if kind != LINEAR]
        windows = {kind: None if kind == "full_attention" else self._window for kind in kinds}
        masks = causal_masks(place, list(windows.values()), self.device)
        if self._attention == "eager":  # adds its mask instead of choosing by it
            least = torch.finfo(self.dtype).min
            masks = {
                w: torch.zeros(m.shape, dtype=self.dtype, device=m.device).masked_fill_(~m, least) for w, m in masks.items()
            }
        if len(self._kinds) > 1:
            return {kind: masks[windows[kind]] if kind in windows else None for kind in self._kinds}
        return masks[next(iter(windows.values()))]


def _require_folder(path: Path) -> None:
    """What `transformers` would pass over in silence, or not find: a config, and a generation config that can be read."""
    try:
        if not (path / "config.json").is_file():
            raise CheckpointError(f"no target model at {path}: expected a folder with a config.json")
        generation = path / "generation_config.json"
        if generation.exists() and not isinstance(json.loads(generation.read_text(encoding="utf-8")), dict):
            raise ValueError("it is no JSON object")
    except OSError as error:
        raise CheckpointError(f"no target model at {path!s:.200}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the generation_config.json in {path}, which names what ends a text, is broken: {error}"
        ) from error


def _of_a_decoder_layer(name: str) -> bool:
    """Towers for images and sound are left out rightly; a decoder's layers are not."""
    return re.search(r"(^|\.)layers\.\d+\.", name) is not None and not re.search("vis|audio|speech|image", name)


def _ways_from_head(config: PretrainedConfig) -> list[Callable[[Tensor], Tensor]]:
    """From a head's raw output to logits, as the models of `transformers` do it: the keys are theirs."""
    scales = [1.0]
    for key in ("logit_scale", "logits_scaling", "output_multiplier", "lm_head_multiplier"):
        if factor := getattr(config, key, None):
            scales += [factor, 1 / factor]
    cap = getattr(config, "final_logit_softcapping", None)
    scaled: list[Callable[[Tensor], Tensor]] = [lambda x, by=by: x * by for by in scales]  # type: ignore[misc]
    if cap is None:
        return scaled
    return [lambda x, by=by: cap * torch.tanh(x * by / cap) for by in scales] + scaled


def _refuse_drafter(config: PretrainedConfig, path: Path) -> None:
    architectures = getattr(config, "architectures", None) or ()
    drafters = [name for name in architectures if "DFlash" in name]
    if drafters:
        raise CheckpointError(f"{path} holds a drafter ({drafters[0]}), not a target: give the model it was trained for")


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name).tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CompatibilityError(f"device {str(name)!r} cannot be used here: {str(error).splitlines()[0]:.200}") from error
    return name


def _dtype(dtype: str | torch.dtype, device: str) -> str | torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if torch.device(device).type == "cpu" else "auto"
    resolved = getattr(torch, dtype, None)
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point:
        raise CompatibilityError(f"dtype {dtype!r} is not one of auto, float32, bfloat16, float16, float64")
    return resolved


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    decoder = model.get_decoder()
    lists = [getattr(decoder, "layers", None), *decoder.children()]  # most name it so; GPT-2 and others do not
    depth = model.config.get_text_config().num_hidden_layers
    layers = next((found for found in lists if isinstance(found, nn.ModuleList) and len(found) == depth), None)
    if layers is None:
        raise CompatibilityError(f"{type(model).__name__} cannot be a target here: no list of decoder layers was found to tap")
    return layers


def _attention_kinds(config: PretrainedConfig) -> tuple[str, ...]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        slides = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
        kinds = ("sliding_attention" if slides else "full_attention",)
    return tuple(sorted(set(kinds)))


def _recurrent_modules(model: PreTrainedModel, layers: nn.ModuleList) -> list[nn.Module]:
    """The modules of a hybrid target whose state does not roll back by itself; CompatibilityError for kinds not known here."""
    config = model.config.get_text_config()
    kinds = list(getattr(config, "layer_types", None) or ())
    modules = [getattr(layer, "linear_attn", None) for layer, kind in zip(layers, kinds, strict=False) if kind == LINEAR]
    unknown = [kind for kind in kinds if kind not in (*ORDINARY_LAYERS, LINEAR)]
    stateful = bool(getattr(model, "_is_stateful", False)) and not modules
    if unknown or None in modules or stateful:
        kind = unknown[0] if unknown else LINEAR if None in modules else "recurrent state"
        raise CompatibilityError(
            f"{type(model).__name__} has layers of the kind {kind!r}, whose state this engine cannot roll back to the accepted "
            f"tokens; it takes targets with an ordinary key-value cache ({' and '.join(ORDINARY_LAYERS)}) and those of the "
            "Qwen3-Next kind, with linear attention beside it"
        )
    return [module for module in modules if module is not None]


def _runs(kept: Sequence[int], first_row: int) -> list[tuple[slice, int]]:
    """Neighbouring rows that keep equally many tokens."""
    runs: list[tuple[slice, int]] = []
    for row, count in enumerate(kept, first_row):
        if runs and runs[-1][1] == count:
            runs[-1] = slice(runs[-1][0].start, row + 1), count
        else:
            runs.append((slice(row, row + 1), count))
    return runs
