"""One engine's deployment as another's: what means the same, what is converted, what is listed, and the way back."""

from dataclasses import replace

import pytest
from deployments import ENGINES, deployments
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdraft.deploy.deployment import Container, Deployment, Draft
from blockdraft.deploy.dialects import read_command, read_with_notes, write_command
from blockdraft.deploy.dialects.flags import flag_table
from blockdraft.deploy.forms import command
from blockdraft.deploy.translation import as_comment, read_origin, restore, restored_source, translate
from blockdraft.deploy.translation.own import SHARED
from blockdraft.deploy.translation.reasons import REASONS

PAIRS = [(source, to) for source in ENGINES for to in ENGINES if source != to]
MANY = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def translated(text: str, to: str) -> Deployment:
    return translate(read_command(text), to).deployment


def kinds(text: str, to: str, kind: str) -> list[str]:
    return [note.subject for note in translate(read_command(text), to).notes if note.kind == kind]


@pytest.mark.parametrize(("source", "to"), PAIRS)
@MANY
@given(data=st.data())
def test_any_translation_is_a_command_of_the_other_engine(source, to, data) -> None:
    deployment = translate(data.draw(deployments(source)), to).deployment
    reading = read_with_notes(write_command(deployment))
    assert [note for note in reading.notes if note.kind in ("outdated", "unknown")] == []
    assert reading.deployment.engine == to


@pytest.mark.parametrize(("source", "to"), PAIRS)
@MANY
@given(data=st.data())
def test_there_and_back_loses_nothing(source, to, data) -> None:
    first = data.draw(deployments(source))
    text = as_comment(first) + command(translate(first, to).deployment)
    found, _ = restore(read_command(text), read_origin(text))
    assert found == first


@pytest.mark.parametrize(("source", "to"), PAIRS)
@MANY
@given(data=st.data())
def test_over_a_third_engine_and_back_loses_nothing(source, to, data) -> None:
    (third,) = {"vllm", "sglang", "llamacpp"} - {source, to}
    first = data.draw(deployments(source))
    current, origin = translate(first, to).deployment, first
    passed_on, _ = restored_source(current, origin, third)
    assert passed_on == first
    found, _ = restore(translate(passed_on, third).deployment, passed_on)
    assert found == first


@pytest.mark.parametrize(("source", "to"), PAIRS)
@MANY
@given(data=st.data())
def test_everything_that_was_said_is_said_or_listed(source, to, data) -> None:
    first = data.draw(deployments(source, contained=False))
    result = translate(first, to)
    told = " ".join(f"{note.subject} {note.text}" for note in result.notes)
    for key in first.own:
        assert key in told or key in result.deployment.own or key == "api-key"
    for draft in first.drafts:
        assert draft.method in told or draft.method in [one.method for one in result.deployment.drafts]
    for name in ("kv_dtype", "quantization", "memory_fraction", "attention_backend", "dtype"):
        value = getattr(first, name)
        if value is not None:
            assert getattr(result.deployment, name) is not None or name in told or (name, value) == ("dtype", "auto")


@pytest.mark.parametrize("engine", ENGINES)
def test_to_its_own_engine_it_stays_as_it_is(engine) -> None:
    deployment = Deployment(engine=engine, target="a/b")
    assert translate(deployment, engine).deployment == deployment


def test_draft_tokens_are_counted_as_each_engine_counts() -> None:
    config = '{"method": "dflash", "model": "c/d", "num_speculative_tokens": 15}'
    vllm = f"vllm serve a/b --speculative-config '{config}'"
    assert "--speculative-num-draft-tokens 16" in command(translated(vllm, "sglang"))
    assert "--spec-draft-n-max 15" in command(translated(vllm, "llamacpp"))
    sglang = "sglang serve --model-path a/b --speculative-algorithm DFLASH --speculative-num-draft-tokens 16"
    assert '"num_speculative_tokens": 15' in command(translated(sglang, "vllm"))
    assert kinds(vllm, "sglang", "converted").count("draft tokens") == 1


