"""`blockdraft chat`: turns from a pipe and from a terminal, its commands, and what it remembers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result

from blockdraft.engine import Engine


@pytest.fixture
def chat(run, checkpoints) -> Callable[..., Result]:
    """Return a function that pipes lines into a chat with the tiny target."""

    def chat(*lines: str, options: tuple[str, ...] = ()) -> Result:
        model = ("-m", checkpoints.target, "--dtype", "float32", "-n", "4")
        return run("chat", *model, *options, input="\n".join(lines) + "\n")

    return chat


@pytest.fixture
def type_into(monkeypatch) -> Callable[..., None]:
    """Return a function that replaces the terminal: lines are typed, exceptions raised at the prompt."""

    def type_into(*lines: str | BaseException) -> None:
        pending: Iterator[str | BaseException] = iter(lines)

        def read(_prompt: str) -> str:
            line = next(pending, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr("blockdraft.cli.chat._is_terminal", lambda: True)

    return type_into


def prompt_lengths(result: Result) -> list[int]:
    return [json.loads(line)["generation"]["num_prompt_tokens"] for line in result.stdout.splitlines()]


def test_every_line_of_a_pipe_is_a_turn(chat) -> None:
    result = chat("hello", "", "the world")
    assert result.exit_code == 0
    assert result.stderr.count("4 tokens") == 2
    assert ">" not in result.stdout.splitlines()[0][:2]


def test_the_conversation_is_remembered_until_it_is_reset(chat) -> None:
    first, second, after = prompt_lengths(chat("hello", "hello", "/reset", "hello", options=("--json",)))
    assert first == after < second


def test_the_system_message_can_be_changed(chat) -> None:
    lengths = prompt_lengths(chat("hello", "/system the world", "hello", "/system", "hello", options=("--json",)))
    assert lengths[0] == lengths[2] < lengths[1]
    [with_option] = prompt_lengths(chat("hello", options=("--json", "--system", "the world")))
    assert with_option == lengths[1]


def test_commands_answer_on_standard_error(chat) -> None:
    result = chat("/help", "/stats", "hello", "the world", "/stats", "/rest", "/exit", "never asked")
    assert "/reset" in result.stderr
    assert "there is no answer yet" in result.stderr
    assert "2 answers  8 tokens" in result.stderr
    assert "did you mean '/reset'?" in result.stderr
    assert "3 answers" not in result.stderr
    assert "/" not in result.stdout


def test_a_pipe_that_outgrows_the_context_is_an_error(chat) -> None:
    result = chat("hello", options=("--max-tokens", "510"))
    assert result.exit_code == 1
    assert "context holds 512" in result.stderr


def test_options_reach_a_chat(chat) -> None:
    [line] = chat("hello", options=("--json", "-t", "0.5", "--spec-type", "ngram-mod")).stdout.splitlines()
    record = json.loads(line)
    assert record["sampling"]["temperature"] == 0.5
    assert record["spec"]["types"] == ["ngram-mod"]


def test_rounds_are_shown_in_a_chat(chat) -> None:
    assert chat("hello", options=("--show-rounds",)).stdout.startswith("^")


def test_a_terminal_is_greeted_and_left_with_the_end_of_input(chat, type_into) -> None:
    type_into("hello")
    result = chat()
    assert result.exit_code == 0
    assert "drafter: ngram-simple" in result.stderr
    assert "Ctrl-D leaves" in result.stderr


def test_ctrl_c_at_the_prompt_does_not_leave(chat, type_into) -> None:
    type_into(KeyboardInterrupt(), "hello", "/exit")
    result = chat()
    assert "Ctrl-D leaves" in result.stderr
    assert "4 tokens" in result.stderr


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(chat, type_into, monkeypatch) -> None:
    step, calls = Engine.step, []

    def interrupted_once(self: Engine) -> object:
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted_once)
    type_into("hello", "the world")
    result = chat(options=("-d", "none"))
    assert result.exit_code == 0
    assert "1 token " in result.stderr
    assert "4 tokens" in result.stderr


def test_a_turn_that_does_not_fit_can_be_followed_by_another(chat, type_into) -> None:
    type_into("hello", "the world " * 400, "hello", "/reset", "hello")
    result = chat()
    assert result.exit_code == 0
    assert "/reset forgets the conversation" in result.stderr
    assert result.stderr.count("4 tokens") == 3
