"""Downloads from a server on loopback that speaks as the hub does."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

from ggmodel import names
from ggmodel.errors import ConfigError, DownloadError, Error, FormatError, ModelNotFound
from ggmodel.names import transfers
from ggmodel.serve.errors import problem_of

from .conftest import Homes
from .hub_server import Answer, Hub
from .stores import COMMIT

Q4, VISION = b"GGUF" + bytes(range(256)) * 400, b"GGUF that sees"
REPO = {"m-Q8_0.gguf": b"GGUF eight", "m-Q4_K_M.gguf": Q4, "mmproj-F16.gguf": VISION}


@pytest.fixture
def hub(hub: Hub) -> Hub:
    hub.repos["org/repo"] = dict(REPO)
    return hub


def downloads(hub: Hub) -> list[str]:
    return [path for method, path, _ in hub.asked if method == "GET" and "/content/" in path]


def test_a_name_is_downloaded_once(hub: Hub, homes: Homes):
    shares: list[float] = []
    found = names.find("org/repo", progress=shares.append)
    assert found.path.read_bytes() == Q4 and found.mmproj is not None
    assert found.mmproj.read_bytes() == VISION
    assert shares[-1] == 1.0 and shares == sorted(shares)
    assert homes.hub in found.path.parents and found.path.is_symlink()
    asked = len(hub.asked)
    assert names.find("org/repo") == found and len(hub.asked) == asked
    found.verify()
    assert len(downloads(hub)) == 2  # neither the other model nor what is no model
    names.find("org/repo:Q8_0")
    assert len(downloads(hub)) == 3


def test_what_was_pulled_is_our_own(hub: Hub):
    names.pull("org/repo:q4_k_m")
    model = names.removable("org/repo:Q4_K_M")
    assert model.own and names.remove(model) == len(Q4) + len(VISION)
    assert not names.stored()
    names.pull("org/repo")
    assert names.removable("org/repo:Q4_K_M").own


def test_a_branch_that_moved_on_is_pulled_anew(hub: Hub):
    old = names.find("org/repo").path
    hub.repos["org/repo"]["m-Q4_K_M.gguf"], hub.commit = b"GGUF new", "f" * 40
    assert names.find("org/repo").path == old  # what is here is enough
    new = names.pull("org/repo").path
    assert new.read_bytes() == b"GGUF new" and names.find("org/repo").path == new
    assert names.find(f"org/repo@{COMMIT}").path == old


def test_a_checkpoint(hub: Hub):
    shard = "model-0000{}-of-00002.safetensors"
    index = {"weight_map": {"a": shard.format(1), "b": shard.format(2)}}
    hub.repos["org/plain"] = {
        "README.md": b"#",
        "config.json": b"{}",
        "1_Pooling/config.json": b"{ }",
        "model.safetensors.index.json": json.dumps(index).encode(),
        shard.format(1): b"one",
        shard.format(2): b"two",
        "original/consolidated.safetensors": b"large",
        "pytorch_model.bin": b"pickle",
        "tokenizer.json": b"{  }",
    }
    found = names.find("org/plain")
    assert found.path.is_dir()
    below = {p.relative_to(found.path).as_posix() for p in found.path.rglob("*") if p.is_file()}
    wanted = set(hub.repos["org/plain"])
    assert below == wanted - {
        "original/consolidated.safetensors",
        "pytorch_model.bin",
    }
    hub.repos["org/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    with pytest.raises(ModelNotFound, match="pickled weights, which are not loaded"):
        names.find("org/pickled")
    hub.repos["org/mistral"] = {"params.json": b"{}", "consolidated.safetensors": b"large"}
    with pytest.raises(ModelNotFound, match="in Mistral's own form, which are not loaded"):
        names.find("org/mistral")


def test_a_cut_connection_goes_on_where_it_ended(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cuts = 2
    assert names.find("org/repo").path.read_bytes() == Q4
    ranges = [r for method, path, r in hub.asked if method == "GET" and "/content/" in path]
    assert any(r.startswith("bytes=") and not r.startswith("bytes=0-") for r in ranges)


def test_half_a_download_is_never_found(hub: Hub, homes: Homes):
    hub.cuts = 1000
    with pytest.raises(DownloadError, match=r"the same command goes on where it stopped") as raised:
        names.find("org/repo")
    assert raised.type is DownloadError  # by whose name other processes know it
    answer = problem_of(raised.value)
    assert (answer.status, answer.code) == (502, "download_failed")
    assert not names.stored()
    with pytest.raises(ModelNotFound):
        names.find("org/repo", download=False)
    hub.cuts = 0
    assert names.find("org/repo").path.read_bytes() == Q4


def _cut(hub: Hub) -> None:
    hub.cuts = 1000
    with pytest.raises(DownloadError, match=r"the same command goes on where it stopped"):
        names.find("org/repo")
    hub.cuts = 0


def _interrupted(hub: Hub) -> None:
    def interrupt(share: float) -> None:
        if share > 0.2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        names.find("org/repo", progress=interrupt)


@pytest.mark.parametrize("stop", [_cut, _interrupted])
@pytest.mark.parametrize("is_whole", [False, True])
def test_the_same_command_goes_on(hub: Hub, homes: Homes, stop, is_whole: bool):
    """Also with a hub that sends the whole file whatever range is asked for."""
    stop(hub)
    (part,) = homes.hub.rglob("*.incomplete")
    nbytes = part.stat().st_size
    assert 0 < nbytes < len(Q4)

    def alter(answer: Answer) -> None:
        if is_whole and answer.status == 206:
            answer.status, answer.body = 200, Q4
            answer.headers["Content-Length"] = str(len(Q4))

    hub.alter = alter
    hub.asked.clear()
    assert names.find("org/repo").path.read_bytes() == Q4 and not part.exists()
    ranges = [r for method, path, r in hub.asked if method == "GET" and "/content/" in path]
    assert ranges == [f"bytes={nbytes}-"]


def test_what_is_here_needs_no_room(hub: Hub, homes: Homes, monkeypatch: pytest.MonkeyPatch):
    _cut(hub)
    (part,) = homes.hub.rglob("*.incomplete")
    free = type("Usage", (), {"free": (64 << 20) + len(Q4) - part.stat().st_size})
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)
    assert names.find("org/repo").path.read_bytes() == Q4


def test_a_part_is_no_link(hub: Hub, homes: Homes):
    _cut(hub)
    (part,) = homes.hub.rglob("*.incomplete")
    part.unlink()
    victim = homes.home / "victim"
    victim.write_bytes(b"mine")
    part.symlink_to(victim)
    assert names.find("org/repo").path.read_bytes() == Q4 and victim.read_bytes() == b"mine"


def test_addresses_that_expire(hub: Hub):
    """The target of a redirect is valid once."""
    valid = False

    def alter(answer: Answer) -> None:
        nonlocal valid
        if answer.kind == "content" and not valid:
            answer.status, answer.body = 403, b""
            answer.headers["Content-Length"] = "0"
        valid = answer.kind == "resolve"

    hub.alter, hub.cuts = alter, 2
    assert names.find("org/repo").path.read_bytes() == Q4


def test_a_file_is_fetched_by_one_at_a_time(hub: Hub):
    both = threading.Barrier(2, timeout=30)

    def alter(answer: Answer) -> None:
        if answer.kind == "about":
            both.wait()
        if answer.kind == "content":
            threading.Event().wait(0.2)

    hub.alter = alter
    with ThreadPoolExecutor(2) as pool:
        models = [*pool.map(names.find, ["org/repo"] * 2)]
    assert models[0] == models[1] and models[0].path.read_bytes() == Q4
    assert len(downloads(hub)) == 2


@pytest.mark.parametrize("nbytes", [1000, 1001])
def test_files_of_xet_are_counted(monkeypatch: pytest.MonkeyPatch, nbytes: int):
    """As hf_xet does, which reports in a thread of its own, and loses what is raised there."""
    aborted: list[bool] = []
    counted: list[int] = []

    def xet_get(*, expected_size: int, tqdm_class: type, **options: object) -> None:
        with XetDownloadProgressReporter(
            reconstruction_desc="", total=expected_size, log_level=0, tqdm_class=tqdm_class
        ) as reporter:
            for done in (600, nbytes):
                amounts = dict.fromkeys(
                    ["total_bytes", "total_bytes_completed", "total_transfer_bytes_completed"], done
                )
                rates = dict.fromkeys(
                    ["total_bytes_completion_rate", "total_transfer_bytes_completion_rate"], 1.0
                )
                with suppress(Error):
                    reporter.update_progress(SimpleNamespace(**amounts, **rates))

    monkeypatch.setattr("huggingface_hub.file_download.xet_get", xet_get)
    monkeypatch.setattr(
        "huggingface_hub.utils._xet.abort_xet_session", lambda: aborted.append(True)
    )
    with pytest.raises(DownloadError) if nbytes > 1000 else nullcontext():
        transfers.receive(
            None, 1000, Path("x"), {}, counted.append, DownloadError("too many bytes")
        )
    assert sum(counted) == min(nbytes, 1000) - 400 * (nbytes > 1000)
    assert bool(aborted) == (nbytes > 1000)


def test_damage_is_found_and_removed(hub: Hub, homes: Homes):
    hub.damaged = True
    with pytest.raises(DownloadError, match="arrived damaged, and was removed"):
        names.find("org/repo")
    hub.damaged = False
    assert names.find("org/repo").path.read_bytes() == Q4


@pytest.mark.parametrize(
    ("fault", "name", "error", "message"),
    [
        ("gated", "org/repo", DownloadError, "gated: ask for access.*hf auth login.*HF_TOKEN"),
        (403, "org/repo", DownloadError, "the token has no access"),
        (429, "org/repo", DownloadError, "too many requests"),
        ("", "org/none", ModelNotFound, "no repository org/none, or it is private.*HF_TOKEN"),
        ("", "org/repo@other", ModelNotFound, "no revision 'other'"),
        ("", "org/repo:Q2_K", ModelNotFound, "has no Q2_K: it has Q4_K_M, Q8_0"),
        ("", "org/repo/x/y.gguf", ModelNotFound, "has no x/y.gguf"),
    ],
)
def test_refusals(hub: Hub, fault, name: str, error: type[Error], message: str):
    hub.fault = fault
    with pytest.raises(error, match=message):
        names.find(name)
    assert not names.stored()


def test_a_token_opens_a_private_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    hub.token = "hf_secret"
    with pytest.raises(ModelNotFound, match="private"):
        names.find("org/repo")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert names.find("org/repo").path.read_bytes() == Q4


def test_offline_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE forbids"):
        names.find("org/repo")
    assert not hub.asked


def test_a_hostile_server(hub: Hub, homes: Homes):
    hub.repos["org/repo"] = {"../../../m-Q8_0.gguf": b"GGUF", "/m-Q4_0.gguf": b"GGUF"}
    with pytest.raises(ModelNotFound, match="has no model"):
        names.find("org/repo")
    hub.commit = "../../up"
    with pytest.raises((DownloadError, ModelNotFound)):
        names.find("org/repo")
    assert not list(homes.home.rglob("*.gguf"))


def test_half_a_split_model_and_presets_are_refused(hub: Hub):
    hub.repos["org/half"] = {"m-Q8_0-00001-of-00003.gguf": b"1", "m-Q8_0-00003-of-00003.gguf": b"3"}
    with pytest.raises(FormatError, match="part 2 of 3 is missing"):
        names.find("org/half")
    with pytest.raises(FormatError, match=r"part 3 of 3; name the first one"):
        names.find("org/half/m-Q8_0-00003-of-00003.gguf")
    hub.repos["org/preset"] = {"preset.ini": b"", "m.gguf": b"GGUF"}
    with pytest.raises(FormatError, match=r"a preset of llama.cpp"):
        names.find("org/preset")


def test_a_full_disk_is_said_before_anything_is_fetched(hub: Hub, monkeypatch):
    free = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)
    with pytest.raises(DownloadError, match=r"102,418 bytes more, and .* has 1,000 left"):
        names.find("org/repo")
    assert not downloads(hub)


def test_only_names_of_the_hub_are_pulled(hub: Hub, tmp_path: Path):
    for name in ("./tiny", str(tmp_path)):
        with pytest.raises(ConfigError, match="no name of the hub"):
            names.pull(name)
