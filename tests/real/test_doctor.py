"""Faults planted into a shipped drafter: everything still runs, and only measuring shows what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from blockdraft.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.network]

LITTLE = ("--num-prompts", "2", "--max-tokens", "40")

Plant = Callable[[dict[str, object]], Path]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Plant:
    """Return a function that writes the shipped DFlash drafter with another `dflash_config`."""
    folder = tmp_path_factory.mktemp("doctor") / "dflash"
    result = CliRunner().invoke(
        main, ["export", "builtin:smollm2-dflash", "--to", "z-lab", "--full-vocabulary", "-o", str(folder)]
    )
    assert result.exit_code == 0, result.output

    def write(changes: dict[str, object]) -> Path:
        config = json.loads((folder / "config.json").read_text())
        config["dflash_config"] |= changes
        changed = folder.parent / "-".join(changes)
        changed.mkdir(exist_ok=True)
        (changed / "config.json").write_text(json.dumps(config))
        if not (changed / "model.safetensors").exists():
            (changed / "model.safetensors").symlink_to(folder / "model.safetensors")
        return changed

    return write


def diagnose(drafter: Path, *effort: str) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(main, ["doctor", "default", str(drafter), "--measure", "--json", *effort])
    assert result.exit_code in (0, 1), result.output
    return {one["name"]: one for one in json.loads(result.stdout)["pair"]["findings"]}


def test_layer_ids_shifted_by_one_are_named(plant: Plant) -> None:
    right = [1, 8, 14, 20, 27]
    found = diagnose(plant({"target_layer_ids": [one + 1 for one in right]}))
    assert found["layer-ids-shifted"]["severity"] == "warning"
    assert str(right) in found["layer-ids-measured"]["fix"]


def test_a_wrong_mask_token_is_named(plant: Plant) -> None:
    found = diagnose(plant({"mask_token_id": 1000}), *LITTLE)
    assert "mask-token-odd" in found
    assert found["mask-token-measured"]["severity"] == "error"
    assert "layer-ids-measured" not in found


def test_the_drafter_as_it_is_has_no_fault(plant: Plant) -> None:
    found = diagnose(plant({"block_size": 6}), *LITTLE)
    assert {one["severity"] for one in found.values()} <= {"note"}
