"""Plans: what is chosen, that every choice says why, and where the advice is not to speculate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from situations import DFLASH, sglang, situation

from blockdraft.deploy.bits import quantization_in_name
from blockdraft.deploy.choosing import split_searches
from blockdraft.deploy.dialects import read_command, read_with_notes, write_command
from blockdraft.deploy.hardware import profile, profile_names
from blockdraft.deploy.pairs import find_base, registered_target, target_names
from blockdraft.deploy.planning import ENGINES, GOALS, Plan, Wish, mend, plan, refusal
from blockdraft.deploy.rules import Workload
from blockdraft.deploy.versions import known_version


def planned(target: str, engine: str, hardware: str, *, version: str | None = None, **wishes) -> Plan:
    base = find_base(target)
    facts = registered_target(base.name) if base else None
    if facts:
        facts = replace(facts, name=target, quantization=quantization_in_name(target))
    return plan(
        Wish(
            target=target,
            engine=engine,
            version=known_version(engine, version, look=False),
            hardware=profile(hardware),
            target_facts=facts,
            base=base,
            **wishes,
        )
    )


def chosen(found: Plan) -> dict[str, str]:
    return {choice.setting: choice.value for choice in found.choices}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("hardware", ["rtx3090", "strix-halo", "dgx-spark", "arc-b70x2", "h100x8", "cpu"])
@pytest.mark.parametrize("target", ["Qwen/Qwen3-8B", "Qwen/Qwen3.6-27B-FP8", "cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit"])
def test_a_plan_is_a_command_that_reads_back_and_has_reasons(engine, goal, hardware, target) -> None:
    found = planned(target, engine, hardware, goal=goal)
    again = read_command(write_command(found.deployment))
    assert again.drafts == found.deployment.drafts
    assert again.context_length == found.deployment.context_length
    assert all(choice.why for choice in found.choices)
    assert found.drafter.why
    notes = read_with_notes(write_command(found.deployment)).notes
    assert not [note for note in notes if note.kind in ("outdated", "unknown")]
    assert not [finding.rule for finding in found.examination.of("error") if finding.rule != "M1"]


def test_one_stream_gets_the_whole_block_and_many_get_half() -> None:
    assert planned("Qwen/Qwen3-8B", "vllm", "h100").deployment.drafts[0].num_draft_tokens == 15
    assert planned("Qwen/Qwen3-8B", "vllm", "h100", goal="throughput").deployment.drafts[0].num_draft_tokens == 7


def test_the_same_length_in_the_words_of_each_engine() -> None:
    vllm, sglang_, llama = (planned("Qwen/Qwen3-8B", engine, "h100") for engine in ENGINES)
    assert '"num_speculative_tokens": 15' in " ".join(write_command(vllm.deployment))
    assert "--speculative-num-draft-tokens 16" in " ".join(write_command(sglang_.deployment))
    assert "--spec-draft-n-max 15" in " ".join(write_command(llama.deployment))


def test_context_on_sm_86_takes_fp8_keys_on_the_backend_that_has_them() -> None:
    found = planned("cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit", "vllm", "rtx3090", goal="context", drafter="z-lab/x-DFlash")
    assert found.deployment.kv_dtype == "fp8"
    on_hopper = planned("Qwen/Qwen3-8B", "vllm", "h100", goal="context")
    assert on_hopper.deployment.attention_backend in (None, "FLASH_ATTN")
    on_ada = planned("Qwen/Qwen3-8B", "vllm", "rtx4090", goal="context", drafter="z-lab/Qwen3-8B-DFlash-b16")
    assert on_ada.deployment.attention_backend == "FLASHINFER"
    before = planned("Qwen/Qwen3-8B", "vllm", "h100", goal="context", version="0.22.0")
    assert before.deployment.kv_dtype is None


def test_the_budget_is_counted_by_release() -> None:
    now = planned("Qwen/Qwen3-8B", "vllm", "h200", goal="throughput")
    assert now.deployment.max_batched_tokens == 8192
    old = planned("Qwen/Qwen3-8B", "vllm", "h200", goal="throughput", version="0.25.1", num_sequences=64)
    assert old.deployment.max_batched_tokens == 8192 + 1024  # 6 x 64 slots, to the next 1024
    assert "6" not in chosen(now)["rows of a pass"]


def test_experts_on_the_processor_mean_no_draft_network() -> None:
    """Published configuration 13: DFlash was tried there and retired."""
    found = planned("Qwen3.6-35B-A3B-tune-Q6_K.gguf", "llamacpp", "rtx3090", num_sequences=3, context_length=200_000)
    assert found.deployment.own["n-cpu-moe"] > 0
    assert found.deployment.drafts == ()
    assert found.drafter.method is None
    assert any("L23" in choice.why for choice in found.choices)


def test_no_drafts_on_a_processor_and_under_load_on_strix_halo() -> None:
    assert planned("Qwen/Qwen3-8B", "vllm", "cpu").deployment.drafts == ()
    loaded = planned("Qwen/Qwen3.6-27B", "llamacpp", "strix-halo", goal="throughput")
    assert loaded.deployment.drafts == ()
    assert "25.3" in loaded.drafter.why
    alone = planned("Qwen/Qwen3.6-27B", "llamacpp", "strix-halo")
    assert alone.deployment.drafts[0].num_draft_tokens == 8
    assert alone.deployment.own["device"] == "ROCm0"


def test_a_drafter_that_was_named_is_kept() -> None:
    named = "z-lab/Qwen3.6-27B-DFlash"
    loaded = planned("Qwen/Qwen3.6-27B", "llamacpp", "strix-halo", goal="throughput", drafter=named)
    assert loaded.deployment.drafts[0].model == named
    assert "L8" in {finding.rule for finding in loaded.examination.findings}


def test_context_as_the_goal_drops_a_dear_drafter_and_says_what_it_costs() -> None:
    found = planned("cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit", "vllm", "rtx3090", goal="context")
    assert found.deployment.drafts == ()
    reason = next(choice.why for choice in found.choices if choice.value.startswith("none"))
    assert "tokens fit with the drafter" in reason
    assert (found.deployment.context_length or 0) > 100_000


def test_a_release_too_old_for_the_drafter_takes_the_targets_own_heads() -> None:
    found = planned("Qwen/Qwen3.6-27B-FP8", "vllm", "h100", version="0.19.1")
    assert found.drafter.method == "mtp"
    assert any("needs vllm 0.20.0" in other for other in found.drafter.others)


def test_thinking_decides_between_drafters() -> None:
    def why(thinking) -> str:
        return planned("Qwen/Qwen3-8B", "vllm", "h100", workload=Workload(thinking=thinking)).drafter.why

    assert "thinking" not in why("off")
    found = planned("Qwen/Qwen3-8B", "vllm", "h100", workload=Workload(thinking="on"))
    assert found.drafter.facts is not None
    assert found.drafter.facts.thinking != "off"


def test_sglang_gets_state_buffers_under_the_name_of_its_release() -> None:
    new = planned("Qwen/Qwen3.6-27B", "sglang", "h100x8").deployment.own
    assert new["mamba-radix-cache-strategy"] == "extra_buffer"
    old = planned("Qwen/Qwen3.6-27B", "sglang", "h100x8", version="0.5.20").deployment.own
    assert old["mamba-scheduler-strategy"] == "extra_buffer"


def test_what_does_not_fit_says_what_would() -> None:
    found = planned("Qwen/Qwen3.6-27B", "vllm", "rtx5090")
    assert not found.can_start
    assert any("awq" in advice for advice in found.advice)
    assert any("devices hold" in advice for advice in found.advice)
    assert planned("Qwen/Qwen3-8B", "vllm", "h100").advice == ()


def test_llama_cpp_gets_a_quantisation_that_fits() -> None:
    found = planned("Qwen/Qwen3.6-27B", "llamacpp", "rtx3090")
    assert found.deployment.target.endswith(".gguf")
    assert found.memory.fits
    assert found.target_facts is not None
    assert (found.target_facts.quantization or "").upper() in found.deployment.target


def test_the_file_for_llama_cpp_is_made_from_the_model_itself_and_not_from_a_quantised_one() -> None:
    found = planned("cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit", "llamacpp", "rtx3090").deployment.target
    assert found.startswith("/models/Qwen3.6-35B-A3B-")
    assert "AWQ" not in found


def test_asked_sizes_are_kept() -> None:
    found = planned("Qwen/Qwen3-8B", "vllm", "h100", context_length=12_345, num_sequences=3)
    assert (found.deployment.context_length, found.deployment.num_sequences) == (12_345, 3)


def test_machines_with_one_device_each_are_several_nodes() -> None:
    found = planned("Qwen/Qwen3.6-27B-FP8", "vllm", "dgx-sparkx2")
    assert (found.deployment.tensor_parallel, found.deployment.num_nodes) == (2, 2)


@pytest.mark.parametrize("hardware", profile_names())
def test_every_profile_can_be_planned_for(hardware) -> None:
    planned("Qwen/Qwen3-4B", "llamacpp", hardware)


@pytest.mark.parametrize("target", target_names())
def test_every_registered_target_can_be_planned(target) -> None:
    for engine in ENGINES:
        assert planned(target, engine, "h200x8").choices


def test_an_unregistered_target_is_planned_without_a_guess() -> None:
    found = planned("org/unheard-of", "vllm", "h100")
    assert found.deployment.drafts == ()
    assert found.memory.fits is None
    assert "not registered" in found.drafter.why


def test_refusals() -> None:
    assert "llama.cpp reads" in (refusal("vllm", "x.gguf", None, profile("h100")) or "")
    assert "AMX" in (refusal("sglang", "org/x", None, profile("cpu")) or "")
    assert refusal("llamacpp", "x.gguf", None, profile("cpu")) is None


def test_mending_goes_on_until_nothing_changes_and_tells_each_step() -> None:
    broken = situation(
        on="rtx3090",
        kv_dtype="fp8",
        attention_backend="FLASH_ATTN",
        num_drafts=20,
        context_length=4096,
        own={"swap-space": 4},
    )
    mended, steps = mend(broken)
    assert mended.deployment.attention_backend == "FLASHINFER"
    assert mended.deployment.drafts[0].num_draft_tokens == 15
    assert mended.deployment.own == {}
    assert len(steps) == 3
    assert all(step.source and step.why for step in steps)
    assert mend(mended) == (mended, ())


def test_mending_leaves_a_sound_deployment_alone() -> None:
    sound = sglang(draft=DFLASH, num_sequences=4)
    assert mend(sound) == (sound, ())


def test_sequences_that_share_a_pool_keep_their_drafter_and_one_may_have_most_of_it() -> None:
    found = planned("Qwen/Qwen3-8B", "vllm", "rtx4090", num_sequences=32)
    assert found.deployment.drafts
    assert (found.deployment.context_length or 0) > 2 * (found.memory.context_with_drafts or 0)
    assert "share" in next(choice.why for choice in found.choices if choice.setting == "context")


def test_sglang_keeps_room_outside_its_static_share() -> None:
    found = planned("Qwen/Qwen3-8B", "sglang", "h100")
    share = found.deployment.memory_fraction
    assert share is not None
    inside = ("target weights", "target keys and values")
    outside = sum(item.num_bytes for item in found.memory.items if item.name not in inside)
    assert outside < (1 - share) * profile("h100").memory_bytes


def test_searches_draft_alone_or_before_a_model_and_bring_no_model_of_their_own() -> None:
    alone = planned("Qwen/Qwen3-8B", "llamacpp", "rtx4090", searches=("ngram-mod",))
    assert "--spec-type ngram-mod" in " ".join(write_command(alone.deployment))
    assert [draft.model for draft in alone.deployment.drafts] == [None]
    chain = planned("Qwen/Qwen3-8B", "llamacpp", "rtx4090", searches=("ngram-mod",), drafter="/m/dflash.gguf")
    words = write_command(chain.deployment)
    assert words[words.index("--spec-type") + 1] == "ngram-mod,draft-dflash"
    assert chosen(chain)["drafter"] == "ngram-mod, then /m/dflash.gguf (dflash)"
    on_vllm = planned("Qwen/Qwen3-8B", "vllm", "h100", searches=("ngram",))
    assert on_vllm.deployment.drafts[0].num_draft_tokens


def test_a_search_is_kept_where_a_hybrid_target_shortens_the_drafts_behind_it() -> None:
    named = {"searches": ("ngram-mod",), "drafter": "/m/dflash.gguf"}
    found = planned("cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit", "llamacpp", "rtx3090", **named)
    assert [draft.method for draft in found.deployment.drafts] == ["ngram-mod", "dflash"]


def test_none_is_plain_decoding_though_a_drafter_is_registered() -> None:
    assert planned("Qwen/Qwen3-8B", "vllm", "h100").deployment.drafts
    assert planned("Qwen/Qwen3-8B", "vllm", "h100", drafter="none").deployment.drafts == ()


@pytest.mark.parametrize(("engine", "flag"), [("llamacpp", "--metrics"), ("sglang", "--enable-metrics")])
def test_drafts_come_with_the_metrics_that_tell_what_was_kept_of_them(engine, flag) -> None:
    found = planned("Qwen/Qwen3-8B", engine, "h100")
    assert flag in write_command(found.deployment)
    assert chosen(found)["metrics"] == "on"
    assert flag not in write_command(planned("Qwen/Qwen3-8B", engine, "h100", drafter="none").deployment)


def test_what_a_chain_begins_with() -> None:
    assert split_searches("ngram-mod,./drafter.gguf") == (("ngram-mod",), "./drafter.gguf")
    assert split_searches("ngram-simple") == (("ngram",), None)
    assert split_searches("./a,b.gguf") == ((), "./a,b.gguf")
    assert split_searches(None) == ((), None)
