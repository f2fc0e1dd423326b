"""Sixteen configurations as people published them, outdated ones included, with what each of them means.

From a home-lab wiki page and the card of z-lab/Qwen3.6-27B-DFlash (2026); local paths are replaced by short names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blockdraft.deploy.deployment import Container, Deployment, Draft

_HOME = "/" + "root"  # in two parts, as no file may name a path of a machine
_JSON = '{"method": "dflash", "model": "z-lab/Qwen3.6-35B-A3B-DFlash", "num_speculative_tokens": %d}'
_DFLASH_35B = Draft(method="dflash", model="z-lab/Qwen3.6-35B-A3B-DFlash", num_draft_tokens=15)
_DFLASH_35B_8 = Draft(method="dflash", model="z-lab/Qwen3.6-35B-A3B-DFlash", num_draft_tokens=8)
_DFLASH_27B = Draft(method="dflash", model="z-lab/Qwen3.6-27B-DFlash", num_draft_tokens=15)


@dataclass(frozen=True)
class Published:
    """One configuration."""

    number: int
    command: str
    meaning: Deployment
    outdated: tuple[str, ...] = ()
    """What of it is outdated today, by the flag or variable."""
    untranslatable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By engine: subjects that have no equivalent there."""


CONFIGS = (
    Published(
        1,
        f"vllm serve Qwen/Qwen3.6-35B-A3B --speculative-config '{_JSON % 15}' --attention-backend flash_attn "
        "--max-num-batched-tokens 32768",
        Deployment(
            engine="vllm",
            target="Qwen/Qwen3.6-35B-A3B",
            drafts=(_DFLASH_35B,),
            attention_backend="FLASH_ATTN",
            max_batched_tokens=32768,
        ),
        untranslatable={"sglang": (), "llamacpp": ("attention_backend FLASH_ATTN",)},
    ),
    Published(
        2,
        "vllm serve Qwen/Qwen3.6-35B-A3B --spec-method dflash --spec-model z-lab/Qwen3.6-35B-A3B-DFlash "
        "--spec-tokens 8",
        Deployment(engine="vllm", target="Qwen/Qwen3.6-35B-A3B", drafts=(_DFLASH_35B_8,)),
        untranslatable={"sglang": (), "llamacpp": ()},
    ),
    Published(
        3,
        'vllm serve TARGET --speculative-config \'{"method": "dspark", "model": "DSPARK-DRAFT", '
        '"num_speculative_tokens": 15}\'',
        Deployment(
            engine="vllm",
            target="TARGET",
            drafts=(Draft(method="dspark", model="DSPARK-DRAFT", num_draft_tokens=15),),
        ),
        untranslatable={"sglang": (), "llamacpp": ()},
    ),
    Published(
        4,
        "vllm serve Qwen/Qwen3.6-35B-A3B --spec-method dflash --spec-model z-lab/Qwen3.6-35B-A3B-DFlash "
        "--spec-tokens 8 --kv-cache-dtype fp8",
        Deployment(engine="vllm", target="Qwen/Qwen3.6-35B-A3B", drafts=(_DFLASH_35B_8,), kv_dtype="fp8"),
        untranslatable={"sglang": (), "llamacpp": ("kv_dtype fp8",)},
    ),
    Published(
        5,
        f"docker run --rm --gpus all --ipc=host -p 8000:8000 -v CACHE:{_HOME}/.cache/huggingface "
        f"docker.io/vllm/vllm-openai:latest cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit --speculative-config '{_JSON % 8}' "
        "--attention-backend flash_attn --gpu-memory-utilization 0.95",
        Deployment(
            engine="vllm",
            target="cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit",
            drafts=(_DFLASH_35B_8,),
            attention_backend="FLASH_ATTN",
            memory_fraction=0.95,
            container=Container(
                image="docker.io/vllm/vllm-openai:latest",
                ports=("8000:8000",),
                mounts=(f"CACHE:{_HOME}/.cache/huggingface",),
                gpus="all",
                shares_ipc=True,
                other=("--rm",),
            ),
        ),
        untranslatable={
            "sglang": ("memory_fraction 0.95",),
            "llamacpp": ("memory_fraction 0.95", "attention_backend FLASH_ATTN"),
        },
    ),
    Published(
        6,
        'vllm serve Qwen/Qwen3.6-27B --speculative-config \'{"method": "dflash", "model": "z-lab/Qwen3.6-27B-DFlash", '
        '"num_speculative_tokens": 15}\' --attention-backend flash_attn --max-num-batched-tokens 32768',
        Deployment(
            engine="vllm",
            target="Qwen/Qwen3.6-27B",
            drafts=(_DFLASH_27B,),
            attention_backend="FLASH_ATTN",
            max_batched_tokens=32768,
        ),
        untranslatable={"sglang": (), "llamacpp": ("attention_backend FLASH_ATTN",)},
    ),
    Published(
        7,
        "vllm serve MODELS/Qwen3.6-27B-FP8 --host 0.0.0.0 --port 8085 --served-model-name Qwen3.6-27B "
        "--max-model-len 68536 --max-num-seqs 4 --max-num-batched-tokens 32000 --gpu-memory-utilization 0.45 "
        "--enable-prefix-caching --enable-chunked-prefill --enable-auto-tool-choice --tool-call-parser qwen3_coder "
        "--reasoning-parser qwen3 --trust-remote-code --dtype auto --attention-backend FLASH_ATTN "
        '--speculative-config \'{"method":"dflash","model":"MODELS/Qwen3.6-27B-DFlash","num_speculative_tokens":15}\' '
        "--default-chat-template-kwargs '{\"enable_thinking\": false}' "
        '--override-generation-config \'{"temperature": 0.6, "top_p": 0.95, "top_k": 20}\'',
        Deployment(
            engine="vllm",
            target="MODELS/Qwen3.6-27B-FP8",
            drafts=(Draft(method="dflash", model="MODELS/Qwen3.6-27B-DFlash", num_draft_tokens=15),),
            host="0.0.0.0",
            port=8085,
            served_name="Qwen3.6-27B",
            context_length=68536,
            num_sequences=4,
            max_batched_tokens=32000,
            memory_fraction=0.45,
            dtype="auto",
            attention_backend="FLASH_ATTN",
            trust_remote_code=True,
            own={
                "enable-prefix-caching": True,
                "enable-chunked-prefill": True,
                "enable-auto-tool-choice": True,
                "tool-call-parser": "qwen3_coder",
                "reasoning-parser": "qwen3",
                "default-chat-template-kwargs": '{"enable_thinking": false}',
                "override-generation-config": '{"temperature": 0.6, "top_p": 0.95, "top_k": 20}',
            },
        ),
        untranslatable={
            "sglang": ("memory_fraction 0.45",),
            "llamacpp": (
                "memory_fraction 0.45",
                "attention_backend FLASH_ATTN",
                "trust_remote_code True",
                "--tool-call-parser",
                "--reasoning-parser",
            ),
        },
    ),
    Published(
        8,
        "SGLANG_ENABLE_SPEC_V2=1 SGLANG_ENABLE_DFLASH_SPEC_V2=1 SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1 "
        "python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B --speculative-algorithm DFLASH "
        "--speculative-draft-model-path z-lab/Qwen3.6-27B-DFlash --speculative-num-draft-tokens 16 --tp-size 1 "
        "--attention-backend fa3 --mem-fraction-static 0.75 --mamba-scheduler-strategy extra_buffer "
        "--trust-remote-code",
        Deployment(
            engine="sglang",
            target="Qwen/Qwen3.6-27B",
            drafts=(_DFLASH_27B,),
            tensor_parallel=1,
            attention_backend="fa3",
            memory_fraction=0.75,
            trust_remote_code=True,
            environment={
                "SGLANG_ENABLE_SPEC_V2": "1",
                "SGLANG_ENABLE_DFLASH_SPEC_V2": "1",
                "SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1",
            },
            own={"mamba-radix-cache-strategy": "extra_buffer"},
        ),
        outdated=("--mamba-scheduler-strategy", "SGLANG_ENABLE_SPEC_V2", "SGLANG_ENABLE_DFLASH_SPEC_V2"),
        untranslatable={
            "vllm": (
                "memory_fraction 0.75",
                "SGLANG_ENABLE_SPEC_V2=1",
                "SGLANG_ENABLE_DFLASH_SPEC_V2=1",
                "SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1",
                "--mamba-radix-cache-strategy",
            ),
            "llamacpp": (
                "trust_remote_code True",
                "memory_fraction 0.75",
                "attention_backend fa3",
                "SGLANG_ENABLE_SPEC_V2=1",
                "SGLANG_ENABLE_DFLASH_SPEC_V2=1",
                "SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1",
                "--mamba-radix-cache-strategy",
            ),
        },
    ),
    Published(
        9,
        "llama-server --hf-repo TARGET-GGUF --spec-draft-hf DFLASH-GGUF --spec-type draft-dflash,ngram-mod",
        Deployment(
            engine="llamacpp",
            target="TARGET-GGUF",
            drafts=(Draft(method="dflash", model="DFLASH-GGUF"), Draft(method="ngram-mod")),
        ),
        untranslatable={"vllm": ("drafting by ngram-mod",), "sglang": ("drafting by ngram-mod",)},
    ),
    Published(
        10,
        "llama-server --hf-repo TARGET-GGUF --spec-draft-hf DRAFT-GGUF --spec-type draft-dflash --spec-draft-n-max 16",
        Deployment(
            engine="llamacpp",
            target="TARGET-GGUF",
            drafts=(Draft(method="dflash", model="DRAFT-GGUF", num_draft_tokens=16),),
        ),
        untranslatable={"vllm": (), "sglang": ()},
    ),
    Published(
        11,
        "llama-server --hf-repo TARGET-GGUF --spec-draft-hf DRAFT-GGUF --spec-type draft-dspark",
        Deployment(engine="llamacpp", target="TARGET-GGUF", drafts=(Draft(method="dspark", model="DRAFT-GGUF"),)),
        untranslatable={"vllm": (), "sglang": ()},
    ),
    Published(
        12,
        "llama-server --hf-repo TARGET-WITH-MTP --spec-type draft-mtp --spec-draft-n-max 2",
        Deployment(engine="llamacpp", target="TARGET-WITH-MTP", drafts=(Draft(method="mtp", num_draft_tokens=2),)),
        untranslatable={"vllm": (), "sglang": ()},
    ),
    Published(
        13,
        "llama-server -m /models/Qwen3.6-35B-A3B-Q6_K.gguf --port 7770 -np 3 -c 600000 --cpu-moe --spec-type ngram-mod "
        "--spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 --spec-ngram-mod-n-max 64",
        Deployment(
            engine="llamacpp",
            target="/models/Qwen3.6-35B-A3B-Q6_K.gguf",
            drafts=(Draft(method="ngram-mod", num_draft_tokens=64, options={"n_match": 24, "n_min": 48}),),
            port=7770,
            num_sequences=3,
            context_length=200000,
            own={"cpu-moe": True},
        ),
        untranslatable={
            "vllm": ("drafting by ngram-mod", "--cpu-moe"),
            "sglang": ("drafting by ngram-mod", "--cpu-moe"),
        },
    ),
    Published(
        14,
        "llama-server -m /models/Qwen3.6-27B-Q8_0.gguf -md /models/Qwen3.6-27B-DFlash-Q8_0.gguf "
        "--spec-type draft-dflash --spec-draft-n-max 8 --device ROCm0 --gpu-layers all --fit off "
        "-ctk q8_0 -ctv f16 -c 602100 -np 3 -b 2048 -ub 512",
        Deployment(
            engine="llamacpp",
            target="/models/Qwen3.6-27B-Q8_0.gguf",
            drafts=(Draft(method="dflash", model="/models/Qwen3.6-27B-DFlash-Q8_0.gguf", num_draft_tokens=8),),
            num_sequences=3,
            context_length=200700,
            max_batched_tokens=2048,
            kv_dtype="q8_0",
            value_dtype="f16",
            own={"device": "ROCm0", "gpu-layers": "all", "fit": "off", "ubatch-size": 512},
        ),
        untranslatable=dict.fromkeys(
            ("vllm", "sglang"),
            ("kv_dtype q8_0 with values in f16", "--device", "--gpu-layers", "--fit", "--ubatch-size"),
        ),
    ),
)

REFUSED = {
    15: (
        "llama-bench -m Qwen3.6-27B-Q4_0.gguf -dev SYCL0/SYCL1 -ngl 99 -p 0 -n 512 -sm tensor -ts 1/1 -b 512 -ub 64 "
        "-ctk f16 -ctv f16 -t 8 --poll 50 -fa 1 -r 3 -o jsonl",
        ("llama-bench", "serves none", "llama-server"),
    ),
    16: (
        "test_dflash Qwen3.6-27B-Q4_K_M.gguf z-lab/Qwen3.6-27B-DFlash --fast-rollback --ddtree --ddtree-budget=22 "
        "--max-ctx=1024",
        ("test_dflash", "Lucebox", "--spec-type draft-dflash"),
    ),
}
"""By number: a command that starts no server, and what the refusal must name."""
