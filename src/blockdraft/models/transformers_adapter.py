"""Any other causal language model that transformers can load, behind the same `Target` protocol.

The generic path is slower than an own implementation: sequences run one after another, and each pass goes
through transformers' modules. Every cache layer keeps its full length, because one that drops what left a
sliding window could not be rolled back; the window itself is then the mask's business. Models with recurrent
state cannot forget single tokens and are refused.

A model that scales or caps its logits after the head does so here too, but `head_weight` is the bare matrix.

Shape legend: T packed rows, R rows with logits, V vocabulary, D width, M tapped layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import logging as transformers_logging

from blockdraft.errors import CheckpointError, ConfigError, UnsupportedModelError
from blockdraft.models.base import Segment, TargetInfo, TargetOutput

_SHORT_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class TransformersCache:
    """One sequence's `DynamicCache` with layers that keep every token."""

    def __init__(self, layers: list[Any]) -> None:
        self.length = 0
        self.state = DynamicCache()
        self.state.layers = layers

    def rollback(self, num_kept: int) -> None:
        """Forget all tokens but the first `num_kept`."""
        assert 0 <= num_kept <= self.length, f"cannot roll back from {self.length} to {num_kept} tokens"
        if num_kept < self.length:
            self.state.crop(num_kept - self.length)
            self.length = num_kept


class TransformersTarget:
    """A `Target` that runs a transformers model."""

    def __init__(self, model: Any, stored_as: str) -> None:
        """Take over a loaded model; `stored_as` names the type of its weights on disk.

        Raises:
            UnsupportedModelError: the model's state cannot be rolled back, or it lacks what a target needs.
        """
        self._model = model.eval()
        config = model.config.get_text_config()
        self._name = f"transformers:{model.config.model_type}"
        self._text_config = config
        parameters = inspect.signature(model.forward).parameters
        # transformers renamed the argument within its fifth major version.
        cache_name = next((name for name in ("cache", "past_key_values") if name in parameters), None)
        if cache_name is None or getattr(model, "_is_stateful", False):
            raise UnsupportedModelError(f"{self._name} {_NO_ROLLBACK}")
        self._cache_name = cache_name
        self._logits_to_keep = "logits_to_keep" in parameters
        self._cache_layers()  # refuses what cannot be rolled back
        self._layers = _find_layers(model, config.num_hidden_layers)
        embedding = self.embedding_weight
        context_length = getattr(config, "max_position_embeddings", None)
        if context_length is None:
            raise UnsupportedModelError(f"{self._name} does not say how long its context is (max_position_embeddings)")
        weights: list[Tensor] = list(model.parameters())
        self._info = TargetInfo(
            family=self._name,
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            vocab_size=self.head_weight.shape[0],
            context_length=context_length,
            num_parameters=sum(weight.numel() for weight in weights),
            weight_bytes=sum(weight.nbytes for weight in weights),
            dtype=embedding.dtype,
            device=embedding.device,
            quantization=stored_as,
        )

    @property
    def info(self) -> TargetInfo:
        return self._info

    @property
    def embedding_weight(self) -> Tensor:
        weight: Tensor = self._model.get_input_embeddings().weight
        return weight.detach()

    @property
    def head_weight(self) -> Tensor:
        weight: Tensor = self._model.get_output_embeddings().weight
        return weight.detach()

    def new_cache(self, capacity: int = 0) -> TransformersCache:
        """Return an empty cache; it grows with every pass, so `capacity` changes nothing."""
        return TransformersCache(self._cache_layers())

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], target_layer_ids: Sequence[int] = ()) -> TargetOutput:
        """Run the segments one after another and append them to their caches.

        Shapes: returns logits [R, V] and target_hidden [T, M*D] or None.
        """
        logits: list[Tensor] = []
        hidden: list[Tensor] = []
        for segment in segments:
            with self._tap(target_layer_ids) as taps:
                logits.append(self._run(segment))
            if target_layer_ids:
                hidden.append(torch.cat([taps[layer] for layer in target_layer_ids], dim=-1))
        return TargetOutput(logits=torch.cat(logits), target_hidden=torch.cat(hidden) if hidden else None)

    def _run(self, segment: Segment) -> Tensor:
        """Shapes: returns logits [num_logits, V]."""
        cache: TransformersCache = segment.cache
        num_rows = len(segment.token_ids)
        positions = torch.arange(cache.length, cache.length + num_rows, device=self._info.device)
        options: dict[str, Any] = {self._cache_name: cache.state, "use_cache": True, "position_ids": positions[None]}
        if self._logits_to_keep:
            options["logits_to_keep"] = max(1, segment.num_logits)  # 0 would mean all
        output = self._model(torch.tensor([list(segment.token_ids)], device=self._info.device), **options)
        cache.length += num_rows
        rows: Tensor = output.logits[0]
        return rows[len(rows) - segment.num_logits :]

    @contextmanager
    def _tap(self, layer_ids: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Collect the outputs [T, D] of some decoder layers while the context is open."""
        taps: dict[int, Tensor] = {}

        def keep(layer_id: int) -> Callable[[nn.Module, Any, Any], None]:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                taps[layer_id] = (output[0] if isinstance(output, tuple) else output)[0]

            return hook

        if layer_ids and self._layers is None:
            raise ConfigError(f"the decoder layers of {self._name} were not found, so no drafter can read them")
        handles = [self._layers[i].register_forward_hook(keep(i)) for i in layer_ids if self._layers is not None]
        try:
            yield taps
        finally:
            for handle in handles:
                handle.remove()

    def _cache_layers(self) -> list[Any]:
        """Return fresh cache layers that keep every token.

        Raises:
            UnsupportedModelError: a layer has state that cannot be rolled back.
        """
        layers = [
            DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
            for layer in DynamicCache(config=self._text_config).layers
        ]
        for layer in layers:
            # On the layers with recurrent state this is a property of the instance, never plainly true.
            if type(layer) is not DynamicLayer and getattr(type(layer), "is_croppable", False) is not True:
                raise UnsupportedModelError(f"{self._name} has {type(layer).__name__} state: it {_NO_ROLLBACK}")
        return layers


_NO_ROLLBACK = "cannot forget rejected draft tokens (recurrent state), so it cannot be a target"


def load_with_transformers(
    folder: Path, *, device: torch.device, dtype: torch.dtype, notify: Callable[[str], None]
) -> TransformersTarget:
    """Load a folder through transformers, and say that this is the slower path.

    Raises:
        UnsupportedModelError: transformers does not know the architecture, or its state cannot be rolled back.
        CheckpointError: weights are missing or damaged.
    """
    with _quiet():
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
            )
        except OSError as error:
            raise CheckpointError(f"transformers cannot read {folder}: {error}") from error
        except (ValueError, ImportError, KeyError) as error:
            raise UnsupportedModelError(f"transformers cannot load {folder}: {error}") from error
    # transformers fills what is missing with random numbers and carries on.
    if absent := sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"])):
        raise CheckpointError(
            f"{folder} lacks {', '.join(absent[:4])} or has them in another shape ({len(absent)} in all)"
        )
    stored = getattr(model.config, "dtype", None) or dtype
    target = TransformersTarget(model.to(device), stored_as=_SHORT_DTYPES.get(stored, str(stored)))
    notify(f"{target.info.family} runs on the generic path through transformers, slower than an own implementation")
    return target


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bar of the weights, which would mix with our own output."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


def _find_layers(model: nn.Module, num_layers: int) -> nn.ModuleList | None:
    """Return the list of decoder layers: the outermost module list of the right length."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((module for module in lists if len(module) == num_layers), None)