@pytest.mark.parametrize(
    ("text", "to", "length"),
    [
        ("llama-server -m m.gguf --spec-type draft-mtp", "vllm", 3),
        ("llama-server -m m.gguf --spec-type ngram-simple", "vllm", 48),
        ("sglang serve --model-path m --speculative-algorithm NGRAM", "vllm", 11),
    ],
)
def test_a_length_that_is_not_said_is_that_of_the_engine_it_came_from(text, to, length) -> None:
    assert translated(text, to).drafts[0].num_draft_tokens == length
    assert "draft tokens" in kinds(text, to, "converted")


@pytest.mark.parametrize("to", ["vllm", "llamacpp"])
def test_a_length_that_only_the_drafter_knows_is_left_to_people(to) -> None:
    text = "sglang serve --model-path m --speculative-algorithm DFLASH --speculative-draft-model-path c/d-GGUF"
    assert "draft tokens (not said)" in kinds(text, to, "by-hand")


def test_a_tree_becomes_its_longest_chain() -> None:
    text = "sglang serve --model-path m --speculative-algorithm EAGLE3 --speculative-draft-model-path c/d "
    text += "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
    assert translated(text, "vllm").drafts == (Draft(method="eagle3", model="c/d", num_draft_tokens=5),)
    assert "--speculative-eagle-topk" in kinds(text, "vllm", "no-equivalent")


def test_contexts_are_divided_and_multiplied_by_slots() -> None:
    assert translated("llama-server -m m.gguf -c 600000 -np 3", "vllm").context_length == 200_000
    text = command(translated("vllm serve m --max-model-len 200000 --max-num-seqs 3", "llamacpp"))
    assert "--ctx-size 600000 --parallel 3" in text


@pytest.mark.parametrize(
    ("text", "to", "port", "host"),
    [
        ("vllm serve m", "sglang", 8000, "0.0.0.0"),
        ("sglang serve --model-path m", "vllm", 30000, "127.0.0.1"),
        ("llama-server -m m.gguf", "sglang", 8080, None),
        ("vllm serve m --port 1 --host ::", "llamacpp", 1, "::"),
        ("docker run lmsysorg/sglang sglang serve --model-path m", "vllm", 30000, None),
    ],
)
def test_clients_find_the_server_where_it_was(text, to, port, host) -> None:
    found = translated(text, to)
    assert (found.port, found.host) == (port, host)


@pytest.mark.parametrize(
    ("text", "to", "own"),
    [
        ("vllm serve m --seed 1", "sglang", {"random-seed": 1}),
        ("vllm serve m --tool-call-parser deepseek_v3", "sglang", {"tool-call-parser": "deepseekv3"}),
        (
            "sglang serve --model-path m --tool-call-parser gpt-oss",
            "vllm",
            {"tool-call-parser": "openai", "enable-auto-tool-choice": True},
        ),
        ("vllm serve m --reasoning-parser openai_gptoss", "sglang", {"reasoning-parser": "gpt-oss"}),
        ("vllm serve m --no-enable-prefix-caching", "sglang", {"disable-radix-cache": True}),
        ("vllm serve m --no-enable-prefix-caching", "llamacpp", {"cache-prompt": False}),
        ("sglang serve --model-path m --disable-radix-cache", "vllm", {"enable-prefix-caching": False}),
        ("vllm serve m --enable-prefix-caching", "sglang", {}),
        ("vllm serve m --enforce-eager", "sglang", {"disable-cuda-graph": True}),
        ("vllm serve m --api-key a b", "llamacpp", {"api-key": "a,b"}),
        ("llama-server -m m.gguf --api-key a,b", "vllm", {"api-key": ("a", "b")}),
        ("vllm serve m --api-key a b", "sglang", {}),
        ("vllm serve m --chat-template ./t.jinja", "llamacpp", {"chat-template-file": "./t.jinja"}),
        ("vllm serve m --chat-template '{{ x }}'", "llamacpp", {}),
        ("vllm serve m --cpu-offload-gb 4.5", "sglang", {}),
        ("vllm serve m --cpu-offload-gb 4", "sglang", {"cpu-offload-gb": 4}),
        ("llama-server -m m.gguf --metrics", "sglang", {"enable-metrics": True}),
        (
            "llama-server -m m.gguf --temp 0.5 --top-k 3",
            "vllm",
            {"override-generation-config": '{"temperature": 0.5, "top_k": 3}'},
        ),
        ("sglang serve --model-path m --preferred-sampling-params '{\"min_p\": 0.1}'", "llamacpp", {"min-p": 0.1}),
        ("vllm serve m --override-generation-config '{\"max_new_tokens\": 5}'", "llamacpp", {}),
        ("sglang serve --model-path m --nnodes 2 --dist-init-addr h:5", "vllm", {"master-addr": "h", "master-port": 5}),
        ("vllm serve m --master-addr h", "sglang", {"dist-init-addr": "h:29501"}),
    ],
)
def test_settings_with_an_equivalent_are_said_in_the_other_words(text, to, own) -> None:
    assert translated(text, to).own == own


