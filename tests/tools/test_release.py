"""A release is refused in a wrong state; its files are made twice and checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.release import Refused, building, contents, licences, sbom, state

import ggmodel

ROOT = Path(__file__).parents[2]
CHANGELOG = (
    "# Changelog\n\n## 1.2.0 (2026-01-31)\n\n- `ggmodel.new` is new.\n\n## 1.1.0 (2025-12-01)\n"
)
LIST = "# Public in ggmodel {}; by docs/generate_public.py\nggmodel.load: a function\n"

# A package whose build needs nothing, and whose wheel has what the environment puts into it.
BACKEND = """
import os, tarfile, zipfile
def build_sdist(folder, settings=None):
    name = "ggmodel-1.2.0"
    with tarfile.open(f"{folder}/{name}.tar.gz", "w:gz") as packed:
        for file in ("pyproject.toml", "backend.py", "PKG-INFO"):
            if file == "PKG-INFO":
                open(file, "w").write("Metadata-Version: 2.1\\nName: ggmodel\\nVersion: 1.2.0\\n")
            packed.add(file, f"{name}/{file}")
    return f"{name}.tar.gz"
def build_wheel(folder, settings=None, metadata=None):
    name = "ggmodel-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        info = zipfile.ZipInfo("ggmodel/__init__.py")
        wheel.writestr(info, EVERY)
    return name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
OTHER = """
import shutil, sys
shutil.copy("pyproject.toml", sys.argv[1] + "/ggmodel-1.2.0-py3-none-other.whl")
"""


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--allow-empty", "-m", "x")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that is ready for version 1.2.0, after 1.1.0."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    root = tmp_path / "repository"
    (root / "sdk" / "ggmodel").mkdir(parents=True)
    (root / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "generate_public.py", root / "docs")
    (root / "sdk" / "ggmodel" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / "docs" / "public.txt").write_text(LIST.format("1.1.0"))
    git(root, "init", "--quiet")
    commit(root)
    git(root, "tag", "v1.1.0")
    (root / "docs" / "public.txt").write_text(LIST.format("1.2.0") + "ggmodel.new: a function\n")
    commit(root)
    git(root, "tag", "vnext")
    return root


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


