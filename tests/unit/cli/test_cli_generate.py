"""`blockdraft generate`: prompts, options that arrive, the last line, rounds in marks and colours, comparisons."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import click
import pytest

from blockdraft.bench.compare import Comparison
from blockdraft.bench.identity import Difference
from blockdraft.cli.generate import command
from blockdraft.cli.prompt import read_prompt
from blockdraft.cli.render import RoundsView
from blockdraft.core.sampling import SamplingParams
from blockdraft.engine import DEFAULT_MAX_TOKENS, Engine, Token

REPETITIVE = "hello the world hello the world"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answer_of(record) -> list[int]:
    return [token["id"] for token in record["generation"]["tokens"]]


# Prompts


def test_the_parts_of_a_prompt_are_joined_by_blank_lines(text_file, tmp_path, monkeypatch) -> None:
    second = tmp_path / "second.txt"
    second.write_text("and a second\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("from the pipe\n"))
    prompt = read_prompt("Summarise:", [text_file, second])
    assert prompt == "Summarise:\n\nthe world in the world\n\nand a second\n\nfrom the pipe"


def test_a_terminal_is_read_only_when_asked(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("typed"))
    assert read_prompt("hello", []) == "hello"
    assert read_prompt("-", []) == "typed"


def test_a_pipe_alone_is_a_prompt(generate_json) -> None:
    piped, given = generate_json("-n", "2", input="hello"), generate_json("hello", "-n", "2")
    assert piped["generation"]["num_prompt_tokens"] == given["generation"]["num_prompt_tokens"]


def test_without_a_prompt_the_error_says_how(run) -> None:
    result = run("generate", input="\n")
    assert result.exit_code == 2
    assert "--file PATH" in result.stderr
    assert "standard input" in result.stderr


def test_a_file_that_is_no_text_is_refused(run, checkpoints) -> None:
    result = run("generate", "--file", checkpoints.target)
    assert result.exit_code == 2
    assert "no text in UTF-8" in result.stderr


def test_a_pipe_that_stays_open_is_told(monkeypatch, capsys) -> None:
    monkeypatch.setattr("blockdraft.cli.prompt._is_silent", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("late"))
    assert read_prompt("hello", []) == "hello\n\nlate"
    assert "< /dev/null" in capsys.readouterr().err


# Options


def test_sampling_options_arrive(generate_json) -> None:
    record = generate_json(
        "hello",
        *("-n", "3", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.05", "--seed", "11"),
        *("--repetition-penalty", "1.1", "--presence-penalty", "0.2", "--frequency-penalty", "0.3"),
        *("--logit-bias", "42=-1.5", "--logit-bias", "7=2", "--stop", "zzz", "--stop", "qqq", "--logprobs"),
    )
    assert record["sampling"] == {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"42": -1.5, "7": 2.0},
        "seed": 11,
    }
    assert record["request"] == {"max_tokens": 3, "stop": ["zzz", "qqq"], "stop_ids": [0, 2], "logprobs": True}
    assert all(token["logprob"] < 0 for token in record["generation"]["tokens"])


def test_defaults_are_those_of_the_library(generate_json) -> None:
    record = generate_json("hello", "-n", "2")
    assert record["sampling"] == SamplingParams().to_dict()
    [max_tokens] = [parameter for parameter in command.params if parameter.name == "max_tokens"]
    assert max_tokens.default == DEFAULT_MAX_TOKENS


def test_a_bias_decides_the_answer_and_the_seed_the_draws(generate_json) -> None:
    assert answer_of(generate_json("hello", "-n", "3", "--logit-bias", "42=1000")) == [42, 42, 42]
    sampled = [generate_json("hello", "-n", "8", "-t", "1", "--seed", seed) for seed in ("1", "1", "2")]
    assert answer_of(sampled[0]) == answer_of(sampled[1]) != answer_of(sampled[2])


def test_end_tokens_end_the_answer_unless_ignored(generate_json) -> None:
    to_end = ("hello", "-n", "3", "--logit-bias", "2=1000")
    assert generate_json(*to_end)["generation"]["finish_reason"] == "stop"
    ignoring = generate_json(*to_end, "--ignore-eos")
    assert ignoring["request"]["stop_ids"] == []
    assert answer_of(ignoring) == [2, 2, 2]


def test_raw_and_system_change_the_prompt(generate_json) -> None:
    chat, raw, system = (
        generate_json("hello", "-n", "2", *extra)["generation"]["num_prompt_tokens"]
        for extra in ([], ["--raw"], ["--system", "be brief"])
    )
    assert raw == 1  # "hello" is one token of the tiny vocabulary
    assert raw < chat < system


def test_model_options_arrive(generate_json, checkpoints) -> None:
    record = generate_json("hello", "-n", "2", "--dtype", "float16", "--device", "cpu", "--threads", "1", "--offline")
    assert record["model"]["reference"] == checkpoints.target
    assert (record["model"]["dtype"], record["model"]["device"]) == ("torch.float16", "cpu")
    assert record["command"][:3] == ["blockdraft", "generate", "-m"] or record["command"][1:3] == ["generate", "-m"]
    assert "--offline" in record["command"]


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_draft_model_is_found_by_its_files(generate, generate_json, checkpoints, kind: str) -> None:
    folder = getattr(checkpoints, kind)
    record = generate_json("hello", "-n", "8", "--drafter", folder)
    assert record["drafter"]["name"] == f"draft-{kind}"
    assert record["generation"]["stats"]["num_drafted"] > 0
    assert answer_of(record) == answer_of(generate_json("hello", "-n", "8", "--drafter", "none"))
    assert f"is used as draft-{kind}" in generate("hello", "-n", "2", "-d", folder).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--temperature", "-1"], 2, "temperature must be at least 0"),
        (["--logit-bias", "x=1"], 2, "42=-1.5"),
        (["--max-tokens", "0"], 2, "--max-tokens"),
        (["--stop", ""], 1, "stop string cannot be empty"),
        (["--max-tokens", "100000"], 1, "context holds 512"),
        (["--device", "quantum"], 2, "unknown device"),
        (["--json", "--show-rounds"], 2, "--show-rounds"),
        (["--compare", "--drafter", "none"], 2, "--compare"),
        (["--drafter", "no/such/folder.gguf"], 2, "there is no file or folder"),
    ],
)
def test_wrong_options_are_explained(generate, arguments: list[str], code: int, said: str) -> None:
    result = generate("hello", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_a_pair_that_does_not_fit_is_refused_with_all_reasons(run, checkpoints) -> None:
    result = run("generate", "hi", "-m", checkpoints.other, "-d", checkpoints.dflash)
    assert result.exit_code == 1
    assert "hidden size" in result.stderr
    assert "number of target layers" in result.stderr


# What is shown


def test_the_answer_alone_is_on_standard_output(generate, generate_json) -> None:
    record = generate_json(REPETITIVE, "-n", "12")
    result = generate(REPETITIVE, "-n", "12")
    assert result.stdout == record["generation"]["text"] + "\n"
    figures = r"12 tokens  [\d.]+ tok/s  [\d.]+ tokens/round  .*  \d+ rounds?  ngram-simple  cut at --max-tokens"
    [line] = result.stderr.splitlines()
    assert re.match(figures, line)


def test_the_last_line_says_why_it_did_not_speculate(generate) -> None:
    line = generate("hello", "-n", "4", "--drafter", "none").stderr
    assert "nothing drafted" in line
    assert "not speculating: no drafter is configured" in line


def test_the_last_line_counts_the_wins_of_a_chain(generate, checkpoints) -> None:
    line = generate("hello", "-n", "8", "--spec-type", "ngram-mod,draft-dflash", "-md", checkpoints.dflash).stderr
    assert re.search(r"ngram-mod 0, draft-dflash \d+", line)


def test_an_interrupt_keeps_what_came_and_shows_its_figures(generate, monkeypatch) -> None:
    step, calls = Engine.step, []

    def interrupted(self: Engine) -> object:
        calls.append(self)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    result = generate("hello", "-n", "50", "-d", "none")
    assert result.exit_code == 130
    assert result.stdout.endswith("\n")
    assert re.match(r"3 tokens .* 2 rounds", result.stderr)
    assert result.stderr.endswith("interrupted\n")


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
def test_rounds_are_marked_where_there_are_no_colours(generate, generate_json, checkpoints, env) -> None:
    # The target itself drafts, so every draft is accepted.
    arguments = (REPETITIVE, "-n", "9", "--drafter", checkpoints.target, "--spec-draft-n-max", "3")
    tokens = generate_json(*arguments)["generation"]["tokens"]
    result = generate(*arguments, "--show-rounds", env=env)
    marks = {"first": "^", "drafted": "+", "bonus": "*", "recovered": "!", "plain": ""}
    expected, last_round = "", -1
    for token in tokens:
        border = "|" if token["round"] != last_round else ""
        expected += border + marks[token["kind"]] + token["text"]
        last_round = token["round"]
    assert result.stdout == expected + "\n"
    assert "+ drafted" in result.stderr
    assert {"first", "drafted", "bonus"} <= {token["kind"] for token in tokens}


def test_rounds_alternate_in_colour(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    view = RoundsView()
    tokens = [
        Token(id=1, text="a", kind="first", round_index=-1),
        Token(id=2, text="b", kind="drafted", round_index=0),
        Token(id=3, text="c", kind="bonus", round_index=0),
        Token(id=4, text="d\n", kind="plain", round_index=1),
    ]
    for token in tokens:
        view.show([token])
    styles = dict(re.findall(r"\x1b\[([\d;]+)m([abcd])", capsys.readouterr().out))
    shades = {text: style.split("48;")[1] for style, text in styles.items()}
    inks = {text: style.split("48;")[0] for style, text in styles.items()}
    assert shades["b"] == shades["c"] != shades["d"] == shades["a"]
    assert len(set(inks.values())) == 4


@pytest.mark.slow
@pytest.mark.network
def test_the_default_model_answers(run, monkeypatch) -> None:
    # On a slow machine the shipped drafter would be left out.
    monkeypatch.setattr("blockdraft.engine.load.may_pay", lambda *_: True)
    result = run("generate", "Why is the sky blue?", "-n", "24", "--compare", "--repeats", "1")
    assert result.exit_code == 0
    assert "sky" in result.stdout
    assert "ngram-simple,draft-dspark" in result.stderr
    assert re.search(r"^texts +identical", result.stderr, re.MULTILINE) or "near-tie" in result.stderr


# Comparisons


def test_compare_shows_speeds_ratio_and_identity(generate, checkpoints) -> None:
    result = generate("hello", "-n", "16", "--compare", "--repeats", "2", "-d", checkpoints.dflash)
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert re.match(r"plain +[\d.]+ tok/s  \(median of 2, [\d.]+ to [\d.]+\)", lines[-4])
    assert re.match(r"draft-dflash +[\d.]+ tok/s  \(median of 2", lines[-3])
    assert re.match(r"ratio +[\d.]+x  \([\d.]+ to [\d.]+\)", lines[-2])
    assert re.match(r"texts +identical, 16 tokens", lines[-1])


def test_compare_in_json(generate_json) -> None:
    record = generate_json("hello", "-n", "8", "--compare", "--repeats", "1")
    assert record["comparison"]["identical"] is True
    assert record["comparison"]["repeats"] == 1
    assert record["generation"]["num_tokens"] == 8


@pytest.mark.parametrize(
    ("difference", "code", "said"),
    [
        (Difference(position=2, plain_id=10, other_id=11, gap=0.01), 0, "near-tie"),
        (Difference(position=2, plain_id=10, other_id=11, gap=1.5), 1, "FAULT"),
        (Difference(position=2, plain_id=10, other_id=None, gap=None), 1, "speculative has ended; FAULT"),
        (Difference(position=2, plain_id=10, other_id=11, gap=None), 0, "undecided"),
    ],
)
def test_a_difference_is_judged(generate, monkeypatch, difference: Difference, code: int, said: str) -> None:
    from blockdraft.bench import compare as module

    real = module.compare

    def differing(*arguments: object, **options: object) -> Comparison:
        return replace(real(*arguments, **options), difference=difference)

    monkeypatch.setattr(module, "compare", differing)
    result = generate("hello", "-n", "4", "--compare", "--repeats", "1")
    assert result.exit_code == code
    assert f"differ from token {difference.position + 1} on" in result.stderr
    assert said in result.stderr
    assert generate("hello", "-n", "4", "--compare", "--repeats", "1", "--json").exit_code == code


def test_sampled_drafts_are_not_compared_token_by_token(generate, checkpoints) -> None:
    arguments = ("hello", "-n", "6", "--compare", "--repeats", "1", "-t", "1", "-d", checkpoints.dspark)
    assert "not compared" in generate(*arguments).stderr
    assert "identical" in generate(*arguments, "--verify", "match").stderr


def test_every_option_is_in_a_section_of_the_help() -> None:
    titles = {getattr(option, "section", None) for option in command.params if isinstance(option, click.Option)}
    assert {"Prompt", "Output", "Model", "Answer", "Speculation"} <= titles
