"""The page, as a browser gets it; tests/browser looks at it."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest


def test_the_page_and_all_that_it_names_are_served(http: httpx.Client):
    page = http.get("/")
    found = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page.text))
    seen: set[str] = set()

    assert page.headers["content-type"].startswith("text/html")
    while found - seen:
        name = (found - seen).pop()
        seen.add(name)
        part = http.get(f"/{name}")
        assert part.status_code == 200
        found |= {f"page/{other}" for other in re.findall(r'from "\./([^"]+)"', part.text)}
    assert {"page/app.js", "page/style.css", "page/store.js"} <= seen


def test_nothing_of_other_hosts_is_loaded(http: httpx.Client):
    policy = http.get("/").headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "'unsafe" not in policy and "http" not in policy


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2Fetc%2Fpasswd", "."])
def test_no_other_file_is_served(http: httpx.Client, name: str):
    assert http.get(f"/page/{name}").status_code == 404


def test_the_page_needs_no_key(serve: Callable[..., str]):
    url = serve(keys=("secret",))

    assert httpx.get(f"{url}/").status_code == 200
    assert httpx.get(f"{url}/page/app.js").status_code == 200
    assert httpx.get(f"{url}/v1/models").status_code == 401