class TestState:
    def test_what_is_ready(self, repository: Path):
        assert state.check(repository) == "1.2.0"

    def test_our_version_stands_in_one_place(self):
        assert state.version_of(ROOT) == ggmodel.__version__
        assert "\nversion =" not in (ROOT / "pyproject.toml").read_text().partition("[tool")[0]

    def test_a_missing_version(self, repository: Path):
        (repository / "sdk" / "ggmodel" / "__init__.py").write_text("version = 1\n")
        with pytest.raises(Refused, match="has no line __version__"):
            state.check(repository)

    @pytest.mark.parametrize(
        "version", ["1.2", "v1.2.0", "1.2.0.1", "1.02.0", "1.2.0-rc.1", "1.2.x"]
    )
    def test_a_version_that_is_not_semantic(self, repository: Path, version: str):
        replace(repository / "sdk" / "ggmodel" / "__init__.py", "1.2.0", version)
        with pytest.raises(Refused, match=r"is not semantic: write MAJOR\.MINOR\.PATCH"):
            state.check(repository)

    def test_versions_in_order(self):
        order = "0.9.9 1.0.0a2 1.0.0b1 1.0.0rc2 1.0.0rc10 1.0.0 1.0.1 1.2.0 1.10.0 2.0.0".split()
        assert sorted(set(order), key=state.parsed) == order

    def test_changes_that_are_not_committed(self, repository: Path):
        for i in range(12):
            (repository / f"new{i:02}").touch()
        with pytest.raises(Refused, match=r"(?s)commit, stash or remove:.*\?\? new00.*and 2 more"):
            state.check(repository)

    def test_a_version_that_is_tagged(self, repository: Path):
        git(repository, "tag", "v1.2.0")
        with pytest.raises(Refused, match=r"1\.2\.0 is tagged already, as v1\.2\.0: raise"):
            state.check(repository)

    def test_a_version_older_than_a_tag(self, repository: Path):
        git(repository, "tag", "v1.10.0")
        with pytest.raises(Refused, match=r"1\.2\.0 is older than 1\.10\.0, which is tagged"):
            state.check(repository)

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ("## 1.2.0 (2026-01-31)", "## 1.3.0 (2026-01-31)", "must be that of this version"),
            ("## 1.2.0 (2026-01-31)", "## Next", "must be that of this version"),
            ("2026-01-31", "unreleased", "write the day of the release in place of 'unreleased'"),
            ("- `ggmodel.new` is new.\n", "Nothing.\n", "has no entry"),
            ("`ggmodel.new`", "Something", r"1 public names have changed, .*\n  ggmodel\.new"),
            ("## ", "", "has no section"),
        ],
    )
    def test_a_changelog_that_is_not_ready(self, repository: Path, old: str, new: str, reason: str):
        replace(repository / "CHANGELOG.md", old, new)
        commit(repository)
        with pytest.raises(Refused, match=f"(?s){reason}"):
            state.check(repository)

    def test_a_list_of_another_version(self, repository: Path):
        replace(repository / "docs" / "public.txt", "1.2.0", "1.1.0")
        commit(repository)
        with pytest.raises(
            Refused, match=r"public\.txt is of 1\.1\.0: python docs/generate_public"
        ):
            state.check(repository)

    def test_a_step_that_is_too_small(self, repository: Path):
        replace(repository / "docs" / "public.txt", "ggmodel.load: a", "ggmodel.load: another")
        replace(repository / "CHANGELOG.md", "is new", "is new, `load` another")
        commit(repository)
        with pytest.raises(Refused, match=r"such as ggmodel\.load: the next version is 2\.0\.0 at"):
            state.check(repository)

    @pytest.mark.parametrize(
        ("released", "how", "next"),
        [
            ("1.4.2", "", "1.4.3"),
            ("1.4.2", "new", "1.5.0"),
            ("1.4.2", "new gone", "2.0.0"),
            ("1.4.2", "changed", "2.0.0"),
            ("0.4.2", "", "0.4.3"),
            ("0.4.2", "new", "0.4.3"),
            ("0.4.2", "gone", "0.5.0"),
            ("1.4.2rc1", "", "1.4.2"),
        ],
    )
    def test_the_least_next_version(self, released: str, how: str, next: str):
        changes = {f"name{i}": word for i, word in enumerate(how.split())}
        assert state.least(state.parsed(released), changes) == state.parsed(next)[:3]


class TestBuilding:
    @pytest.fixture
    def project(self, repository: Path) -> Callable[[str], Path]:
        def make(every: str) -> Path:
            (repository / "backend.py").write_text(BACKEND.replace("EVERY", every))
            (repository / "pyproject.toml").write_text(PROJECT)
            (repository / "other.py").write_text(OTHER)
            commit(repository)
            return repository

        return make

    @pytest.mark.slow
    def test_two_builds_are_the_same_bytes(self, project: Callable[[str], Path], tmp_path: Path):
        out = tmp_path / "out"
        out.mkdir()
        root = project("os.environ['SOURCE_DATE_EPOCH']")
        found = building.build(root, out, [f"{sys.executable} other.py"])
        assert [p.name for p in found] == [
            "ggmodel-1.2.0-py3-none-any.whl",
            "ggmodel-1.2.0-py3-none-other.whl",
            "ggmodel-1.2.0.tar.gz",
        ]
        assert sorted(out.iterdir()) == found
        with zipfile.ZipFile(found[0]) as wheel:
            assert wheel.read("ggmodel/__init__.py") == b"%d" % building.epoch(root)

    @pytest.mark.slow
    def test_builds_that_differ(self, project: Callable[[str], Path], tmp_path: Path):
        root = project("os.getcwd()")
        with pytest.raises(Refused, match=r"two builds of .*any\.whl differ; to see where: diffos"):
            building.build(root, tmp_path / "out")

    def test_a_build_that_fails(self, project: Callable[[str], Path], tmp_path: Path):
        with pytest.raises(Refused, match=r"(?s)bad luck.*-m build .* failed, as said above"):
            building.build(project("exit('bad luck')"), tmp_path / "out")

    def test_times_owners_and_order_leave_an_sdist(self, tmp_path: Path):
        packed = []
        for name, order in (("one", "ab"), ("other", "ba")):
            folder = tmp_path / name
            folder.mkdir()
            for i, file in enumerate(order):
                (folder / file).write_text(file)
                (folder / file).chmod(0o600 if i else 0o640)
                os.utime(folder / file, (i, i))
            packed.append(folder / "x.tar.gz")
            with tarfile.open(packed[-1], "w:gz") as archive:
                for file in order:
                    archive.add(folder / file, f"x/{file}")
            building.settle(packed[-1], 1_700_000_000)
        assert packed[0].read_bytes() == packed[1].read_bytes()
        with tarfile.open(packed[0]) as archive:
            assert [(m.name, m.mtime, m.mode, m.uname) for m in archive] == [
                ("x/a", 1_700_000_000, 0o644, ""),
                ("x/b", 1_700_000_000, 0o644, ""),
            ]
            assert archive.extractfile("x/b").read() == b"b"  # type: ignore[union-attr]


