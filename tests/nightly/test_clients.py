"""Clients that others wrote, unmodified, against `ggmodel serve`."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest

from tests.nightly import examples
from tests.nightly.examples import EXAMPLES, LEFT_OUT, listed
from tests.nightly.table import NODE, PYTHON, TARGET, documented, ran, servers


@pytest.fixture(scope="module")
def arguments() -> Iterator[list[str]]:
    with servers() as found:
        yield found


@pytest.mark.parametrize("name", [*NODE, *PYTHON])
def test_a_client_does_what_its_rows_say(arguments: list[str], name: str):
    done = ran(name, arguments)
    table = documented()
    assert done == {client: table.get(client) for client in done}


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with examples.servers() as found:
        yield found


@pytest.mark.parametrize(
    ("client", "model", "name"),
    [
        (client, model, name)
        for client, models in EXAMPLES.items()
        for model, names in models.items()
        for name in names.split()
    ],
)
def test_an_example_runs_as_it_is(urls: dict[str, str], client: str, model: str, name: str):
    examples.runs(client, name, urls[model])


@pytest.mark.parametrize("client", list(EXAMPLES))
def test_all_examples_run_or_have_a_reason(client: str):
    patterns = " ".join(LEFT_OUT[client].values()).split()
    left = {name for name in listed(client) if any(fnmatchcase(name, one) for one in patterns)}
    assert left == listed(client) - {*" ".join(EXAMPLES[client].values()).split()}


def test_the_page_has_the_table_of_examples():
    assert "\n".join(examples.rows()) in TARGET.read_text("utf-8")
