"""Cases of the rules about caches, quantisation, answers and workloads."""

from dataclasses import replace

from situations import (
    DFLASH,
    DFLASH2,
    DSPARK,
    FOR_MIXTURE,
    HYBRID,
    MIXED,
    MIXTURE,
    UNKNOWN,
    Case,
    llama,
    sglang,
    situation,
)

from blockdraft.deploy.rules import Workload

V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
PAIR = {"target": HYBRID, "draft": MIXED}
DFLASH2_PAIR = {"target": HYBRID, "draft": DFLASH2, "num_drafts": 7}
MTP = {"method": "mtp", "num_drafts": 2, "draft": None}
DSPARK_PAIR = {"method": "dspark", "num_drafts": 7, "draft": DSPARK}
NO_CACHE = {"enable-prefix-caching": False}
DECODE = {"disaggregation-mode": "decode"}
NVFP4 = replace(HYBRID, origin="config.json", quantization="nvfp4")
W8A8 = replace(HYBRID, quantization="fp8", quantized_activations=True)
AWQ = replace(HYBRID, quantization="awq")
NGRAM = {"method": "ngram", "num_drafts": 4, "draft": None}
TOOLS = {"enable-auto-tool-choice": True}

CACHES = [
    Case(rule="P68", hit=situation(), miss=situation(words="--no-enable-prefix-caching")),
    Case(
        rule="P69",
        hit=situation(version="0.32.0", **DFLASH2_PAIR),
        miss=situation(version="0.33.0", **DFLASH2_PAIR),
    ),
    Case(
        rule="P70",
        hit=situation(**PAIR, own={"kv-offloading-size": 8}),
        miss=situation(own={"kv-offloading-size": 8}),
    ),
    Case(
        rule="P71",
        hit=situation(own={"kv-offloading-size": 8}, tensor_parallel=2),
        miss=situation(own={"kv-offloading-size": 8}),
    ),
    Case(
        rule="P72",
        hit=sglang(**PAIR, own={"mamba-radix-cache-strategy": "no_buffer"}),
        miss=sglang(**PAIR, own={"mamba-radix-cache-strategy": "no_buffer", "disable-radix-cache": True}),
    ),
    Case(
        rule="P72a",
        hit=sglang(**PAIR, words="--mamba-scheduler-strategy extra_buffer"),
        miss=sglang(**PAIR, words="--mamba-scheduler-strategy extra_buffer", version="0.5.20"),
    ),
    Case(
        rule="P72b",
        hit=sglang(**PAIR),
        miss=sglang(**PAIR, own={"mamba-radix-cache-strategy": "extra_buffer"}),
    ),
    Case(
        rule="P73",
        hit=sglang(own={**DECODE, "disaggregation-decode-enable-radix-cache": True}),
        miss=sglang(**DSPARK_PAIR, own={**DECODE, "disaggregation-decode-enable-radix-cache": True}),
    ),
    Case(
        rule="P74",
        hit=sglang(own=DECODE, target=replace(UNKNOWN, model_type="qwen4_exp")),
        miss=sglang(own=DECODE),
    ),
]

QUANTISED = [
    Case(
        rule="P75",
        hit=situation(**MTP, target=replace(AWQ, tensor_names=frozenset({"model.layers.63.mlp.up_proj.weight"}))),
        miss=situation(**MTP, target=replace(AWQ, tensor_names=frozenset({"mtp.layers.0.mlp.up_proj.weight"}))),
    ),
    Case(
        rule="P76",
        hit=situation(**MTP, target=NVFP4),
        miss=situation(**MTP, target=replace(NVFP4, unquantized_parts=("re:mtp.*",))),
    ),
    Case(
        rule="P77",
        hit=situation(version="0.29.0", draft=replace(DFLASH, quantization="fp8")),
        miss=situation(version="0.32.0", draft=replace(DFLASH, quantization="fp8")),
    ),
    Case(
        rule="P78",
        hit=situation(version="0.27.1", **DSPARK_PAIR, target=replace(UNKNOWN, model_type="deepseek_v4")),
        miss=situation(version="0.26.0", **DSPARK_PAIR, target=replace(UNKNOWN, model_type="deepseek_v4")),
    ),
    Case(
        rule="P79",
        hit=sglang(**DFLASH2_PAIR | {"target": NVFP4}, tensor_parallel=2),
        miss=sglang(**DFLASH2_PAIR | {"target": replace(NVFP4, unquantized_parts=("lm_head",))}, tensor_parallel=2),
    ),
    Case(
        rule="P80",
        hit=situation(**PAIR | {"target": W8A8}, on="rtx3090"),
        miss=situation(**PAIR | {"target": W8A8}, on="rtx4090"),
    ),
]

