"""Each published configuration is read, translated to the other engines and back, or refused by name."""

import pytest
from published_configs import CONFIGS, REFUSED, Published

from blockdraft.deploy.dialects import read_command, read_with_notes
from blockdraft.deploy.forms import FORMS, command
from blockdraft.deploy.forms.compose import read_compose
from blockdraft.deploy.translation import as_comment, read_origin, restore, translate
from blockdraft.errors import ConfigError

ENGINES = ("vllm", "sglang", "llamacpp")
TO_OTHERS = [
    pytest.param(config, engine, id=f"{config.number}-{engine}")
    for config in CONFIGS
    for engine in ENGINES
    if engine != config.meaning.engine
]
each = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.number))


def test_all_sixteen_are_here() -> None:
    assert sorted([config.number for config in CONFIGS] + list(REFUSED)) == list(range(1, 17))


@each
def test_it_means_what_it_says(config: Published) -> None:
    assert read_command(config.command) == config.meaning


@each
def test_what_is_outdated_in_it_is_told(config: Published) -> None:
    notes = read_with_notes(config.command).notes
    assert [note.subject for note in notes if note.kind == "outdated"] == list(config.outdated)
    assert [note for note in notes if note.kind == "unknown"] == []


@each
def test_written_again_it_means_the_same_and_is_up_to_date(config: Published) -> None:
    again = read_with_notes(command(config.meaning))
    assert again.deployment == config.meaning
    flags = [note.subject for note in again.notes if note.kind == "outdated" and note.subject.startswith("--")]
    assert flags == []


@pytest.mark.parametrize(("config", "engine"), TO_OTHERS)
def test_what_another_engine_cannot_say_is_listed(config: Published, engine: str) -> None:
    notes = translate(config.meaning, engine).notes
    assert sorted(note.subject for note in notes if note.kind == "no-equivalent") == sorted(
        config.untranslatable[engine]
    )
    assert all(len(note.text) > 10 for note in notes)


@pytest.mark.parametrize(("config", "engine"), TO_OTHERS)
def test_there_and_back_loses_nothing(config: Published, engine: str) -> None:
    text = as_comment(config.meaning) + command(translate(config.meaning, engine).deployment)
    current, origin = read_command(text), read_origin(text)
    assert current.engine == engine
    assert origin == config.meaning
    assert restore(current, origin)[0] == config.meaning


@pytest.mark.parametrize(("config", "engine"), TO_OTHERS)
def test_without_the_comment_the_way_back_keeps_what_both_engines_say(config: Published, engine: str) -> None:
    back = translate(translate(config.meaning, engine).deployment, config.meaning.engine).deployment
    first = config.meaning
    assert (back.target, back.context_length, back.num_sequences) == (
        first.target,
        first.context_length,
        first.num_sequences,
    )
    lost = [subject for subject in config.untranslatable[engine] if subject.startswith("drafting")]
    if not lost and first.drafts[0].num_draft_tokens is not None:
        assert back.drafts == first.drafts


@pytest.mark.parametrize(("config", "engine"), TO_OTHERS)
def test_as_a_compose_file_it_comes_back_too(config: Published, engine: str) -> None:
    text = as_comment(config.meaning) + FORMS["compose"](translate(config.meaning, engine).deployment)
    ((service,), _) = read_compose(text)
    back, _ = restore(service.reading.deployment, read_origin(text))
    assert back.drafts == config.meaning.drafts
    assert back.own == config.meaning.own


@pytest.mark.parametrize("number", REFUSED)
def test_what_serves_nothing_is_refused_by_name(number: int) -> None:
    text, named = REFUSED[number]
    with pytest.raises(ConfigError) as caught:
        read_command(text)
    for word in named:
        assert word in str(caught.value)
