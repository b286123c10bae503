"""The runner process: loads a model, reports progress, and serves the model until it is told to
end.

It writes lines of JSON to standard output: {"event": "listening", "port": PORT},
{"event": "needs", "cpu": BYTES, "free": BYTES, "mapped": BYTES, "missing": {DEVICE: BYTES}},
{"event": "context", "length": TOKENS, "trained": TOKENS, "bytes": BYTES},
{"event": "loading", "share": 0.5}, {"event": "warning", "message": TEXT}, {"event": "ready"},
{"event": "failed", "error": CLASS, "message": TEXT}. `main` tells {"event": "alive"} again and
again until the model is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ...errors import Error, ModelNotFound
from ...names import ResolvedModel, find_stored
from ...platforms.processes import leave_no_core, prepare_to_serve

Report = Callable[[Mapping[str, Any]], None]
_FINER = 0.01  # the least share of progress that is told
_writing = threading.Lock()


def serve(
    source: str | ResolvedModel, token: str, port: int, options: Mapping[str, Any], report: Report
) -> Callable[[], None]:
    """Listens, loads a model, and serves it from then on in other threads.

    Args:
        token: the secret that requests begin with.
        options: of `ggmodel.load`.

    Returns:
        Closes the model.

    Raises:
        Error: it cannot be loaded, or the port not be had.
    """
    from .connections import Listener

    prepare_to_serve()
    listener = Listener(token, port)
    report({"event": "listening", "port": listener.port})
    from ...loading import load

    last = 0.0

    def progress(share: float) -> None:
        nonlocal last
        if share - last >= _FINER or share >= 1:
            last = share
            report({"event": "loading", "share": round(share, 4)})

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: report(
            {"event": "warning", "message": str(message)}
        )
        warnings.simplefilter("always")
        try:
            model = load(source, **options, progress=progress)
        except BaseException:
            listener.close()
            raise
    listener.ready(model)
    report({"event": "ready"})

    def close() -> None:
        listener.close()
        model.close()

    return close


def write_line(message: Mapping[str, Any]) -> None:
    """Writes a line of JSON to standard output."""
    with _writing:
        print(json.dumps(message), flush=True)


def main() -> None:
    """Serves the model of the first line of standard input until standard input ends, as it does
    with the process that wrote it.

    The line is JSON with `model`, `token` and `options`, and

    - `pause`: seconds between lines that tell that this process lives, while it loads;
    - `stored`: the model is a name of this machine's stores, and no path;
    - `taken`: see `_ask`;
    - `asks`: tell what memory the model needs, and load it when a line of JSON says "load"; one
      that says "look" asks to look again.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the server, too
    leave_no_core()
    request, loaded = read_line(), threading.Event()
    live = (request["pause"], loaded)
    threading.Thread(target=_live, args=live, name="ggmodel-alive", daemon=True).start()
    try:
        source = _stored(request["model"]) if request["stored"] else request["model"]
        if request["asks"]:
            _ask(source, request["options"], request["taken"])
        threading.Thread(target=_end_with_input, name="ggmodel-parent", daemon=True).start()
        serve(source, request["token"], 0, request["options"], write_line)
        loaded.set()
    except Error as error:
        write_line({"event": "failed", "error": type(error).__name__, "message": str(error)})
        sys.stdout.flush()
        os._exit(1)
    threading.Event().wait()


def _live(seconds: float, loaded: threading.Event) -> None:
    """Tells that this process lives, until it has loaded its model."""
    with suppress(OSError):  # nobody listens any more
        while True:
            write_line({"event": "alive"})
            if loaded.wait(min(seconds, threading.TIMEOUT_MAX)):
                return


def _stored(name: str) -> ResolvedModel:
    model = find_stored(name)
    if model is None:
        raise ModelNotFound(f"{name[:200]!r} is in no store of this machine any more")
    return model


def _ask(source: str | ResolvedModel, options: dict[str, Any], taken: int | None) -> None:
    """Returns when the model may be loaded; the options then have its context.

    Args:
        taken: bytes of free memory that are promised to others. None: no longer context is looked
            for than the default.
    """
    from ...workbench.estimate import needed, needed_with_room

    while True:
        if taken is None:
            estimate = needed(source, **options)
        else:
            estimate = needed_with_room(source, taken, options)
        cpu = estimate.devices[-1]
        needs = {"cpu": cpu.size, "free": cpu.free, "mapped": estimate.mapped}
        write_line({"event": "needs", **needs, "missing": estimate.missing()})
        if read_line() == "load":
            break
    length, trained = estimate.context_length, estimate.trained_context
    if taken is not None and options.get("context_length") is None:
        options["context_length"] = length
        nbytes = sum(sum(d.cache) + d.graph for d in estimate.devices)
        write_line({"event": "context", "length": length, "trained": trained, "bytes": nbytes})


def read_line() -> Any:
    """The next line of standard input; the process ends with it."""
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(0)
    return json.loads(line)


def _end_with_input() -> None:
    with suppress(OSError):
        while sys.stdin.buffer.readline():
            pass
    os._exit(0)  # nothing is to be saved, and a step may be under way


if __name__ == "__main__":
    main()
