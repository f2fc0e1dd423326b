"""What lies beside a trained drafter and tells how it came to be; every part is optional.

recipe.toml        what `blockdraft train` was told
manifest.json      what the training data was made from
acceptance.json    what was accepted on held-out prompts: one report of the engine, or a list of them
calibration.json   how well the confidence head was calibrated, before and after
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.errors import DataError

RECIPE, MANIFEST, ACCEPTANCE, CALIBRATION = "recipe.toml", "manifest.json", "acceptance.json", "calibration.json"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The parts that were found."""

    folder: Path
    recipe: str | None
    manifest: Mapping[str, Any] | None
    acceptance: tuple[Mapping[str, Any], ...]
    calibration: Mapping[str, Any] | None

    @classmethod
    def beside(cls, source: Path) -> Provenance:
        """Read the files in a checkpoint's folder.

        Raises:
            DataError: one of them is damaged.
        """
        folder = source if source.is_dir() else source.parent
        recipe = folder / RECIPE
        found = _read_json(folder / ACCEPTANCE)
        reports = found if isinstance(found, list) else [found] if found else []
        if not all(isinstance(report, dict) for report in reports):
            raise DataError(f"{folder / ACCEPTANCE} holds no report of acceptance; measure it again or remove the file")
        return cls(
            folder=folder,
            recipe=recipe.read_text(encoding="utf-8") if recipe.is_file() else None,
            manifest=_read_mapping(folder / MANIFEST),
            acceptance=tuple(reports),
            calibration=_read_mapping(folder / CALIBRATION),
        )

    def copy_to(self, folder: Path) -> None:
        """Put the files beside an exported drafter, so that it can be exported again."""
        for name in (RECIPE, MANIFEST, ACCEPTANCE, CALIBRATION):
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)


def _read_json(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}); mend or remove it") from error


def _read_mapping(path: Path) -> Mapping[str, Any] | None:
    found = _read_json(path)
    if found is not None and not isinstance(found, dict):
        raise DataError(f"{path} is not a JSON object; mend or remove it")
    return found
