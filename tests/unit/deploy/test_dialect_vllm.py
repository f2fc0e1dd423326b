"""vLLM's command line: the JSON and the short flags, old words, units, and what is wrong."""

import json

import pytest

from blockdraft.deploy.deployment import Deployment, Draft
from blockdraft.deploy.dialects import read_command, read_with_notes, write_command
from blockdraft.errors import ConfigError


def draft_of(text: str) -> Draft:
    (draft,) = read_command(f"vllm serve m {text}").drafts
    return draft


def config(**keys: object) -> str:
    return f"--speculative-config '{json.dumps(keys)}'"


@pytest.mark.parametrize(
    "text",
    [
        config(method="dflash", model="c/d", num_speculative_tokens=15),
        '-sc \'{"method": "dflash", "model": "c/d", "num-speculative-tokens": 15}\'',
        "--spec-method dflash --spec-model c/d --spec-tokens 15",
        '--spec-method=dflash --speculative_config \'{"model": "c/d", "num_speculative_tokens": 15}\'',
        "--speculative-config.method dflash --speculative-config.model c/d -sc.num_speculative_tokens 15".replace(
            "-sc.", "--speculative-config."
        ),
    ],
)
def test_all_ways_to_say_a_draft_mean_the_same(text) -> None:
    assert draft_of(text) == Draft(method="dflash", model="c/d", num_draft_tokens=15)


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("x/Qwen-DFlash-b16", "dflash"),
        ("x/qwen-dspark", "dspark"),
        ("x/eagle3-head", "eagle3"),
        ("x/EAGLE-3-head", "eagle"),  # vLLM looks for `eagle-` first
        ("x/small", "draft-model"),
    ],
)
def test_a_method_that_is_not_said_is_told_by_the_name_as_vllm_does(model, method) -> None:
    reading = read_with_notes(f"vllm serve m {config(model=model, num_speculative_tokens=3)}")
    assert reading.deployment.drafts[0].method == method
    assert [note.subject for note in reading.notes] == ["method"]


def test_the_model_ngram_is_a_method() -> None:
    assert draft_of(config(model="[ngram]", num_speculative_tokens=3)) == Draft(method="ngram", num_draft_tokens=3)


@pytest.mark.parametrize(
    ("text", "fills", "value"),
    [
        ("--max-model-len 32k", "context_length", 32_000),
        ("--max-model-len 32K", "context_length", 32_768),
        ("--max-model-len 25.6k", "context_length", 25_600),
        ("--max_num_seqs=4", "num_sequences", 4),
        ("-tp 2", "tensor_parallel", 2),
        ("-q awq", "quantization", "awq"),
        ("--dtype half", "dtype", "float16"),
        ("--kv-cache-dtype fp8_e4m3", "kv_dtype", "fp8"),
        ("--kv-cache-dtype bfloat16", "kv_dtype", "bf16"),
        ("--attention-backend flashinfer", "attention_backend", "FLASHINFER"),
        ("--device-memory-utilization 0.5", "memory_fraction", 0.5),
        ("--served-model-name a b", "served_name", "a,b"),
        ("--trust-remote-code", "trust_remote_code", True),
        ("--no-trust-remote-code", "trust_remote_code", False),
        ("--port 1 --port 2", "port", 2),
    ],
)
def test_a_flag_fills_its_field_in_the_shared_unit(text, fills, value) -> None:
    assert getattr(read_command(f"vllm serve m {text}"), fills) == value


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("--max-model-len auto", {"max-model-len": "auto"}),
        ("--no-enable-prefix-caching", {"enable-prefix-caching": False}),
        ("--disable-prefix-caching", {"enable-prefix-caching": False}),
        ("-ep", {"enable-expert-parallel": True}),
        ("--block-size 32", {"block-size": 32}),
        ("--api-key a b", {"api-key": ("a", "b")}),
        ("--compilation-config.level 3", {"compilation-config": '{"level": 3}'}),
    ],
)
def test_what_only_vllm_has_is_kept_by_its_long_flag(text, own) -> None:
    assert read_command(f"vllm serve m {text}").own == own


