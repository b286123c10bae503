"""The two sides of a comparison: our processes, and the peer's that do the same."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SDK = Path(__file__).parents[1] / "sdk"
PROMPT = "Once upon a time there was"
CONTEXT = 4096  # of a start; our default
OUTSIDE = ", outside ggml"  # behind a row's name: microseconds a token, only of ours
PROGRAMS = {
    "speed": "llama-bench",
    "prompt": "llama-bench",
    "depth": "llama-bench",
    "sequences": "llama-batched-bench",
    "crowd": "llama-batched-bench",
    "deep": "llama-batched-bench",
    "start": "llama-completion",
    "cold": "llama-completion",
    "long": "llama-bench",
}
"""The peer's program for each group."""

_SETTLED = 0.025  # seconds before the first token in which memory is sampled
_TICK = os.sysconf("SC_CLK_TCK")

# The versions of ggml and ggmodel, the folders of ggml's libraries and of ggmodel, the module.
_ABOUT = """
import os
import ggmodel
from ggmodel import native
from ggmodel.native import install
folders = install.find().libraries, os.path.dirname(ggmodel.__file__)
module = native.describe()["module"]
print(native.version, ggmodel.__version__, *folders, module, sep="\\n")
"""

# Loading and the first token, after everything is imported.
_IN_PROCESS = """
import sys, time
from ggmodel import load
began = time.perf_counter()
with load(sys.argv[1], threads=int(sys.argv[2])) as model:
    model.generate(sys.argv[3], max_tokens=1, temperature=0)
    print(time.perf_counter() - began)
"""


class Failed(Exception):
    """A process failed."""


@dataclass(frozen=True)
class Clock:
    """A moment, to measure the CPU time of other processes.

    Attributes:
        busy: seconds that the cores of this process have worked so far, for any process.
        own: CPU seconds of this process and its ended children.
    """

    wall: float
    busy: float
    own: float

    @classmethod
    def now(cls, stat: str | None = None) -> Clock:
        """
        Args:
            stat: the content of /proc/stat.
        """
        stat = Path("/proc/stat").read_text() if stat is None else stat
        cores = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        busy = 0
        for line in stat.splitlines():
            name, *numbers = line.split()
            if name in cores:
                user, nice, system, _, _, irq, softirq, steal = map(int, numbers[:8])
                busy += user + nice + system + irq + softirq + steal
        used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(u.ru_utime + u.ru_stime for u in used)
        return cls(time.perf_counter(), busy / _TICK, own)

    def foreign(self, later: Clock, cores: int) -> float:
        """The share of the cores that other processes used until then."""
        others = (later.busy - self.busy) - (later.own - self.own)
        return max(0.0, others) / (cores * max(later.wall - self.wall, 1e-9))


@dataclass
class Ran:
    """A process that has ended.

    Attributes:
        resident: bytes in memory just before the first output. foreign: see `Clock`.
    """

    output: str
    seconds: float
    foreign: float
    resident: float = 0.0


def run(command: Sequence[str], env: Mapping[str, str], *, watch: bool = False) -> Ran:
    """Runs a process to its end.

    Args:
        watch: sample its memory until its first output.

    Raises:
        Failed: the program is missing, or its exit status is not 0.
    """
    began, output, samples = Clock.now(), b"", []
    said = 0.0
    if not shutil.which(command[0]):
        raise Failed(f"there is no program {command[0]}")
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=env
        ) as process,
    ):
        assert process.stdout is not None
        while True:
            looking = watch and not said
            ready, _, _ = select.select([process.stdout], [], [], 0.005 if looking else None)
            if looking:
                samples.append((time.perf_counter(), _resident(process.pid)))
            if ready:
                data = os.read(process.stdout.fileno(), 1 << 16)
                said = said or time.perf_counter()
                output += data
                if not data:
                    break
        process.wait()
        errors.seek(0)
        if process.returncode:
            tail = errors.read().decode(errors="replace")[-2000:]
            raise Failed(f"{' '.join(command)}\nended with {process.returncode}:\n{tail}")
    ended = Clock.now()
    resident = max((size for at, size in samples if at > said - _SETTLED), default=0)
    foreign = began.foreign(ended, len(os.sched_getaffinity(0)))
    return Ran(output.decode(errors="replace"), ended.wall - began.wall, foreign, resident)


def digest_of(files: Iterable[Path]) -> str:
    """A digest of names and contents."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _resident(pid: int) -> int:
    """Bytes in memory, mapped files included; 0 once the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith("VmRSS:")), 0)


