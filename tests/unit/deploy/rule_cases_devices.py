"""Cases of the rules about attention backends, devices, batches, memory and graphs."""

from dataclasses import replace

from situations import DENSE, DFLASH, DFLASH2, DSPARK, HYBRID, MIXED, UNKNOWN, Case, sglang, situation

V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
ALL_SLIDING = replace(DFLASH, num_sliding_layers=5, sliding_window=2048)
GEMMA = replace(UNKNOWN, model_type="gemma4")
TAPPED = replace(DENSE, origin="config.json")
MULTI = {"dspark": {"method": "dspark", "draft": DSPARK, "num_drafts": 7}}["dspark"]

BACKENDS = [
    Case(
        rule="P34",
        hit=situation(version="0.23.0", attention_backend="FLASHINFER"),
        miss=situation(version="0.23.0", attention_backend="FLASHINFER", draft=ALL_SLIDING),
    ),
    Case(rule="P35", hit=situation(version="0.23.0", target=GEMMA), miss=situation(version="0.24.0", target=GEMMA)),
    Case(
        rule="P36",
        hit=situation(version="0.20.0", target=HYBRID, draft=MIXED, on="rtx3090"),
        miss=situation(version="0.20.0", target=HYBRID, draft=MIXED, on="rtx4090"),
    ),
    Case(
        rule="P37",
        hit=situation(version="0.20.1", kv_dtype="fp8"),
        miss=situation(version="0.20.1", kv_dtype="bf16"),
    ),
    Case(
        rule="P38",
        hit=situation(on="rtx3090", kv_dtype="fp8", attention_backend="TRITON_ATTN"),
        miss=situation(on="rtx4090", kv_dtype="fp8", attention_backend="TRITON_ATTN"),
    ),
    Case(
        rule="P39",
        hit=situation(on="rtx3090", kv_dtype="fp8", attention_backend="FLASH_ATTN"),
        miss=situation(on="h100", kv_dtype="fp8", attention_backend="FLASH_ATTN"),
    ),
    Case(  # only the drafter's keys and values are in FP8 on that backend
        rule="P39",
        hit=situation(
            on="rtx3090",
            kv_dtype="fp8",
            attention_backend="FLASHINFER",
            draft_fields={"attention_backend": "FLASH_ATTN"},
        ),
        miss=situation(
            on="rtx3090",
            kv_dtype="fp8",
            attention_backend="FLASHINFER",
            draft_fields={"attention_backend": "FLASH_ATTN", "kv_dtype": "auto"},
        ),
    ),
    Case(
        rule="P39a",
        hit=situation(on="rtx3090", kv_dtype="fp8"),
        miss=situation(on="rtx3090", kv_dtype="fp8", attention_backend="FLASHINFER"),
    ),
    Case(
        rule="P40",
        hit=situation(on="dgx-spark", attention_backend="FLASH_ATTN"),
        miss=situation(on="rtx5090", attention_backend="FLASH_ATTN"),
    ),
    Case(
        rule="P41",
        hit=situation(version="0.24.0", env=V2, draft_fields={"attention_backend": "TRITON_ATTN"}),
        miss=situation(version="0.24.0", env=V1, draft_fields={"attention_backend": "TRITON_ATTN"}),
    ),
    Case(
        rule="P42",
        hit=situation(on="rtx4090", attention_backend="FLASH_ATTN", draft=replace(DFLASH, has_sinks=True)),
        miss=situation(on="h100", attention_backend="FLASH_ATTN", draft=replace(DFLASH, has_sinks=True)),
    ),
    Case(
        rule="P43",
        hit=situation(on="strix-halo"),
        miss=situation(on="strix-halo", attention_backend="ROCM_ATTN"),
    ),
    Case(
        rule="P44",
        hit=situation(target=HYBRID, draft=MIXED, env=V1),
        miss=situation(target=HYBRID, draft=MIXED, env=V2),
    ),
    Case(
        rule="P45",
        hit=situation(draft=replace(ALL_SLIDING, origin="config.json", sliding_window=None)),
        miss=situation(draft=replace(ALL_SLIDING, origin="config.json")),
    ),
    Case(rule="P46", hit=sglang(target=replace(TAPPED, model_type="falcon")), miss=sglang(target=TAPPED)),
    Case(
        rule="P47",
        hit=situation(target=replace(UNKNOWN, model_type="qwen4_exp")),
        miss=situation(target=replace(UNKNOWN, model_type="qwen4_exp"), method="mtp"),
    ),
    Case(rule="P48", hit=sglang(**MULTI, on="rtx5090"), miss=sglang(**MULTI, on="dgx-spark")),
    Case(
        rule="P49",
        hit=sglang(**MULTI, on="rtx5090", env={"SGLANG_RAGGED_VERIFY_MODE": "compact"}),
        miss=sglang(**MULTI, on="rtx5090", env={"SGLANG_RAGGED_VERIFY_MODE": "static"}),
    ),
    Case(rule="P50", hit=sglang(on="cpu"), miss=sglang(on="cpu", method="ngram")),
    Case(
        rule="P51",
        hit=sglang(method=None, own={"speculative-algorithm": "UNO"}, tensor_parallel=2),
        miss=sglang(method=None, own={"speculative-algorithm": "UNO"}, tensor_parallel=1),
    ),
]

