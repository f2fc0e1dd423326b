"""llama.cpp's command line: files and repositories, slots, lists of types, variables, removed flags."""

import pytest

from blockdraft.deploy.deployment import Deployment, Draft
from blockdraft.deploy.dialects import read_command, read_with_notes, write_command
from blockdraft.errors import ConfigError

START = "llama-server -m m.gguf"


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [
        ("-m m.gguf", "m.gguf", ("--model", "m.gguf")),
        ("-m models/x", "./models/x", ("--model", "./models/x")),
        ("-m /models/x", "/models/x", ("--model", "/models/x")),
        ("-hf a/b:Q8_0", "a/b:Q8_0", ("--hf-repo", "a/b:Q8_0")),
        ("-hf a/b.gguf", "hf:a/b.gguf", ("--hf-repo", "a/b.gguf")),
        ("-mu https://x/y.gguf", "https://x/y.gguf", ("--model-url", "https://x/y.gguf")),
        ("-dr gemma3", "docker:gemma3", ("--docker-repo", "gemma3")),
    ],
)
def test_a_model_is_a_file_a_repository_or_an_address(text, target, words) -> None:
    deployment = read_command(f"llama-server {text}")
    assert deployment.target == target
    assert write_command(deployment)[1:3] == words


@pytest.mark.parametrize(
    ("text", "context", "slots", "own"),
    [
        ("-c 600000 -np 3", 200_000, 3, {}),
        ("-c 8192", 8192, None, {}),
        ("-c 8192 -np 4 --kv-unified", 8192, 4, {"kv-unified": True}),
        ("-c 8192 -np 4 -no-kvu", 2048, 4, {"kv-unified": False}),
        ("-c 0 -np 4", None, 4, {"ctx-size": 0}),
        ("-c 8192 -np -1", 8192, None, {"parallel": -1}),
        ("-c 100 -np 3", 33, 3, {}),
    ],
)
def test_the_context_is_divided_by_the_slots(text, context, slots, own) -> None:
    deployment = read_command(f"{START} {text}")
    assert (deployment.context_length, deployment.num_sequences) == (context, slots)
    assert deployment.own == own
    assert read_command(write_command(deployment)) == deployment


@pytest.mark.parametrize(
    ("text", "keys", "values"),
    [
        ("-ctk q8_0 -ctv f16", "q8_0", "f16"),
        ("-ctk q8_0 -ctv q8_0", "q8_0", None),
        ("-ctk q8_0", "q8_0", "f16"),
        ("-ctv q4_0", "f16", "q4_0"),
        ("", None, None),
    ],
)
def test_values_are_named_where_they_differ_from_keys(text, keys, values) -> None:
    deployment = read_command(f"{START} {text}")
    assert (deployment.kv_dtype, deployment.value_dtype) == (keys, values)


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        (
            "-md d.gguf --spec-type draft-dflash --spec-draft-n-max 8 --draft-p-min 0.5",
            (Draft(method="dflash", model="d.gguf", num_draft_tokens=8, options={"p_min": 0.5}),),
        ),
        ("--spec-type draft-mtp", (Draft(method="mtp"),)),
        (
            "--spec-type ngram-mod,draft-mtp --spec-type ngram-simple --spec-ngram-simple-size-m 8",
            (Draft(method="ngram-mod"), Draft(method="mtp"), Draft(method="ngram", num_draft_tokens=8)),
        ),
        (
            "--spec-default",
            (Draft(method="ngram-mod", num_draft_tokens=64, options={"n_match": 24, "n_min": 48}),),
        ),
        ("--spec-type none", ()),
        ("--spec-type ngram-mod,none", ()),
        (
            "--spec-type ngram-map-k --spec-ngram-map-k-min-hits 2",
            (Draft(method="ngram", options={"variant": "ngram-map-k", "min_hits": 2}),),
        ),
        (
            "-hfd a/b --spec-type draft-simple -ctkd q8_0 -ctvd f16 -ngld 99 -td 4",
            (
                Draft(
                    method="draft-model",
                    model="a/b",
                    kv_dtype="q8_0",
                    options={"value_dtype": "f16", "gpu_layers": 99, "threads": 4},
                ),
            ),
        ),
    ],
)
def test_a_list_of_types_is_several_drafts(text, drafts) -> None:
    assert read_command(f"{START} {text}").drafts == drafts


