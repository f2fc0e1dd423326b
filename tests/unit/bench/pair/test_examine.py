"""Each rule of the pair doctor finds its fault, and sound pairs have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockdraft.bench.pair.examine import examine
from blockdraft.bench.pair.facts import DrafterFacts, TargetFacts, drafter_facts, target_facts
from blockdraft.models.load import load_target
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf

TARGET = TargetFacts(
    name="target",
    num_layers=36,
    hidden_size=4096,
    vocab_size=151936,
    context_length=40960,
    rope_theta=1e6,
    tokenizer=None,
)
DRAFTER = DrafterFacts(
    name="drafter",
    kind="draft-dflash",
    source="config.json",
    num_layers=5,
    hidden_size=4096,
    vocab_size=151936,
    num_target_layers=36,
    target_layer_ids=(1, 9, 17, 25, 33),
    block_size=16,
    max_draft_tokens=15,
    mask_token_id=151669,
    rope_theta=1e6,
    layer_types=("full_attention",) * 5,
    context_length=40960,
    shapes={"fc.weight": (4096, 5 * 4096)},
)
SLIDES = ("sliding_attention",) * 4 + ("full_attention",)

FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another hidden size": ({"hidden_size": 2560, "shapes": {}}, "hidden-size", "error"),
    "another depth": ({"num_target_layers": 28}, "target-depth", "error"),
    "another vocabulary": ({"vocab_size": 128256}, "vocabulary", "error"),
    "a padded vocabulary": ({"vocab_size": 151669}, "vocabulary", "warning"),
    "a reduced one without its map": (
        {"draft_vocab_size": 32000, "shapes": {"lm_head.weight": (32000, 4096)}},
        "reduced-vocabulary",
        "error",
    ),
    "a layer too deep": ({"target_layer_ids": (1, 9, 17, 25, 36)}, "layer-ids", "error"),
    "a layer below the first": ({"target_layer_ids": (-1, 7, 15, 23, 31)}, "layer-ids", "error"),
    "layers out of order": ({"target_layer_ids": (9, 1, 17, 25, 33)}, "layer-ids-order", "warning"),
    "ids shifted up": ({"target_layer_ids": (2, 10, 18, 26, 34)}, "layer-ids-shifted", "warning"),
    "ids shifted down": ({"target_layer_ids": (0, 8, 16, 24, 32)}, "layer-ids-shifted", "warning"),
    "a layer missing": ({"target_layer_ids": (1, 9, 17, 25)}, "fc-width", "error"),
    "no mask": ({"mask_token_id": None}, "mask-token", "error"),
    "a mask outside": ({"mask_token_id": 151936}, "mask-token", "error"),
    "another mask": ({"mask_token_id": 151643}, "mask-token-odd", "warning"),
    "a mask with its own embedding": ({"has_mask_embedding": True}, "mask-embedding", "note"),
    "sliding without a window": ({"layer_types": SLIDES}, "sliding-window", "error"),
    "sliding run as full": ({"sliding_window": 2048, "says_sliding": True}, "sliding-run-as-full", "warning"),
    "sliding": ({"layer_types": SLIDES, "sliding_window": 2048}, "slides", "note"),
    "another rope base": ({"rope_theta": 1e4}, "rope", "warning"),
    "interleaved rope": ({"is_interleaved": True}, "rope-interleaved", "warning"),
    "a shorter context": ({"context_length": 4096}, "context", "warning"),
    "a coarse head": ({"stored_as": {"lm_head.weight": "Q4_K"}}, "head-type", "warning"),
    "a coarse head in GGUF": ({"stored_as": {"output.weight": "IQ4_NL"}}, "head-type", "warning"),
    "not run here": ({"problem": "layers of another kind"}, "not-run-here", "warning"),
}


def test_a_sound_pair_has_no_fault() -> None:
    assert examine(TARGET, DRAFTER, 15) == []


@pytest.mark.parametrize(("change", "name", "severity"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_found(change: dict[str, Any], name: str, severity: str) -> None:
    found = {finding.name: finding for finding in examine(TARGET, replace(DRAFTER, **change))}
    assert found[name].severity == severity
    assert all((finding.what, finding.reason, finding.fix, finding.source) for finding in found.values())


def test_what_is_not_coarse_or_does_not_decide_is_left_alone() -> None:
    types = {"lm_head.weight": "Q8_0", "fc.weight": "BF16", "blk.0.attn_output.weight": "Q4_0"}
    assert examine(TARGET, replace(DRAFTER, stored_as=types)) == []


@pytest.mark.parametrize(
    ("number", "kind", "expected"),
    [
        (16, "draft-dflash", ("draft-length", "error")),
        (8, "draft-dspark", ("draft-length", "note")),
        (8, "draft-dflash", None),
    ],
)
def test_draft_lengths(number: int, kind: str, expected: tuple[str, str] | None) -> None:
    found = [(one.name, one.severity) for one in examine(TARGET, replace(DRAFTER, kind=kind), number)]
    assert found == ([expected] if expected else [])


def test_what_files_do_not_say_is_left_alone() -> None:
    silent = TargetFacts(
        name="t",
        num_layers=None,
        hidden_size=None,
        vocab_size=None,
        context_length=None,
        rope_theta=None,
        tokenizer=None,
    )
    assert examine(silent, DRAFTER) == []
    assert [one.name for one in examine(TARGET, DrafterFacts(name="d", kind="draft-dflash", source="x"))] == [
        "mask-token"
    ]


def test_the_worst_comes_first() -> None:
    bad = replace(DRAFTER, has_mask_embedding=True, context_length=1, hidden_size=1, shapes={})
    assert [one.severity for one in examine(TARGET, bad)] == ["error", "warning", "note"]


@pytest.mark.parametrize("packaging", ["z-lab", "z-lab-nested", "deepspec", "speculators", "specforge"])
def test_files_of_every_packaging_are_read_alike(tmp_path, packaging) -> None:
    path = write_tiny_gguf(tmp_path / "target.gguf", quant="F32")
    target = target_facts("target", path)
    drafter = TinyDrafter(method="dspark" if packaging == "deepspec" else "dflash", packaging=packaging)
    info = load_target(path, dtype="float32").info
    facts = drafter_facts("drafter", write_tiny_drafter(tmp_path / "drafter", info, drafter))
    assert facts.target_layer_ids == (0, 2)
    assert facts.mask_token_id == 3
    assert facts.hidden_size == target.hidden_size
    assert facts.problem is None
    assert not [one for one in examine(target, facts) if one.severity == "error"]