@pytest.mark.parametrize(
    ("text", "to", "fills", "value"),
    [
        ("vllm serve m --attention-backend FLASHINFER", "sglang", "attention_backend", "flashinfer"),
        ("sglang serve --model-path m --attention-backend triton", "vllm", "attention_backend", "TRITON_ATTN"),
        ("vllm serve m --kv-cache-dtype fp8_e5m2", "sglang", "kv_dtype", "fp8_e5m2"),
        ("vllm serve m --kv-cache-dtype bfloat16", "llamacpp", "kv_dtype", "bf16"),
        ("llama-server -m m.gguf -ctk f16 -ctv f16", "vllm", "kv_dtype", "f16"),
        ("vllm serve m --quantization awq", "sglang", "quantization", "awq"),
        ("vllm serve m -tp 2", "llamacpp", "tensor_parallel", 2),
        ("vllm serve m -tp 1", "llamacpp", "tensor_parallel", None),
        ("vllm serve m --served-model-name a b", "llamacpp", "served_name", "a,b"),
        ("vllm serve m --served-model-name a b", "sglang", "served_name", "a"),
    ],
)
def test_words_with_one_meaning_are_replaced(text, to, fills, value) -> None:
    assert getattr(translated(text, to), fills) == value


@pytest.mark.parametrize(
    ("text", "to", "subject"),
    [
        ("vllm serve m --attention-backend ROCM_AITER_FA", "sglang", "attention_backend ROCM_AITER_FA"),
        ("vllm serve m --gpu-memory-utilization 0.9", "sglang", "memory_fraction 0.9"),
        ("vllm serve m --kv-cache-dtype float16", "sglang", "kv_dtype f16"),
        ("vllm serve m --kv-cache-dtype fp8", "llamacpp", "kv_dtype fp8"),
        ("llama-server -m m.gguf -ctk q8_0 -ctv q8_0", "sglang", "kv_dtype q8_0"),
        ("vllm serve m --quantization experts_int8", "sglang", "quantization experts_int8"),
        ("vllm serve m --quantization awq", "llamacpp", "quantization awq"),
        ("VLLM_LOGGING_LEVEL=DEBUG vllm serve m", "sglang", "VLLM_LOGGING_LEVEL=DEBUG"),
        ("vllm serve m --tool-call-parser xlam", "sglang", "--tool-call-parser"),
        ("vllm serve m --served-model-name a b", "sglang", "served_name b"),
        ("vllm serve m --no-such-flag", "sglang", "--no-such-flag"),
        ("sglang serve --model-path m --nnodes 2", "llamacpp", "num_nodes 2"),
        ("vllm serve m --spec-method suffix --spec-tokens 4", "sglang", "drafting by suffix"),
        (
            'vllm serve m -sc \'{"method": "ngram", "num_speculative_tokens": 4, "enforce_eager": true}\'',
            "sglang",
            "ngram: enforce_eager True",
        ),
        ("llama-server -m m.gguf --spec-type draft-mtp --spec-draft-p-min 0.5", "vllm", "mtp: p_min 0.5"),
    ],
)
def test_what_has_no_equivalent_is_listed_with_a_reason(text, to, subject) -> None:
    assert subject in kinds(text, to, "no-equivalent")