@pytest.mark.parametrize(
    ("model", "method", "told"),
    [
        ("x-dflash.gguf", "dflash", "tells"),
        ("x-dspark.gguf", "dspark", "tells"),
        ("small.gguf", "draft-model", "nothing"),
    ],
)
def test_a_draft_model_without_a_type_is_told_by_its_name(model, method, told) -> None:
    reading = read_with_notes(f"{START} -md {model}")
    assert reading.deployment.drafts == (Draft(method=method, model=model),)
    assert [told in note.text for note in reading.notes] == [True]


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        (
            "-md d-dflash.gguf --draft-max 8 --draft-min 2",
            (Draft(method="dflash", model="d-dflash.gguf", num_draft_tokens=8, options={"n_min": 2}),),
        ),
        ("-md d-dflash.gguf --draft 8", (Draft(method="dflash", model="d-dflash.gguf", num_draft_tokens=8),)),
        ("--draft-model d-dflash.gguf", (Draft(method="dflash", model="d-dflash.gguf"),)),
        (
            "--spec-type ngram-mod --draft-max 32 --draft-min 4",
            (Draft(method="ngram-mod", num_draft_tokens=32, options={"n_min": 4}),),
        ),
        (
            "--spec-type ngram-simple --spec-ngram-size-n 6 --spec-ngram-size-m 12 --spec-ngram-min-hits 2",
            (Draft(method="ngram", num_draft_tokens=12, options={"n_match": 6, "min_hits": 2}),),
        ),
    ],
)
def test_removed_flags_are_read_as_their_successors_and_told(text, drafts) -> None:
    reading = read_with_notes(f"{START} {text}")
    assert reading.deployment.drafts == drafts
    outdated = [note.subject for note in reading.notes if note.kind == "outdated"]
    assert outdated == [word for word in text.split() if word.startswith(("--draft", "--spec-ngram"))]


def test_variables_say_flags_and_give_way_to_them() -> None:
    deployment = read_command(
        "LLAMA_ARG_CTX_SIZE=4096 LLAMA_ARG_PORT=1 LLAMA_ARG_SPEC_TYPE=ngram-mod LLAMA_ARG_JINJA=0 LLAMA_OTHER=1 "
        f"{START} --port 2"
    )
    assert (deployment.context_length, deployment.port) == (4096, 2)
    assert deployment.drafts == (Draft(method="ngram-mod"),)
    assert deployment.own == {"jinja": False}
    assert deployment.environment == {"LLAMA_OTHER": "1"}


@pytest.mark.parametrize("shares", ["1,1", "1/1"])
def test_equal_shares_of_tensors_are_tensor_parallelism(shares) -> None:
    deployment = read_command(f"{START} -sm tensor -ts {shares}")
    assert deployment.tensor_parallel == 2
    assert deployment.own == {}
    assert read_command(f"{START} -sm tensor -ts 3,1").own == {"split-mode": "tensor", "tensor-split": "3,1"}


def test_repeated_flags_are_kept_and_written_again() -> None:
    deployment = read_command(f"{START} -ot a=CPU -ot b=CPU")
    assert deployment.own == {"override-tensor": ("a=CPU", "b=CPU")}
    assert write_command(deployment)[-4:] == ("--override-tensor", "a=CPU", "--override-tensor", "b=CPU")


def test_settings_of_types_that_do_not_draft_are_kept_and_told() -> None:
    reading = read_with_notes(f"{START} --spec-type ngram-mod --spec-ngram-simple-size-n 4")
    assert reading.deployment.own == {"spec-ngram-simple-size-n": 4}
    assert [note.subject for note in reading.notes] == ["--spec-ngram-simple-size-n"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("llama-server --port 1", "names no model"),
        ("llama-server -m a.gguf -hf b/c", "names two models"),
        (f"{START} x", "takes no word 'x'"),
        (f"{START} --ctx-size=4096", "--ctx-size as a word of its own"),
        (f"{START} --spec-type draft-dflsh", "'draft-dflsh' .did you mean 'draft-dflash'"),
        (f"{START} -c many", "-c takes a whole number"),
        (f"{START} --spec-type draft-mtp --spec-draft-n-max few", "--spec-draft-n-max"),
    ],
)
def test_wrong_values_are_errors_that_name_the_flag(text, named) -> None:
    with pytest.raises(ConfigError, match=named):
        read_command(text)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"memory_fraction": 0.5}, "memory_fraction"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"drafts": (Draft(method="suffix"),)}, "suffix"),
        ({"drafts": (Draft(method="mtp", attention_backend="x"),)}, "attention_backend"),
        ({"drafts": (Draft(method="dflash", model="a/b"), Draft(method="dspark", model="c/d"))}, "one model"),
        (
            {"drafts": (Draft(method="mtp", num_draft_tokens=2), Draft(method="dflash", num_draft_tokens=3))},
            "--spec-draft-n-max",
        ),
    ],
)
def test_what_llamacpp_cannot_say_is_refused_when_written(fields, named) -> None:
    with pytest.raises(ConfigError, match=named):
        write_command(Deployment(engine="llamacpp", target="m.gguf", **fields))
