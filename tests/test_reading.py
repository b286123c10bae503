"""Small files of strangers: limits, pipes, JSON that is a trap."""

from __future__ import annotations

import base64
import io
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from ggmodel import limits
from ggmodel.chat.messages import item_of
from ggmodel.errors import Error, FormatError, ImageError, PromptError
from ggmodel.reading import (
    MissingFile,
    given_bytes,
    parse_json,
    read_file,
    read_json,
    read_stream,
)


def sparse(path: Path, size: int) -> Path:
    path.touch()
    os.truncate(path, size)
    return path


def test_a_file_is_read_whole(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc\r\n")
    (tmp_path / "empty").touch()
    assert read_file(tmp_path / "a", "text_file_bytes") == b"abc\r\n"
    assert read_file(str(tmp_path / "empty"), "text_file_bytes") == b""


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path: Path):
    path = sparse(tmp_path / "a", 3 << 30)
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"3,221,225,472 bytes, but the limit is 33,554,432.*"):
        read_file(path, "text_file_bytes")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_the_limit_is_named_and_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = sparse(tmp_path / "a", 100)
    monkeypatch.setattr(limits, "text_file_bytes", 99)
    with pytest.raises(FormatError, match=r"ggmodel\.limits\.text_file_bytes, or GGMODEL_LIMIT_"):
        read_file(path, "text_file_bytes")
    monkeypatch.setattr(limits, "text_file_bytes", 100)
    assert read_file(path, "text_file_bytes") == bytes(100)


def test_no_more_room_is_asked_for_than_the_file_needs(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    tracemalloc.start()
    read_file(path, "text_file_bytes")
    assert tracemalloc.get_traced_memory()[1] < 1 << 16
    tracemalloc.stop()


def test_a_file_without_a_size_is_read_to_its_end():
    found = read_file("/proc/self/smaps", "text_file_bytes")
    assert len(found) > 5000 and found.endswith(b"\n")
    assert read_file("/proc/version", "text_file_bytes") == Path("/proc/version").read_bytes()


def test_a_file_that_grows_is_read_to_its_end_or_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, fstat = tmp_path / "a", os.fstat

    def grows(file: int) -> os.stat_result:
        found = fstat(file)
        with path.open("ab") as more:
            more.write(b"x" * 100_000)
        return found

    path.write_bytes(b"begin")  # it is measured twice
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", grows)
        found = read_file(path, "text_file_bytes")
    assert found == path.read_bytes() and len(found) > 100_000
    monkeypatch.setattr(limits, "text_file_bytes", 350_000)
    monkeypatch.setattr(os, "fstat", grows)
    with pytest.raises(FormatError, match="has more than 350,000 bytes; if you"):
        read_file(path, "text_file_bytes")


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(FormatError, match="is not a regular file"):
            read_file(path, "text_file_bytes")


@pytest.mark.alone
def test_nothing_stays_open(tmp_path: Path):
    before = len(os.listdir("/proc/self/fd"))
    test_a_file_is_read_whole(tmp_path)
    test_a_pipe_is_not_waited_for(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("path", ["none", "x" * 5000, "\0"])
def test_a_path_of_nothing(path: str):
    with pytest.raises(FormatError, match=r"does not exist|cannot be read") as caught:
        read_file(path, "text_file_bytes")
    assert isinstance(caught.value, MissingFile) == (path == "none")
    assert len(str(caught.value)) < 400


def test_json_is_nested_only_so_deep(tmp_path: Path):
    most = limits.json_depth

    def nested(depth: int) -> bytes:
        return b'{"a":' * depth + b"1" + b"}" * depth

    parse_json(nested(most), "f")
    for depth in (most + 1, 900, 100_000):
        with pytest.raises(FormatError, match=f"f is nested too deeply; the limit .* {most}"):
            parse_json(nested(depth), "f")
    with pytest.raises(FormatError, match="nested too deeply"):
        parse_json(json.dumps({"a": [[[[[0]]]]] * 9}).encode().replace(b"0", b"[" * 99_999), "f")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "no valid JSON"),
        (b"[]", "should hold a JSON object"),
        (b"1" * 9999, "no valid JSON"),
        (b"\xff{}", "no UTF-8 at byte 0"),
        ("{}".encode("utf-16"), "no UTF-8"),
    ],
)
def test_json_that_is_none(tmp_path: Path, data: bytes, message: str):
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(FormatError, match=rf"a\.json.*{message}"):
        read_json(tmp_path / "a.json")


def test_a_byte_order_mark_is_no_damage():
    assert parse_json("\ufeff{}".encode(), "f") == {}


def test_a_stream_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "input_bytes", 3 << 20)
    assert read_stream(io.BytesIO(bytes(3 << 20)), "f", "input_bytes") == bytes(3 << 20)
    with (
        open("/dev/zero", "rb") as endless,
        pytest.raises(FormatError, match="f has more than 3,145,728 bytes; "),
    ):
        read_stream(endless, "f", "input_bytes")


def of_url(text: str) -> bytes:
    url = "data:image/png;base64," + text
    return given_bytes(url, "image", "image_bytes", ImageError)[0]


def of_part(text: str) -> bytes:
    found = item_of({"type": "image", "base64": text})
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("read", "error"), [(of_url, ImageError), (of_part, PromptError)])
def test_base64_is_counted_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[str], bytes], error: type[Error]
):
    monkeypatch.setattr(limits, "image_bytes", 100)
    for n in (97, 98, 99, 100):
        text = base64.b64encode(bytes(n)).decode()
        for spelled in (text, text.rstrip("="), text[:50] + "\n" + text[50:] + " "):
            assert read(spelled) == bytes(n)
    monkeypatch.delattr(base64, "b64decode")
    for n in (101, 102, 103, 10_000):
        with pytest.raises(error, match=r"has more than 100 bytes; .*image_bytes"):
            read(base64.b64encode(bytes(n)).decode())