@pytest.mark.parametrize(
    ("text", "subject", "own", "draft"),
    [
        ("--swap-space 4", "--swap-space", {}, None),
        ("--enable-reasoning", "--enable-reasoning", {}, None),
        ("--worker-use-ray", "--worker-use-ray", {"distributed-executor-backend": "ray"}, None),
        (
            "--speculative-model c/d --num-speculative-tokens 3",
            "--speculative-model",
            {},
            Draft(method="draft-model", model="c/d", num_draft_tokens=3),
        ),
        (
            "--speculative-model [ngram] --num-speculative-tokens 3 --ngram-prompt-lookup-max 4",
            "--speculative-model",
            {},
            Draft(method="ngram", num_draft_tokens=3, options={"n_match": 4}),
        ),
        (config(method="qwen3_5_mtp"), "qwen3_5_mtp", {}, Draft(method="mtp")),
        (
            config(method="ngram", num_speculative_tokens=3, rejection_sample_method="strict"),
            "rejection_sample_method strict",
            {},
            Draft(method="ngram", num_draft_tokens=3),
        ),
        (
            config(method="eagle3", model="c/d", rejection_sample_method="probabilistic"),
            "rejection_sample_method probabilistic",
            {},
            Draft(method="eagle3", model="c/d", options={"draft_sampling": "probabilistic"}),
        ),
        (config(method="ngram", disable_by_batch_size=4), "disable_by_batch_size", {}, Draft(method="ngram")),
    ],
)
def test_what_is_outdated_is_translated_and_told(text, subject, own, draft) -> None:
    reading = read_with_notes(f"vllm serve m {text}")
    assert subject in [note.subject for note in reading.notes if note.kind == "outdated"]
    assert reading.deployment.own == own
    assert reading.deployment.drafts == ((draft,) if draft else ())


def test_the_old_variable_for_the_backend_gives_way_to_the_flag() -> None:
    assert read_command("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m").attention_backend == "FLASHINFER"
    both = read_with_notes("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m --attention-backend FLASH_ATTN")
    assert both.deployment.attention_backend == "FLASH_ATTN"
    assert [note.kind for note in both.notes] == ["outdated"]


@pytest.mark.parametrize("method", ["medusa", "custom_class", "extract_hidden_states"])
def test_a_method_without_a_name_here_is_kept_as_it_is(method) -> None:
    said = f'{{"method": "{method}", "num_speculative_tokens": 3}}'
    reading = read_with_notes(f"vllm serve m --speculative-config '{said}'")
    assert reading.deployment.drafts == ()
    assert write_command(reading.deployment)[-2:] == ("--speculative-config", said)
    assert method in [note.subject for note in reading.notes]


def test_unknown_flags_and_keys_are_kept_and_told_with_the_nearest_name() -> None:
    reading = read_with_notes(
        f"vllm serve m --max-num-seq 4 --flying {config(method='ngram', synthetic_acceptance_rate=0.5)}"
    )
    assert reading.deployment.own == {"max-num-seq": 4, "flying": True}
    assert reading.deployment.drafts[0].options == {"synthetic_acceptance_rate": 0.5}
    told = {note.subject: note.text for note in reading.notes if note.kind == "unknown"}
    assert set(told) == {"--max-num-seq", "--flying", "synthetic_acceptance_rate"}
    assert "'--max-num-seqs'" in told["--max-num-seq"]
    assert "'synthetic_acceptance_rates'" in told["synthetic_acceptance_rate"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("--port", "--port lacks its value"),
        ("--port http", "--port takes a whole number, not 'http'"),
        ("--max-model-len 1.5K", "--max-model-len"),
        ("--gpu-memory-utilization most", "--gpu-memory-utilization takes a number"),
        ("--trust-remote-code=yes", "--trust-remote-code takes no value"),
        ("-sc {", "-sc is not valid JSON"),
        ("-sc '[1]'", "-sc must be a JSON object"),
        (config(method="dflsh"), "'dflsh' .did you mean 'dflash'"),
        (config(num_speculative_tokens=3), "neither a method nor a model"),
        (config(method="ngram", num_speculative_tokens="four"), "num_speculative_tokens"),
        (config(method="ngram", num_speculative_tokens=0), "num_speculative_tokens"),
        (f"{config(method='ngram')} --spec-method ngram", "--spec-method and the key 'method'"),
        ("other", "names 2 models .m, other"),
    ],
)
def test_wrong_values_are_errors_that_name_the_flag(text, named) -> None:
    with pytest.raises(ConfigError, match=named):
        read_command(f"vllm serve m {text}")


@pytest.mark.parametrize(
    ("deployment", "named"),
    [
        (Deployment(engine="vllm", target="m", value_dtype="f16"), "value_dtype"),
        (Deployment(engine="vllm", target="m", drafts=(Draft(method="ngram-mod"),)), "ngram-mod"),
        (Deployment(engine="vllm", target="m", drafts=(Draft(method="ngram"), Draft(method="mtp"))), "one method"),
        (Deployment(engine="vllm", target="m", own={"headless": False}), "--headless"),
    ],
)
def test_what_vllm_cannot_say_is_refused_when_written(deployment, named) -> None:
    with pytest.raises(ConfigError, match=named):
        write_command(deployment)


def test_references_of_the_hub_are_written_without_their_prefix() -> None:
    deployment = Deployment(engine="vllm", target="hf:a/b", drafts=(Draft(method="dflash", model="hf:c/d"),))
    assert write_command(deployment)[2] == "a/b"
    assert '"model": "c/d"' in write_command(deployment)[-1]
