"""The measuring doctor: it counts what the engine would keep, and calls a reading better only beyond chance."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blockdraft.bench.pair.measure import AS_WRITTEN, Reading, findings_of, measure, variants
from blockdraft.drafters.draft_checkpoint import load_draft_checkpoint
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine, Request
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target


def reading(variant: str, kept: list[int]) -> Reading:
    return Reading(variant=variant, what=f"{variant} changed", kept=tuple(kept))


def places(rate: float, seed: int, number: int = 300) -> list[int]:
    source = random.Random(seed)
    return [sum(source.random() < rate for _ in range(3)) for _ in range(number)]


def test_a_better_reading_is_an_error_and_names_the_change() -> None:
    [found] = findings_of([reading(AS_WRITTEN, places(0.2, 1)), reading("mask-token", places(0.6, 2))])
    assert (found.name, found.severity) == ("mask-token-measured", "error")
    assert "mask-token changed" in found.fix


def test_the_best_of_a_kind_is_named_once() -> None:
    written, good, better = reading(AS_WRITTEN, places(0.1, 1)), places(0.4, 2), places(0.8, 3)
    found = findings_of([written, reading("layer-ids", good), replace(reading("layer-ids", better), what="the best")])
    assert ["the best" in one.fix for one in found] == [True]


def test_what_chance_explains_is_no_finding() -> None:
    false_alarms = sum(
        bool(findings_of([reading(AS_WRITTEN, places(0.3, 2 * seed)), reading("anchor", places(0.3, 2 * seed + 1))]))
        for seed in range(200)
    )
    assert false_alarms <= 2


def test_nothing_kept_in_any_way_is_an_error() -> None:
    [found] = findings_of([reading(AS_WRITTEN, [0] * 50), reading("mask-token", [0] * 50)])
    assert found.name == "nothing-accepted"
    assert findings_of([reading(AS_WRITTEN, [0, 1] * 25)]) == []


@pytest.mark.parametrize("window", [None, 4])
def test_variants_change_one_thing_each(tmp_path, window) -> None:
    info = tiny_target().info
    checkpoint = load_draft_checkpoint(
        write_tiny_drafter(tmp_path, info, TinyDrafter(target_layer_ids=(0, 1), sliding_window=window)), info
    )
    ways = list(variants(checkpoint.config, info, None))
    assert ways[0].config == checkpoint.config
    assert [way.config.target_layer_ids for way in ways if way.name == "layer-ids"] == [(1, 2)]
    masks = [way.config.mask_token_id for way in ways if way.name == "mask-token"]
    assert masks == [info.vocab_size - 1, 0]
    full = [way for way in ways if way.name == "windows"]
    assert len(full) == (window is not None)
    assert not any(layer.window for way in full for layer in way.config.layers)


def test_it_counts_what_the_engine_keeps(tmp_path) -> None:
    """At the places where rounds of a run begin, as much is kept as that run kept."""
    target = tiny_target()
    folder = write_tiny_drafter(tmp_path, target.info, TinyDrafter(method="dspark", packaging="deepspec"))
    checkpoint = load_draft_checkpoint(folder, target.info)
    request = Request(prompt_ids=(5, 9, 2, 7), max_tokens=40)
    engine = Engine(target, None, DSparkDrafter(checkpoint, target, draft_sampling="greedy"))
    [written, *_] = measure(engine, checkpoint, [request], lambda _: None)
    [answer] = engine.run([request])
    place, compared = 0, 0
    for one in answer.rounds:
        if one.num_drafted == checkpoint.config.max_draft_tokens and place < len(written.kept):
            assert written.kept[place] == one.num_accepted
            compared += 1
        place += one.num_accepted + 1
    assert compared > 5