def test_variables_that_all_engines_read_stay() -> None:
    found = translated("HF_TOKEN=x CUDA_VISIBLE_DEVICES=1 SGLANG_X=1 sglang serve --model-path m", "vllm")
    assert found.environment == {"HF_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "1"}


def test_a_container_gets_the_image_of_the_other_engine() -> None:
    found = translated("docker run --gpus all -p 1:8000 vllm/vllm-openai:v0.33.0 m", "llamacpp")
    assert found.container == Container(image="ghcr.io/ggml-org/llama.cpp:server-cuda", ports=("1:8000",), gpus="all")
    assert found.engine_version is None


def test_models_in_the_wrong_format_are_left_to_people() -> None:
    text = "vllm serve a/b --spec-method dflash --spec-model c/d --spec-tokens 15"
    assert kinds(text, "llamacpp", "by-hand") == ["a/b", "c/d"]
    assert kinds(text, "sglang", "by-hand") == []
    assert kinds("llama-server -hf a/b-GGUF", "vllm", "by-hand") == ["a/b-GGUF"]


ORIGIN = Deployment(
    engine="llamacpp",
    target="a/b-GGUF",
    drafts=(
        Draft(method="dflash", model="c/d-GGUF", num_draft_tokens=8, options={"p_min": 0.5}),
        Draft(method="ngram-mod", num_draft_tokens=64),
    ),
    num_sequences=3,
    context_length=1000,
    own={"cpu-moe": True, "seed": 1},
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"port": 9}, {"port": 9}),
        ({"context_length": 2000}, {"context_length": 2000}),
        ({"own": {}}, {"own": {"cpu-moe": True}}),
        ({"own": {"seed": 2}}, {"own": {"cpu-moe": True, "seed": 2}}),
        ({"target": "x/y"}, {"target": "x/y"}),
        ({"drafts": ()}, {"drafts": ()}),
        (
            {"drafts": (Draft(method="dflash", model="c/d-GGUF", num_draft_tokens=4),)},
            {"drafts": (replace(ORIGIN.drafts[0], num_draft_tokens=4), ORIGIN.drafts[1])},
        ),
        (
            {"drafts": (Draft(method="mtp", num_draft_tokens=2),)},
            {"drafts": (Draft(method="mtp", num_draft_tokens=2),)},
        ),
    ],
)
def test_what_was_changed_since_wins_over_the_origin(change, expected) -> None:
    current = replace(translate(ORIGIN, "vllm").deployment, **change)
    found, _ = restore(current, ORIGIN)
    assert found == replace(ORIGIN, **expected)


def test_a_model_in_the_other_format_gives_way_and_another_one_stays() -> None:
    first = Deployment(engine="vllm", target="a/b", drafts=(Draft(method="dflash", model="c/d", num_draft_tokens=15),))
    there = translate(first, "llamacpp").deployment
    needed = replace(there, target="x/b-GGUF", drafts=(replace(there.drafts[0], model="d.gguf", num_draft_tokens=8),))
    assert restore(needed, first)[0] == replace(first, drafts=(replace(first.drafts[0], num_draft_tokens=8),))
    assert restore(replace(there, target="x/y"), first)[0].target == "x/y"


def test_a_changed_port_of_a_container_leaves_its_image() -> None:
    container = Container(image="my/vllm:1", ports=("1:8000",), mounts=("/a:/b",))
    first = Deployment(engine="vllm", target="a/b", container=container)
    there = translate(first, "sglang").deployment
    changed = replace(there, container=replace(there.container, ports=("2:8000",)))
    assert restore(changed, first)[0].container == replace(container, ports=("2:8000",))


def test_what_is_restored_is_told() -> None:
    _, notes = restore(translate(ORIGIN, "vllm").deployment, ORIGIN)
    assert {note.kind for note in notes} == {"restored"}
    assert "cpu-moe True" in [note.subject for note in notes]
    assert "drafts" in [note.subject for note in notes]


@pytest.mark.parametrize("value", ["it's", "two\nlines", "$HOME", "#"])
def test_the_comment_holds_any_command(value) -> None:
    first = Deployment(engine="vllm", target="m", own={"chat-template": value})
    comment = as_comment(first)
    assert comment.count("\n") == 1
    assert read_origin(f"x\n  {comment}y") == first


def test_a_text_without_the_comment_has_no_origin() -> None:
    assert read_origin("vllm serve m # translated from: x") is None
    assert restored_source(ORIGIN, None, "vllm") == (ORIGIN, [])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tables_name_flags_that_the_engine_has(engine) -> None:
    flags = flag_table(engine)
    keys = [row.key(engine) for row in SHARED if row.key(engine)] + list(REASONS[engine])
    assert {key for key in keys if flags.find(key) is None} == set()
