"""The page, as a browser gets it; tests/browser looks at it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from importlib.resources import files

import httpx
import pytest

from ggmodel.cli.serving import Serving
from ggmodel.errors import ConfigError


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


def test_vendored_files_are_those_that_were_published():
    folder = files("ggmodel.serve") / "page"
    origin = (folder / "markdown-it.txt").read_text("utf-8")
    data = (folder / "markdown-it.js").read_bytes()
    parts = set(re.findall(rb"#region node_modules/([\w.-]+)/", data)) | {b"markdown-it"}
    stated = dict(re.findall(r"^(\w+): (\S+)$", origin, re.MULTILINE))

    assert stated["sha256"] == hashlib.sha256(data).hexdigest()
    assert data.startswith(f"/*! {stated['package']} {stated['version']} ".encode())
    assert parts <= {line.encode() for line in origin.splitlines()}  # each with its licence


@pytest.mark.parametrize(("name", "count"), [("katex", 22), ("highlight", 1)])
def test_vendored_folders_have_the_published_files_and_their_licence(name: str, count: int):
    folder = files("ggmodel.serve") / "page" / name
    origin = (folder / f"{name}.txt").read_text("utf-8")
    listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", origin, re.MULTILINE)

    assert len(listed) == count
    for digest, path in listed:
        assert hashlib.sha256(folder.joinpath(path).read_bytes()).hexdigest() == digest
    assert "Copyright (c)" in origin and "WARRANT" in origin


def test_what_every_browser_gets_is_small():
    folder = files("ggmodel.serve") / "page"
    sizes = [len(one.read_bytes()) for one in folder.iterdir() if one.is_file()]

    assert sum(sizes) < 300_000


def test_fonts_are_served(http: httpx.Client):
    font = http.get("/page/katex/fonts/KaTeX_Main-Regular.woff2")

    assert font.headers["content-type"] == "font/woff2"
    assert font.content.startswith(b"wOF2")


def test_nothing_of_other_hosts_is_loaded(http: httpx.Client):
    policy = http.get("/", headers={"accept": "text/html"}).headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "'unsafe" not in policy
    hosts = set(re.findall(r"https?://\S+?(?=[\s;])", policy))  # of tools that a user names
    assert hosts == {"http://localhost:*", "http://127.0.0.1:*"}


def test_tools_of_other_hosts_are_used_where_the_server_was_started_with_them(
    serve: Callable[..., str],
):
    url = serve(mcp_origins=("https://tools.example:8443",))
    policy = httpx.get(f"{url}/", headers={"accept": "text/html"}).headers[
        "content-security-policy"
    ]
    sources = policy.split("connect-src ")[1].split(";")[0].split()
    assert sources == [
        "'self'", "http://localhost:*", "http://127.0.0.1:*", "https://tools.example:8443",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "origin", ["tools.example", "https://a.b; script-src *", "https://a/b", "https://ä.b"]
)
def test_no_other_origin_is_taken(origin: str):
    with pytest.raises(ConfigError, match=r"mcp_origin .*: give https://HOST or http://HOST:PORT"):
        Serving(mcp_origin=[origin]).settings()


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2Fetc%2Fpasswd", "."])
def test_no_other_file_is_served(http: httpx.Client, name: str):
    assert http.get(f"/page/{name}", follow_redirects=True).status_code == 404


def test_programs_get_ollamas_words(http: httpx.Client):
    for headers in ({"accept": "*/*"}, {"accept": "application/json"}):
        assert http.get("/", headers=headers).text == "Ollama is running"
    assert http.head("/").status_code == 200


def test_the_page_needs_no_key(serve: Callable[..., str]):
    url = serve(keys=("secret",))

    assert httpx.get(f"{url}/").status_code == 200
    assert httpx.get(f"{url}/page/app.js").status_code == 200
    assert httpx.get(f"{url}/v1/models").status_code == 401
