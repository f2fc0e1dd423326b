"""Files and functions stay small enough to be read at once."""

from source_files import MAX_FILE_LINES, MAX_FUNCTION_LINES, file_sizes, function_sizes


def test_no_file_is_longer_than_the_budget() -> None:
    assert {name: lines for name, lines in file_sizes().items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_the_budget() -> None:
    assert {name: lines for name, lines in function_sizes().items() if lines > MAX_FUNCTION_LINES} == {}
