"""What every layout writer is given, and the checks that several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.models.load import LoadedModel

StoredType = Literal["f32", "bf16", "q8_0"]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A drafter on its way out: its settings, and its weights in float32 by the names all packagings share."""

    config: BlockDraftConfig
    tensors: Mapping[str, Tensor]
    target: LoadedModel
    """The model it drafts for."""

    @property
    def method(self) -> str:
        """Return "dflash" or "dspark"."""
        return self.config.kind.removeprefix("draft-")


class Writer(Protocol):
    """One layout."""

    types: tuple[StoredType, ...]
    """What the weights can be stored as; the first is the usual one."""

    def why_not(self, config: BlockDraftConfig) -> list[str]:
        """Return what the layout cannot say about a drafter; empty if it can say all."""
        ...

    def write(self, folder: Path, draft: Draft, stored_type: StoredType) -> Path:
        """Write into an empty folder; return what `load_draft_checkpoint` reads."""
        ...

    def stored(self, name: str, tensor: Tensor, stored_type: StoredType) -> Tensor:
        """Return a tensor as it comes back, but for losses of quantisation."""
        ...


def window_of(config: BlockDraftConfig) -> int | None:
    """Return the width of the layers whose window slides; None if none does. See `window_reasons`."""
    return next((layer.window for layer in config.layers if layer.window is not None), None)


def window_reasons(config: BlockDraftConfig) -> list[str]:
    """Return a reason if layers slide by different widths: no layout has more than one."""
    widths = {layer.window for layer in config.layers if layer.window is not None}
    return (
        [f"its layers have sliding windows of {sorted(widths)}, and there is one key for all"]
        if len(widths) > 1
        else []
    )
