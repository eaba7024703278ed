"""The list of tests that `make test` leaves to `make test-more`."""


def test_lines_name_tests_that_there_are(stale: list[str]) -> None:
    assert stale == []
