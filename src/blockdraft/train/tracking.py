"""What a run leaves to look at: `metrics.jsonl`, one object a line, and TensorBoard events beside it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Self

logger = logging.getLogger(__name__)


class Tracker:
    """Appends numbers to the files of a run; lines of steps that are made again are dropped first."""

    def __init__(self, folder: Path, step: int, *, use_tensorboard: bool, active: bool) -> None:
        """`step` is the last one that counts; `active` is false on all processes but one."""
        self._active = active
        self._writer: Any = None
        if not active:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.jsonl"
        _forget_after(path, step)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        if use_tensorboard:
            self._writer = _tensorboard(folder / "tensorboard", step)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Note the values of a step."""
        if not self._active:
            return
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._active:
            self._file.close()
            if self._writer is not None:
                self._writer.close()


def _forget_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional extra
    except ImportError:
        logger.warning("TensorBoard events are not written: install blockdraft[train], or set run.tensorboard = false")
        return None
    return SummaryWriter(str(folder), purge_step=step)