@dataclass
class Side:
    """Measures groups of rows.

    Attributes:
        extra: further arguments of every command that computes.
        foreign: the largest share of the cores used by other processes since it was set to 0.
    """

    threads: int
    extra: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    foreign: float = 0.0

    def measure(self, file: Path, group: str) -> dict[str, float]:
        """Each row of the group: tokens/s, seconds or bytes; and microseconds (see `OUTSIDE`)."""
        if group == "speed":
            return self.speeds(file, 512, 64, 0)
        if group == "prompt":
            return self.speeds(file, 2048, 0, 0)
        if group == "depth":
            return self.speeds(file, 0, 32, 2048)
        if group == "long":
            return self.speeds(file, 0, 16, 8192 if "1b" in file.name else 32768)
        if group == "sequences":
            return self.sequences(file, 32, (2, 4, 8, 32), 0)
        if group in ("crowd", "deep"):
            return self.sequences(file, 32, (8, 32), 512 if group == "crowd" else 4096)
        return self.cold(file) if group == "cold" else self.start(file)

    def speeds(self, file: Path, prompt: int, tokens: int, depth: int) -> dict[str, float]:
        raise NotImplementedError

    def sequences(
        self, file: Path, tokens: int, counts: Sequence[int], depth: int
    ) -> dict[str, float]:
        raise NotImplementedError

    def once(self, file: Path, *more: str) -> Ran:
        """A process that loads the file and gives one token."""
        raise NotImplementedError

    def start(self, file: Path) -> dict[str, float]:
        raise NotImplementedError

    def cold(self, file: Path) -> dict[str, float]:
        """The file is not in the page cache. It was read a moment before, by both sides: what lies
        below, such as the cache of a virtual machine's host, would serve whoever comes second."""
        chunk = bytearray(1 << 24)
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(chunk):
                pass
            os.fsync(opened.fileno())  # what is yet to be written would stay
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return {"start, cold": self.once(file).seconds}

    def run(self, command: Sequence[str], watch: bool = False) -> Ran:
        """`run`, noting what others did."""
        ran = run([*command, *self.extra], self.env, watch=watch)
        self.foreign = max(self.foreign, ran.foreign)
        return ran


@dataclass
class Ours(Side):
    """`python -m ggmodel`.

    Attributes:
        python: the interpreter of an installed ggmodel; None for this checkout.
    """

    python: Path | None = None

    def __post_init__(self):
        if self.python is None:
            self.env["PYTHONPATH"] = str(SDK)
        else:
            self.env.pop("PYTHONPATH", None)
        # Or each process would compile all of the modules that it imports.
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)

    def _bench(self, file: Path, *options: str) -> dict[str, float]:
        ran = self.run([*self._ggmodel("bench", file), "--json", "-r", "1", *options])
        rows = json.loads(ran.output)
        outside = {row["test"] + OUTSIDE: row["microseconds_outside_ggml"] for row in rows}
        found = {row["test"]: row["tokens_per_second"] for row in rows}
        return found | {name: value for name, value in outside.items() if value is not None}

    def about(self) -> tuple[str, str, str, Path, Path]:
        """The versions of ggmodel and of ggml, a digest of ggml's libraries; ggmodel's folder, and
        its compiled module."""
        output = run([self._python, "-c", _ABOUT], self.env).output
        ggml, version, libraries, package, module = output.splitlines()
        build = digest_of(sorted(Path(libraries).glob("libggml*.so")))
        return version, ggml, build, Path(package), Path(module)

    @property
    def _python(self) -> str:
        return str(self.python or sys.executable)

    def _ggmodel(self, command: str, file: Path) -> list[str]:
        program = [self._python, "-m", "ggmodel", command, str(file)]
        return [*program, "--threads", str(self.threads)]

    def lacks(self, group: str) -> str | None:
        """Nothing: see `Peer.lacks`."""
        return None

    def ggml(self) -> str:
        """The version of its ggml."""
        return self.about()[1]

    def build(self) -> str:
        """A digest of its libraries."""
        return self.about()[2]

    def speeds(self, file: Path, prompt: int, tokens: int, depth: int) -> dict[str, float]:
        return self._bench(file, "-p", str(prompt), "-n", str(tokens), "-d", str(depth))

    def sequences(
        self, file: Path, tokens: int, counts: Sequence[int], depth: int
    ) -> dict[str, float]:
        many = ("--parallel", ",".join(map(str, counts)))
        return self._bench(file, "-p", "0", "-n", str(tokens), "-d", str(depth), *many)

    def once(self, file: Path, *more: str) -> Ran:
        options = (PROMPT, "--raw", "--max-tokens", "1", "--temperature", "0")
        context = ("--context-length", str(CONTEXT))
        return self.run([*self._ggmodel("run", file), *options, *context, *more], watch=True)

    def start(self, file: Path) -> dict[str, float]:
        whole = self.once(file)
        found = {
            "start": whole.seconds,
            "start, peer without warm-up": whole.seconds,
            "resident": whole.resident,
        }
        if not self.extra:  # which are for commands
            code = [self._python, "-c", _IN_PROCESS, str(file), str(self.threads), PROMPT]
            ran = run(code, self.env)
            self.foreign = max(self.foreign, ran.foreign)
            found["load + first token after import"] = float(ran.output)
        return found


