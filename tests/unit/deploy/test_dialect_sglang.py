"""SGLang's command line: draft tokens that count the anchor, chains and trees, and what is wrong."""

import pytest

from blockdraft.deploy.deployment import Deployment, Draft
from blockdraft.deploy.dialects import read_command, read_with_notes, write_command
from blockdraft.errors import ConfigError

START = "python -m sglang.launch_server --model-path m"
N = "--speculative-num-draft-tokens"


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        (f"DFLASH {N} 16", Draft(method="dflash", num_draft_tokens=15)),
        ("DFLASH --speculative-dflash-block-size 16", Draft(method="dflash", num_draft_tokens=15)),
        (f"DFLASH {N} 16 --speculative-dflash-block-size 16", Draft(method="dflash", num_draft_tokens=15)),
        ("DFLASH", Draft(method="dflash")),
        ("DSPARK --speculative-dspark-block-size 7", Draft(method="dspark", num_draft_tokens=7)),
        (f"DSPARK {N} 8", Draft(method="dspark", num_draft_tokens=7)),
        (f"DSPARK --speculative-dspark-block-size 7 {N} 8", Draft(method="dspark", num_draft_tokens=7)),
        ("NEXTN --speculative-num-steps 2 --speculative-eagle-topk 1", Draft(method="mtp", num_draft_tokens=2)),
        (f"EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 {N} 3", Draft(method="mtp", num_draft_tokens=2)),
        (
            f"EAGLE3 --speculative-draft-model c/d --speculative-num-steps 5 --speculative-eagle-topk 4 {N} 16",
            Draft(method="eagle3", model="c/d", num_draft_tokens=15, options={"num_steps": 5, "num_branches": 4}),
        ),
        ("EAGLE --speculative-draft-model-path c/d", Draft(method="eagle", model="c/d")),
        (f"NGRAM {N} 12", Draft(method="ngram", num_draft_tokens=11)),
        ("STANDALONE --speculative-draft-model-path c/d", Draft(method="draft-model", model="c/d")),
        (
            "EAGLE3 --speculative-use-rejection-sampling --speculative-use-block-verification",
            Draft(method="eagle3", options={"draft_sampling": "probabilistic", "verification": "block"}),
        ),
        ("DFLASH --speculative-draft-window-size 512", Draft(method="dflash", options={"draft_window_size": 512})),
    ],
)
def test_a_draft_is_counted_without_the_anchor(text, draft) -> None:
    deployment = read_command(f"{START} --speculative-algorithm {text}")
    assert deployment.drafts == (draft,)
    assert read_command(write_command(deployment)) == deployment


def test_dspark_is_written_in_tokens_and_the_others_with_the_anchor() -> None:
    def words(method, length):
        draft = Draft(method=method, model="c/d", num_draft_tokens=length)
        return " ".join(write_command(Deployment(engine="sglang", target="m", drafts=(draft,))))

    assert words("dflash", 15).endswith(f"{N} 16")
    assert words("dspark", 15).endswith("--speculative-dspark-block-size 15")
    assert words("eagle3", 3).endswith(f"{N} 4 --speculative-num-steps 3 --speculative-eagle-topk 1")


def test_a_chain_wins_over_another_count_as_in_sglang_and_it_is_told() -> None:
    text = f"{START} --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 {N} 16"
    reading = read_with_notes(text)
    assert reading.deployment.drafts[0].num_draft_tokens == 3
    assert [note.kind for note in reading.notes] == ["converted"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{START} --speculative-algorithm DFLASH {N} 16 --speculative-dflash-block-size 8", "must agree"),
        (f"{START} --speculative-algorithm DSPARK {N} 7 --speculative-dspark-block-size 7", "one more for the anchor"),
        (f"{START} --speculative-algorithm DFLASH {N} 1", "count the anchor"),
        (f"{START} --speculative-algorithm DFLSH", "'DFLSH' .did you mean 'DFLASH'"),
        ("sglang serve --port 1", "names no model"),
        ("sglang serve m", "takes no word 'm'"),
        (f"{START} --context-length many", "--context-length"),
    ],
)
def test_what_contradicts_itself_is_an_error_that_names_the_flags(text, named) -> None:
    with pytest.raises(ConfigError, match=named):
        read_command(text)


@pytest.mark.parametrize(
    ("text", "fills", "value"),
    [
        ("--tensor-parallel-size 2", "tensor_parallel", 2),
        ("--kv-cache-dtype fp8_e4m3", "kv_dtype", "fp8"),
        ("--kv-cache-dtype bf16", "kv_dtype", "bf16"),
        ("--context-length 8K", "context_length", 8192),
        ("--chunked-prefill-size 2048", "max_batched_tokens", 2048),
        ("--chunked-prefill-size -1", "max_batched_tokens", None),
    ],
)
def test_a_flag_fills_its_field_in_the_shared_unit(text, fills, value) -> None:
    assert getattr(read_command(f"{START} {text}"), fills) == value


def test_switched_off_chunks_are_a_setting_of_sglang() -> None:
    assert read_command(f"{START} --chunked-prefill-size -1").own == {"chunked-prefill-size": -1}


def test_an_algorithm_without_a_name_here_is_kept_as_it_is() -> None:
    text = f"{START} --speculative-algorithm UNO --uno-lora-path x"
    assert read_command(text).own["speculative-algorithm"] == "UNO"
    assert " ".join(write_command(read_command(text))) == text


def test_drafting_flags_without_an_algorithm_are_kept_and_told() -> None:
    reading = read_with_notes(f"{START} {N} 16")
    assert reading.deployment.drafts == ()
    assert [(note.kind, note.subject) for note in reading.notes] == [("note", N)]


@pytest.mark.parametrize(
    "draft",
    [Draft(method="suffix"), Draft(method="ngram-mod"), Draft(method="dflash", model="c/d", tensor_parallel=1)],
)
def test_what_sglang_cannot_say_is_refused_when_written(draft) -> None:
    with pytest.raises(ConfigError, match="SGLang"):
        write_command(Deployment(engine="sglang", target="m", drafts=(draft,)))
