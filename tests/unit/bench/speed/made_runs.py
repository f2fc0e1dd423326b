"""Runs that nobody made: every time in them is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Failure, Pass, Role, Run, Sample, SideInfo
from blockdraft.bench.speed.workload import Cell

BASE_S = 0.010
"""Time per token of the baseline."""
FIRST_S = 0.1
NUM_TOKENS = 41


def made_sample(
    tpot_s: float,
    *,
    prompt: str = "p",
    turn: int = 0,
    repeat: int = 0,
    first_s: float = FIRST_S,
    num_tokens: int = NUM_TOKENS,
    text: str = "same",
    failure: Failure | None = None,
    **more: Any,
) -> Sample:
    """Return an answer whose tokens come one by one, `tpot_s` apart."""
    times = tuple(first_s + tpot_s * index for index in range(num_tokens))
    return Sample(
        prompt_id=prompt,
        turn=turn,
        repeat=repeat,
        started_s=0.0,
        **{
            "chunk_s": times,
            "chunk_tokens": (1,) * num_tokens,
            "chunk_characters": (3,) * num_tokens,
            "num_tokens": num_tokens,
            "num_prompt_tokens": 50,
            "num_cached_tokens": 0,
            "finish_reason": "length",
            "text_sha256": text,
            "failure": failure,
            **more,
        },
    )


def counts(num_drafted: int | None, num_accepted: int, num_rounds: int | None = 100, **more: Any) -> DraftCounts:
    return DraftCounts(source="test", num_rounds=num_rounds, num_drafted=num_drafted, num_accepted=num_accepted, **more)


def made_run(
    ratios: Mapping[Cell, float],
    *,
    num_prompts: int = 6,
    repeats: int = 3,
    jitter: float = 0.01,
    has_baseline: bool = True,
    drafts: Mapping[Role, DraftCounts | None] | None = None,
    samples: Mapping[Role, Any] | None = None,
    **more: Any,
) -> Run:
    """Return a run in which the side in question is so many times as fast in each cell.

    Prompts differ by `jitter`. `samples` may hold, by role, a function that changes a sample.
    """
    drafts = {"speculative": counts(300, 150), "baseline": counts(0, 0, 0)} if drafts is None else drafts
    roles: tuple[Role, ...] = ("baseline", "speculative") if has_baseline else ("speculative",)
    change = {role: lambda sample: sample for role in roles} | dict(samples or {})
    passes: list[Pass] = []
    for cell, ratio in ratios.items():
        for repeat in range(repeats):
            for role in roles if repeat % 2 == 0 else roles[::-1]:
                made = [
                    change[role](
                        made_sample(
                            BASE_S
                            / (ratio * (1 + jitter * (number - num_prompts / 2)) if role == "speculative" else 1),
                            prompt=f"{cell.category}/{number}",
                            repeat=repeat,
                        )
                    )
                    for number in range(num_prompts)
                ]
                wall_s = sum(sample.e2e_s or 0 for sample in made)
                passes.append(
                    Pass(
                        cell=cell,
                        role=role,
                        repeat=repeat,
                        order=len(passes),
                        wall_s=wall_s,
                        samples=tuple(made),
                        drafts=drafts.get(role),
                    )
                )
    fields: dict[str, Any] = {
        "date": "2026-01-02T03:04:05+00:00",
        "command": ("blockdraft", "bench", "http://localhost:1"),
        "versions": {"blockdraft": "0"},
        "machine": {"cpu": "A <processor>", "num_cores": 4, "ram_gb": 8.0, "gpus": [], "system": "Linux"},
        "settings": {"answers": {"temperature": 0.0, "max_tokens": 64}},
        "sides": tuple(SideInfo(role=role, where="http://x", engine="vllm 1", model="m") for role in roles[::-1]),
        "passes": tuple(passes),
        "is_complete": True,
        "load_before": 0.1,
    }
    return Run(**{**fields, **more})


def cells(*categories: str, depths: tuple[int, ...] = (0,), concurrencies: tuple[int, ...] = (1,)) -> list[Cell]:
    return [Cell(category=name, depth=d, concurrency=c) for d in depths for c in concurrencies for name in categories]