CORRECTNESS = [
    Case(
        rule="P81",
        hit=situation(version="0.28.0", env=V2, options={"draft_sampling": "probabilistic"}),
        miss=situation(version="0.29.0", env=V2, options={"draft_sampling": "probabilistic"}),
    ),
    Case(rule="P82", hit=situation(**NGRAM, target=HYBRID, own=NO_CACHE), miss=situation(**NGRAM, own=NO_CACHE)),
    Case(
        rule="P83",
        hit=situation(**NGRAM, options={"n_match_min": 2}, own=TOOLS),
        miss=situation(**NGRAM, options={"n_match_min": 8}, own=TOOLS),
    ),
    Case(
        rule="P84",
        hit=situation(own={"override-generation-config": '{"min_p": 0.05}'}),
        miss=situation(own={"override-generation-config": '{"top_k": 20, "min_p": 0}'}),
    ),
    Case(rule="P85", hit=situation(version="0.27.1", own=TOOLS), miss=situation(version="0.28.0", own=TOOLS)),
    Case(rule="P86", hit=situation(version="0.27.1", **MTP), miss=situation(version="0.27.1")),
    Case(
        rule="P87",
        hit=situation(version="0.31.0", own={"async-scheduling": True}),
        miss=situation(version="0.32.0", own={"async-scheduling": True}),
    ),
    Case(rule="P88", hit=situation(method="suffix"), miss=situation(**NGRAM)),
    Case(
        rule="P89",
        hit=situation(options={"verification": "synthetic"}),
        miss=situation(options={"verification": "block"}),
    ),
    Case(
        rule="P89",
        hit=sglang(own={"speculative-accept-threshold-acc": 0.9}),
        miss=sglang(own={"speculative-accept-threshold-acc": 1.0}),
    ),
    Case(rule="P90", hit=sglang(**MTP, on="cpu"), miss=sglang(**MTP, on="cpu", load=Workload(samples=False))),
    Case(
        rule="P90",
        hit=sglang(**MTP, on="mi300x"),
        miss=sglang(**MTP, on="mi300x", own={"speculative-use-rejection-sampling": True}),
    ),
    Case(
        rule="P91",
        hit=sglang(**DSPARK_PAIR | {"num_drafts": None}, target=replace(UNKNOWN, name="deepseek-ai/DeepSeek-V4-Flash")),
        miss=sglang(**DSPARK_PAIR | {"num_drafts": 4}, target=replace(UNKNOWN, name="deepseek-ai/DeepSeek-V4-Flash")),
    ),
    Case(rule="P97", hit=situation(version="0.32.1", on="cpu"), miss=situation(version="0.33.0", on="cpu")),
    Case(
        rule="P97",
        hit=situation(version="0.32.0", on="cpu"),
        miss=situation(version="0.32.0", on="cpu", load=Workload(samples=False)),
    ),
    Case(
        rule="P92",
        hit=situation(method="draft-model", target=replace(HYBRID, is_multimodal=True)),
        miss=situation(method="mtp", target=replace(HYBRID, is_multimodal=True)),
    ),
]

WORKLOADS = [
    Case(rule="P93", hit=situation(load=Workload(thinking="on")), miss=situation(load=Workload(thinking="off"))),
    Case(
        rule="P93",
        hit=llama(words="--chat-template-kwargs '{\"enable_thinking\": true}'"),
        miss=llama(words="--chat-template-kwargs '{\"enable_thinking\": false}'"),
    ),
    Case(
        rule="P94",
        hit=situation(target=MIXTURE, draft=FOR_MIXTURE, num_sequences=9),
        miss=situation(target=MIXTURE, draft=FOR_MIXTURE, num_sequences=8),
    ),
    Case(
        rule="P95",
        hit=situation(context_length=32768),
        miss=situation(context_length=32768, draft=replace(DFLASH, num_sliding_layers=5, sliding_window=2048)),
    ),
    Case(
        rule="P96",
        hit=situation(load=Workload(dataset="random")),
        miss=situation(load=Workload(dataset="speed_bench")),
    ),
]
