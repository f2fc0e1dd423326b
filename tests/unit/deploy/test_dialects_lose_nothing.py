"""What is written is read back as it was, for every engine, flag by flag and in every form that is read."""

from dataclasses import replace

import pytest
from deployments import ENGINES, SETTINGS, deployments, values_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects import read_command, read_with_notes, write_command
from blockdraft.deploy.dialects.flags import flag_table
from blockdraft.deploy.dialects.removed import REMOVED
from blockdraft.deploy.forms import command, docker
from blockdraft.deploy.forms.compose import compose, read_compose

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("engine", ENGINES)
@MANY
@given(data=st.data())
def test_words_are_read_as_they_were_written(engine, data) -> None:
    deployment = data.draw(deployments(engine))
    alone = replace(deployment, environment={}, container=None)
    assert read_command(write_command(deployment)) == alone


@pytest.mark.parametrize("engine", ENGINES)
@MANY
@given(data=st.data())
def test_a_written_command_says_nothing_outdated_or_unknown(engine, data) -> None:
    reading = read_with_notes(write_command(data.draw(deployments(engine))))
    assert [str(note) for note in reading.notes if note.kind in ("outdated", "unknown")] == []


@pytest.mark.parametrize("engine", ENGINES)
@MANY
@given(data=st.data())
def test_text_of_a_shell_is_read_as_it_was_written(engine, data) -> None:
    deployment = data.draw(deployments(engine))
    assert read_command(command(deployment)) == deployment


@pytest.mark.parametrize("engine", ENGINES)
@MANY
@given(data=st.data())
def test_docker_and_compose_say_the_same(engine, data) -> None:
    deployment = data.draw(deployments(engine, contained=True))
    assert read_command(docker(deployment)) == deployment
    services, notes = read_compose(compose(deployment))
    assert [service.reading.deployment for service in services] == [deployment]
    assert notes == []


@pytest.mark.parametrize(
    ("engine", "setting"),
    [
        pytest.param(engine, one, id=f"{engine}-{one.key}")
        for engine in ENGINES
        for one in SETTINGS[engine]
        if one.fills not in ("target", "value_dtype")  # said by tests of their own
    ],
)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_each_flag_of_the_tables_says_its_field(engine, setting, data) -> None:
    deployment = Deployment(engine=engine, target="a/b", **{setting.fills: data.draw(values_of(setting))})
    words = write_command(deployment)
    assert f"--{setting.key}" in words
    found = read_command(words)
    assert getattr(found, setting.fills) is not None
    assert write_command(found) == words


@pytest.mark.parametrize("engine", ENGINES)
def test_every_name_of_a_flag_means_that_flag(engine) -> None:
    table = flag_table(engine)
    for flag in table.flags:
        for name in flag.names:
            assert table.by_name[name] == (flag, True)
        for name in flag.off_names:
            assert table.by_name[name] == (flag, False)
    assert len({flag.key for flag in table.flags}) == len(table.flags)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tables_name_flags_that_the_engine_has(engine) -> None:
    table = flag_table(engine)
    assert {setting.key for setting in SETTINGS[engine] if table.find(setting.key) is None} == set()
    assert {key for key in REMOVED[engine] if f"--{key}" in table.by_name} == set()
    successors = {old.successor.partition("=")[0] for old in REMOVED[engine].values() if old.successor}
    read_by_code = {"spec-ngram-max", "spec-ngram-min", "spec-draft-tp", "spec-draft-length"} | set(REMOVED[engine])
    assert {key for key in successors - read_by_code if table.find(key) is None} == set()
