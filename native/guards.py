"""C wrappers that turn a failing assert of ggml into a result that Python can check.

ggml calls `abort()` for invalid arguments. A wrapper saves its place with `setjmp`, and the abort
callback jumps back there (see shim.c); the wrapper then returns NULL or false, and the text of the
assert is kept for the thread. The C compiler sees the wrapper under the plain name, so a guarded
call costs one `setjmp` and nothing in Python.

The rule selects the functions that build graphs: declared in ggml.h, which is plain C (jumping over
C++ frames would be unsafe), with a context, graph or tensor that they may change, and returning a
pointer, a bool or nothing; and `ggml_init`, which fails where memory is short. A guarded function
that returns nothing in C returns a bool here: true if it returned, false if it aborted.
"""

from __future__ import annotations

from .headers import Function

_SUBJECTS = {f"struct ggml_{name} *" for name in ("context", "cgraph", "tensor")}
_MAKES_CONTEXTS = "ggml_init"


def is_guarded(function: Function) -> bool:
    """Whether a function builds graphs and gets a wrapper."""
    if function.name == _MAKES_CONTEXTS:
        return True
    if function.header != "ggml.h" or not function.parameters:
        return False
    result = function.result
    fails_visibly = result.endswith("*") or result in ("void", "bool")
    return fails_visibly and function.parameters[0] in _SUBJECTS


def prototype(function: Function) -> str:
    """The declaration for cffi: the wrapper's result, under the plain name."""
    returned = "bool" if is_guarded(function) and function.result == "void" else None
    return function.prototype(function.name, returned) + ";"


def wrapper(function: Function) -> str:
    """The wrapper in C, and the macro that replaces the function by it."""
    name, result = function.name, function.result
    arguments = ", ".join(f"p{i}" for i in range(len(function.parameters)))
    if result == "void":
        result, call, success = "bool", "", "true"
    else:
        call, success = f"{result} result = ", "result"
    return f"""
static {function.prototype(f"guarded_{name}", result)} {{
    GUARD_ENTER(({result}) 0);
    {call}{name}({arguments});
    GUARD_LEAVE();
    return {success};
}}
#define {name} guarded_{name}
"""
