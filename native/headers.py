"""ggml's declarations, read from the headers of an installed ggml.

The C compiler preprocesses the headers, pycparser parses them, and the result is text for cffi. No
declaration of ggml is written down here: a new version brings its own.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycparser import c_ast, c_generator, c_parser

from ..errors import NativeError
from ..platforms.machine import default_compiler
from .install import BASE, present

# Types that cffi knows and pycparser must be told.
_PROLOGUE = "".join(
    f"typedef int {name};\n"
    for name in ["bool", "size_t", "ssize_t", "intptr_t", "uintptr_t", "FILE", "va_list"]
    + [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)

# GNU keywords that pycparser and cffi cannot parse: the preprocessor drops them.
_FORGET = ("__attribute__(x)=", "__extension__=", "__restrict=restrict", "_Noreturn=")


@dataclass(frozen=True)
class Function:
    """One function of ggml: its name, the header that declares it, and its syntax tree."""

    name: str
    header: str
    decl: c_ast.FuncDecl

    @property
    def result(self) -> str:
        """The C type it returns."""
        return _text(c_ast.Typename(None, [], None, _renamed(self.decl.type, None)))

    @property
    def parameters(self) -> list[str]:
        """The C types of its parameters."""
        return [_text(c_ast.Typename(None, [], None, _renamed(p.type, None))) for p in self._args]

    @property
    def _args(self) -> list[c_ast.Decl]:
        args = list(self.decl.args.params) if self.decl.args else []
        # A lone `void` means "no parameters".
        return [] if [_text(a).strip() for a in args] == ["void"] else args

    def prototype(self, name: str, result: str | None = None) -> str:
        """The declaration as C text under another name; parameters are called p0, p1, …"""
        args = [_declaration(p.type, f"p{i}") for i, p in enumerate(self._args)]
        head = f"{name}({', '.join(args) or 'void'})"
        return f"{result or self.result} {head}"


@dataclass(frozen=True)
class Declarations:
    """The declarations of the headers.

    Attributes:
        types: types and constants as cffi text. Functions that are not linked (a build may lack
            their backend, or the libraries do not export them) appear as function pointer types
            NAME_t, for use with `ggml_backend_reg_get_proc_address`.
        functions: the functions to be linked.
    """

    types: str
    functions: tuple[Function, ...]


def read(include: Path, exported: Callable[[str], bool]) -> Declarations:
    """Read the declarations of the ggml whose headers lie in `include`.

    Args:
        include: the folder of ggml.h.
        exported: tells whether libggml-base or libggml export a symbol of this name.
    """
    headers = present(include)
    code, constants = _preprocess(include, headers)
    try:
        tree = c_parser.CParser().parse(_PROLOGUE + code)
    except Exception as error:
        raise NativeError(f"cannot read the ggml headers in {include}: {error}") from error

    types = [f"#define {name} ..." for name in constants]
    functions: list[Function] = []
    declared: set[str] = set()
    for node in tree.ext:
        header = Path(node.coord.file).name if node.coord else ""
        if header not in headers:
            continue
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            if not _expressible(node.type):
                continue
            function = Function(node.name, header, node.type)
            if header in BASE and exported(node.name):
                functions.append(function)
            elif f"{node.name}_t" not in declared:
                declared.add(f"{node.name}_t")
                types.append(f"typedef {function.prototype(f'(*{node.name}_t)')};")
        elif isinstance(node, c_ast.Typedef):
            # Some typedefs are in two headers; cffi wants each once.
            if node.name not in declared:
                declared.add(node.name)
                types.append(_text(_relaxed(node)) + ";")
        elif isinstance(node, c_ast.Decl) and node.name is None:
            types.append(_text(_relaxed(node)) + ";")
    return Declarations("\n".join(types), tuple(functions))


def compiler() -> list[str]:
    """The command of the C compiler: $CC, or cc; on Windows clang or gcc."""
    # There backslashes are in paths.
    return shlex.split(os.environ.get("CC") or default_compiler(), posix=sys.platform != "win32")


def run_compiler(arguments: list[str], stdin: str | None = None) -> str:
    """Run the C compiler and return its output; errors become `NativeError`."""
    command = [*compiler(), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", input=stdin)
    except OSError as error:
        raise NativeError(
            f"the C compiler {command[0]!r} cannot be started ({error.strerror}); it is needed "
            "once, to bind to this build of ggml. Install one (Debian: apt-get install gcc; "
            "Fedora: dnf install gcc; macOS: xcode-select --install; Windows: winget install "
            "LLVM.LLVM) or set CC"
        ) from error
    if done.returncode:
        raise NativeError(f"{shlex.join(command)} failed:\n{done.stderr.strip()[-4000:]}")
    return done.stdout


def _preprocess(include: Path, headers: list[str]) -> tuple[str, list[str]]:
    """Preprocessed C of the headers, and the names of their integer constants."""
    with tempfile.TemporaryDirectory() as empty:
        # Empty files replace system headers, whose declarations cffi knows itself.
        for path in include.glob("*.h"):
            for name in re.findall(
                r"#\s*include\s*<([^>]+)>", path.read_text(encoding="utf-8", errors="replace")
            ):
                (Path(empty) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(empty) / name).touch()
        defines = [f"-D{define}" for define in _FORGET]
        places = ["-nostdinc", "-I", str(include), "-I", empty]
        lines = run_compiler(
            ["-E", "-dD", "-x", "c", *places, *defines, "-"],
            "".join(f'#include "{name}"\n' for name in headers),
        ).splitlines()
    constants = {
        match[1]
        for line in lines
        if (match := re.match(r"#define (GGML_\w+) (?:-?\d+|0x[0-9a-fA-F]+)\s*$", line))
    }
    code = [line for line in lines if not re.match(r"#(define|undef)\b", line)]
    return "\n".join(code) + "\n", sorted(constants)


def _expressible(decl: c_ast.FuncDecl) -> bool:
    """Whether cffi can call it: no variable argument lists."""
    nodes = list(_walk(decl))
    if any(isinstance(node, c_ast.EllipsisParam) for node in nodes):
        return False
    return not any(isinstance(n, c_ast.IdentifierType) and "va_list" in n.names for n in nodes)


def _walk(node: c_ast.Node) -> Iterator[c_ast.Node]:
    yield node
    children: Any = node.children()
    for _, child in children:
        yield from _walk(child)


def _relaxed(node: c_ast.Node) -> c_ast.Node:
    """The declaration with every computed number replaced by "...": the compiler fills it in."""
    node = copy.deepcopy(node)
    for part in _walk(node):
        field = {c_ast.ArrayDecl: "dim", c_ast.Enumerator: "value"}.get(type(part))
        if field and not isinstance(getattr(part, field), c_ast.Constant | None):
            setattr(part, field, c_ast.ID("..."))
    return node


def _renamed(node: c_ast.Node, name: str | None) -> c_ast.Node:
    """The type of a parameter or result, declaring `name` instead."""
    node = copy.deepcopy(node)
    inner: Any = node
    while not isinstance(inner, c_ast.TypeDecl):
        inner = inner.type
    inner.declname = name
    return node


def _declaration(node: c_ast.Node, name: str) -> str:
    """A variable of a type, as C text."""
    return _text(c_ast.Decl(name, [], [], [], [], _renamed(node, name), None, None))


def _text(node: c_ast.Node) -> str:
    return c_generator.CGenerator().visit(node)