class TestContents:
    BINDING = "ggmodel/native/_ggml_1.abi3.so"
    LICENCE = "ggmodel-1.2.0.dist-info/licenses/LICENSE"

    def wheel(self, folder: Path, *names: str, name: str = "ggmodel-1.2.0-x.whl") -> Path:
        with zipfile.ZipFile(folder / name, "w") as wheel:
            for each in names:
                wheel.writestr(each, f"text of {each}")
        return folder / name

    def test_a_wheel_with_its_own_ggml(self, tmp_path: Path):
        own = "ggmodel/native/ggml/lib/libggml.so", "ggmodel/native/ggml/LICENSE"
        wheel = self.wheel(tmp_path, self.BINDING, self.LICENCE, *own)
        assert contents.check(wheel, "1.2.0") == {"ggml"}
        assert contents.texts(wheel, {"ggml"}) == {"ggml": f"text of {own[1]}"}

    def test_a_wheel_without(self, tmp_path: Path):
        wheel = self.wheel(tmp_path, self.BINDING, self.LICENCE)
        assert contents.check(wheel, "1.2.0") == set()
        assert contents.texts(wheel, set()) == {}

    @pytest.mark.parametrize(
        ("names", "reason"),
        [
            ([BINDING], "without the licence of ggmodel"),
            (["ggmodel/native/ggml/lib/libggml.so.1.2"], "without the licence of ggml"),
            ([LICENCE, "ggmodel.libs/libgomp-1.so"], r"brings ggmodel\.libs/libgomp-1\.so: say in"),
            (["ggmodel/serve/page/markdown-it.js"], "without the licence of markdown-it"),
            (["ggmodel/serve/page/katex/fonts/a.woff2"], "without the licence of katex"),
            (["ggmodel/serve/page/highlight/a.js"], r"without the licence of highlight\.js"),
            (["ggmodel/__pycache__/x.py"], "do not belong there: ggmodel/__pycache__"),
            (["ggmodel/x.py.orig"], "do not belong there"),
        ],
    )
    def test_a_wheel_that_is_refused(self, tmp_path: Path, names: list[str], reason: str):
        with pytest.raises(Refused, match=reason):
            contents.check(self.wheel(tmp_path, *names), "1.2.0")

    def test_another_version(self, tmp_path: Path):
        wheel = self.wheel(tmp_path, name="ggmodel-1.1.0-x.whl")
        with pytest.raises(Refused, match=r"is not of version 1\.2\.0"):
            contents.check(wheel, "1.2.0")

    def test_a_wheel_that_is_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(contents, "_MOST", 10)
        with pytest.raises(Refused, match="10 at most"):
            contents.check(self.wheel(tmp_path, "ggmodel/a.py"), "1.2.0")

    @pytest.mark.parametrize(
        ("left_out", "more", "reason"),
        [("LICENSE", "", "lacks LICENSE"), ("", "sdk/ggmodel/x.so", "has binaries: sdk/ggmodel")],
    )
    def test_an_sdist_that_is_refused(self, tmp_path: Path, left_out: str, more: str, reason: str):
        path = tmp_path / "ggmodel-1.2.0.tar.gz"

        def pack(names: list[str]) -> None:
            with tarfile.open(path, "w:gz") as archive:
                for name in names:
                    archive.addfile(tarfile.TarInfo(f"ggmodel-1.2.0/{name}"))

        pack([*contents._NEEDED])
        assert contents.check(path, "1.2.0") == set()
        pack([name for name in (*contents._NEEDED, more) if name and name != left_out])
        with pytest.raises(Refused, match=reason):
            contents.check(path, "1.2.0")