@dataclass
class Peer(Side):
    """Binaries of llama.cpp in a folder."""

    folder: Path = Path()

    def __post_init__(self):
        paths = [str(self.folder), self.env.get("LD_LIBRARY_PATH", "")]
        self.env["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))

    def _program(self, name: str, file: Path, *options: str) -> list[str]:
        common = ("-m", str(file), "-t", str(self.threads), "-fa", "1")
        return [str(self.folder / name), *common, *options]

    def speeds(self, file: Path, prompt: int, tokens: int, depth: int) -> dict[str, float]:
        numbers = ["-p", str(prompt), "-n", str(tokens)]
        numbers += ["-d", str(depth)] if depth else []  # ik_llama.cpp knows no depth
        ran = self.run(
            self._program("llama-bench", file, *numbers, "-ub", "512", "-r", "1", "-o", "json")
        )
        found = {}
        for row in json.loads(ran.output):
            what = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
            found[what + (f" @ d{depth}" if depth else "")] = row["avg_ts"]
        return found

    def sequences(
        self, file: Path, tokens: int, counts: Sequence[int], depth: int
    ) -> dict[str, float]:
        many, prompt = ",".join(map(str, counts)), depth or 1
        # It rounds each sequence up to 256.
        context = str(max(counts) * -(-(prompt + tokens) // 256) * 256)
        ran = self.run(
            self._program(
                "llama-batched-bench", file, "-npp", str(prompt), "-ntg", str(tokens), "-npl", many,
                "-c", context, "-ub", "512", "--output-format", "jsonl",
            )
        )  # fmt: skip
        lines = (json.loads(x) for x in ran.output.splitlines() if x.startswith("{"))
        behind = f" @ d{depth}" if depth else ""
        return {f"tg{x['tg']} x{x['pl']}{behind}": x["speed_tg"] for x in lines}

    def once(self, file: Path, *more: str) -> Ran:
        options = ("-p", PROMPT, "-n", "1", "--temp", "0", "-no-cnv", "--no-display-prompt")
        program = self._program("llama-completion", file, *options, "-c", str(CONTEXT), *more)
        return self.run(program, watch=True)

    def start(self, file: Path) -> dict[str, float]:
        whole = self.once(file)
        return {
            "start": whole.seconds,
            "start, peer without warm-up": self.once(file, "--no-warmup").seconds,
            "load + first token after import": whole.seconds,
            "resident": whole.resident,
        }

    def lacks(self, group: str) -> str | None:
        """The program that this group needs and the folder does not have."""
        name = PROGRAMS[group]
        return None if shutil.which(str(self.folder / name)) else name

    def ggml(self) -> str:
        """The version of its ggml; "?" where that is not a library of its own."""
        for library in self._libraries("libggml-base"):
            code = (
                "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).ggml_version; "
                "f.restype = ctypes.c_char_p; print(f().decode())"
            )
            return run([sys.executable, "-c", code, str(library)], self.env).output.strip()
        return "?"

    def build(self) -> str:
        """A digest of its libraries and programs."""
        programs = [self.folder / name for name in sorted(set(PROGRAMS.values()))]
        libraries = [*self._libraries("libggml*"), *self._libraries("libllama*")]
        return digest_of([*libraries, *(path for path in programs if path.exists())])

    def _libraries(self, name: str) -> list[Path]:
        folders = (self.folder, self.folder.parent / "lib")
        return [path for folder in folders for path in sorted(folder.glob(f"{name}.so"))]
