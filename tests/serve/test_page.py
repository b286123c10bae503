"""The page, as a browser gets it; tests/browser looks at it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from importlib.resources import files

import httpx
import pytest


def test_the_page_and_all_that_it_names_are_served(http: httpx.Client):
    page = http.get("/", headers={"accept": "text/html"})
    found = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page.text))
    seen: set[str] = set()

    assert page.headers["content-type"].startswith("text/html")
    while found - seen:
        name = (found - seen).pop()
        seen.add(name)
        part = http.get(f"/{name}")
        assert part.status_code == 200
        found |= {f"page/{other}" for other in re.findall(r'from "\./([^"]+)"', part.text)}
    assert {"page/app.js", "page/style.css", "page/store.js", "page/markdown-it.js"} <= seen


def test_the_reader_of_markdown_is_the_published_file():
    folder = files("ggmodel.serve") / "page"
    origin = (folder / "markdown-it.txt").read_text("utf-8")
    data = (folder / "markdown-it.js").read_bytes()
    parts = set(re.findall(rb"#region node_modules/([\w.-]+)/", data)) | {b"markdown-it"}
    stated = dict(re.findall(r"^(\w+): (\S+)$", origin, re.MULTILINE))

    assert stated["sha256"] == hashlib.sha256(data).hexdigest()
    assert data.startswith(f"/*! {stated['package']} {stated['version']} ".encode())
    assert parts <= {line.encode() for line in origin.splitlines()}  # each with its licence
    assert sum(len(one.read_bytes()) for one in folder.iterdir()) < 300_000  # what a browser gets


def test_nothing_of_other_hosts_is_loaded(http: httpx.Client):
    policy = http.get("/", headers={"accept": "text/html"}).headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "'unsafe" not in policy and "http" not in policy


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2Fetc%2Fpasswd", "."])
def test_no_other_file_is_served(http: httpx.Client, name: str):
    assert http.get(f"/page/{name}").status_code == 404


def test_programs_get_ollamas_words(http: httpx.Client):
    for headers in ({"accept": "*/*"}, {"accept": "application/json"}):
        assert http.get("/", headers=headers).text == "Ollama is running"
    assert http.head("/").status_code == 200


def test_the_page_needs_no_key(serve: Callable[..., str]):
    url = serve(keys=("secret",))

    assert httpx.get(f"{url}/").status_code == 200
    assert httpx.get(f"{url}/page/app.js").status_code == 200
    assert httpx.get(f"{url}/v1/models").status_code == 401