class TestLicences:
    @pytest.mark.parametrize(
        ("said", "spdx"),
        [
            (["MIT", None], "MIT"),
            (["BSD-3-Clause AND MIT AND Zlib"], "BSD-3-Clause AND MIT AND Zlib"),
            (["GPL-3.0-only OR Apache-2.0"], "GPL-3.0-only OR Apache-2.0"),
            (["Apache-2.0 WITH LLVM-exception"], "Apache-2.0 WITH LLVM-exception"),
            ([None, "Apache Software License", None], "Apache-2.0"),
            ([None, "BSD License"], "BSD-3-Clause"),
            ([None, "OSI Approved", "MIT License"], "MIT"),
            ([None, "Mozilla Public License 2.0 (MPL 2.0)"], "MPL-2.0"),
            ([None, "The MIT License\n\nPermission is hereby granted"], "MIT"),
        ],
    )
    def test_the_licence_of_a_package(self, said: list[str | None], spdx: str):
        assert licences.expression("x", said) == spdx

    @pytest.mark.parametrize("said", ["GPL-3.0-only", "MIT AND GPL-3.0-only", "SSPL-1.0"])
    def test_one_that_is_not_accepted(self, said: str):
        with pytest.raises(Refused, match=f"x has the licence {said}: leave the package out"):
            licences.expression("x", [said])

    @pytest.mark.parametrize("said", [[], [None, None], ["Proprietary words", "A" * 2000]])
    def test_one_that_is_not_told(self, said: list[str | None]):
        with pytest.raises(Refused, match="x does not tell its licence"):
            licences.expression("x", said)

    def test_all_that_ggmodel_depends_on_is_accepted(self):
        """In this environment; `make release` looks at one of its own."""
        import importlib.metadata as metadata

        for name in ("numpy", "cffi", "jinja2", "tokenizers", "pillow", "rich", "typer"):
            about = metadata.metadata(name)
            classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or ()]
            said = [about["License-Expression"], *(c for c in classifiers if "Licen" in c)]
            licences.expression(name, [*said, about["License"]])

    def test_the_document(self):
        packages = [licences.Package("a", "1", "MIT", {"a.dist-info/LICENSE": "text of a\n"})]
        text = licences.document(packages, {"ggml": "text of ggml"})
        assert "\na 1  MIT\n" in text
        assert "brought along: ggml\n\ntext of ggml\n" in text
        assert "a 1: LICENSE\n\ntext of a\n" in text


class TestBill:
    def bill(self) -> dict[str, Any]:
        names = ("ggmodel", "numpy", "pip")
        return {
            "metadata": {},
            "components": [
                {"name": n, "bom-ref": f"{n}==1", "externalReferences": [{"url": "file:///x"}]}
                for n in names
            ],
            "dependencies": [{"ref": "ggmodel==1", "dependsOn": ["numpy==1"]}, {"ref": "pip==1"}],
        }

    def test_the_environment_of_ggmodel_is_its_bill(self):
        bill = sbom.completed(self.bill(), {"ggml"})
        assert bill["metadata"]["component"] == {
            "name": "ggmodel",
            "bom-ref": "ggmodel==1",
            "type": "library",
        }
        assert [c["name"] for c in bill["components"]] == ["numpy", "ggml"]
        assert bill["dependencies"] == [
            {"ref": "ggmodel==1", "dependsOn": ["bundled-ggml", "numpy==1"]}
        ]

    def test_a_bill_without_ggmodel(self):
        bill = self.bill()
        bill["components"].pop(0)
        with pytest.raises(Refused, match="ggmodel is not in the bill"):
            sbom.completed(bill, ())

    def test_a_bill_without_dependencies(self):
        bill = self.bill()
        bill["dependencies"].pop(0)
        with pytest.raises(Refused, match="nothing that ggmodel depends on"):
            sbom.completed(bill, ())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").write_text("x")
    command = [sys.executable, "-m", "tools.release", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"refused: {tmp_path} is not empty")
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