BUDGETS = [
    Case(
        rule="M1", hit=situation(on="rtx3090", context_length=40960), miss=situation(on="rtx3090", context_length=8192)
    ),
    Case(
        rule="M2",
        hit=situation(on="rtx3090"),
        miss=situation(on="rtx3090", context_length=8192),
    ),
    Case(  # 2048 - 15 x 256 = -1792, the numbers of the report
        rule="P52",
        hit=situation(version="0.27.1", num_drafts=16, max_batched_tokens=2048, num_sequences=256),
        miss=situation(version="0.27.1", num_drafts=16, max_batched_tokens=2048, num_sequences=136),
    ),
    Case(  # vllm-ascend: 120 - 6 x 60 = -240
        rule="P52",
        hit=situation(version="0.26.0", **MULTI, max_batched_tokens=120, num_sequences=60),
        miss=situation(version="0.28.0", **MULTI, max_batched_tokens=120, num_sequences=60),
    ),
    Case(
        rule="P53",
        hit=situation(version="0.32.0", max_batched_tokens=2048, num_sequences=129),
        miss=situation(version="0.32.0", max_batched_tokens=2048, num_sequences=128),
    ),
    Case(
        rule="P54",
        hit=situation(max_batched_tokens=2048, num_sequences=129),
        miss=situation(max_batched_tokens=2048, num_sequences=128),
    ),
    Case(
        rule="P55",
        hit=situation(max_batched_tokens=8191, num_sequences=1),
        miss=situation(max_batched_tokens=8192, num_sequences=1),
    ),
    Case(
        rule="P55a",
        hit=situation(max_batched_tokens=32768),
        miss=situation(max_batched_tokens=32768, version="0.27.1"),
    ),
    Case(
        rule="P56",
        hit=situation(options={"draft_sampling": "probabilistic"}),
        miss=situation(options={"draft_sampling": "greedy"}),
    ),
    Case(
        rule="P57",
        hit=situation(draft=DFLASH2, target=HYBRID, num_drafts=7, on="rtx3090x4"),
        miss=situation(draft=DFLASH2, target=HYBRID, num_drafts=7, on="rtx3090x4", memory_fraction=0.8),
    ),
    Case(rule="P58", hit=situation(target=HYBRID, draft=MIXED), miss=situation(target=HYBRID, method=None)),
    Case(
        rule="P59",
        hit=situation(target=HYBRID, draft=MIXED, version="0.32.0"),
        miss=situation(target=DENSE, version="0.32.0"),
    ),
    Case(
        rule="P60",
        hit=situation(version="0.22.1", num_sequences=16),
        miss=situation(version="0.22.1", num_sequences=16, own={"enforce-eager": True}),
    ),
    Case(
        rule="P61",
        hit=situation(own={"enable-lora": True}, max_batched_tokens=2048, num_sequences=129),
        miss=situation(own={"enable-lora": True}, max_batched_tokens=2064, num_sequences=129),
    ),
    Case(rule="P62", hit=sglang(), miss=sglang(num_sequences=48)),
    Case(
        rule="P63",
        hit=sglang(on="rtx3090", memory_fraction=0.97),
        miss=sglang(on="rtx3090", memory_fraction=0.9),
    ),
    Case(
        rule="P64",
        hit=sglang(own={"speculative-draft-window-size": 8}),
        miss=sglang(own={"speculative-draft-window-size": 16}),
    ),
    Case(
        rule="P64",
        hit=sglang(own={"speculative-draft-sink-size": 4}),
        miss=sglang(own={"speculative-draft-sink-size": 0}),
    ),
    Case(
        rule="P65",
        hit=situation(options={"num_speculative_tokens_per_batch_size": [[1, 8, 7]]}, own={"data-parallel-size": 2}),
        miss=situation(options={"num_speculative_tokens_per_batch_size": [[1, 8, 7]]}),
    ),
    Case(
        rule="P66",
        hit=situation(**MULTI, options={"adaptive_verification": True}, own={"enforce-eager": True}),
        miss=situation(**MULTI, options={"adaptive_verification": True}),
    ),
    Case(rule="P67", hit=situation(pipeline_parallel=2), miss=situation(pipeline_parallel=2, method="ngram")),
]
