"""`ggmodel serve` and `ggmodel batch`: models behind the APIs of OpenAI, Anthropic and Ollama.

A batch is offline inference, from a file of requests to a file of answers.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, Unsupported
from ..imports import install_command
from ..storage import check_target
from .loading import LoadingForMany, LoadingToGenerate
from .options import Force, RayCpus, RayGpus, RayReplicas, complete_model, expanded
from .serving import Serving
from .terminal import count, note, printable, progress_bar, say

if TYPE_CHECKING:
    from ..serve.replicas import Plan
    from ..serve.server import Server, Settings

_EXPOSED = "warning: other machines can reach this server, and need no key; give --api-key-file"

Engine = Annotated[
    str,
    typer.Option(
        metavar="auto|ggmodel|llama.cpp",
        help="Inference engine; auto runs architectures that ggmodel lacks with llama.cpp.",
    ),
]
KeepAlive = Annotated[
    float | None,
    typer.Option(
        help="Seconds that an idle model stays loaded (-1 = for ever); default: 300.",
        show_default=False,
    ),
]


@expanded("where")
def serve(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete_model,
            metavar="[MODEL]…",
            help="Files, folders, names, or NAME=MODEL. Others on this machine are served, too.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Serve only the models that are named.")
    ] = False,
    any_name: Annotated[
        bool,
        typer.Option("--any-name", help="Answer requests for unknown models with the first MODEL."),
    ] = False,
    engine: Engine = "auto",
    keep_alive: KeepAlive = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Model that is never unloaded; may be repeated."),
    ] = None,
    queue: Annotated[
        int, typer.Option(min=1, help="Concurrent requests to a model; more are refused.")
    ] = 512,
    ray: RayReplicas = None,
    ray_cpus: RayCpus = 1.0,
    ray_gpus: RayGpus = 0.0,
    *,
    serving: Serving,
    loading: LoadingForMany,
) -> None:
    """Serve models over HTTP, by several APIs.

    The APIs are those of OpenAI, Anthropic, Ollama and llama-server; a web page is part of it. Each
    model runs in a process of its own, started when it is asked for. SIGTERM and Ctrl-C let
    requests finish. Options of loading apply to all models.
    """
    need_libraries()
    from ..serve.security import is_loopback

    settings, models, options = serving.settings(), named(files or ()), options_of(loading)
    if not is_loopback(settings.host) and not settings.keys:
        say(_EXPOSED)
    same: Any = {"options": options, "any_name": any_name, "engine": engine, "queue": queue}
    if ray is None:
        stays: Any = {} if keep_alive is None else {"keep_alive": keep_alive}
        _serve_here(models, settings, serving, pinned=pin or (), stores=not only, **stays, **same)
        return
    from ..serve.replicas import Plan

    _refuse_options(keep_alive, pin, serving.manage)
    plan = Plan(models, ray, cpus=ray_cpus, gpus=ray_gpus, **same)
    _serve_replicas(plan, settings, serving)


def _serve_here(models: dict[str, str], settings: Settings, serving: Serving, **how: Any) -> None:
    """Serves models of this machine.

    Args:
        how: of `ModelPool`.
    """
    from ..serve.listening import listen
    from ..serve.models import ModelPool
    from ..serve.server import Server

    pool = ModelPool(models, **how)
    pool.check()
    listen(Server(pool, settings), serving.listening(), lambda url: _tell(url, settings))


def _refuse_options(keep_alive: float | None, pin: list[str] | None, manage: bool) -> None:
    """Raises ConfigError where one of them is given: replicas have no use for it."""
    options = {"--keep-alive": keep_alive is not None, "--pin": pin, "--manage": manage}
    for option, is_given in options.items():
        if is_given:
            raise ConfigError(
                f"leave out {option} or --ray: models on Ray are those that are named, and stay "
                "loaded on all replicas"
            )


def _serve_replicas(plan: Plan, settings: Settings, serving: Serving) -> None:
    """Starts the replicas, and serves until the process is told to end."""
    from ..serve.listening import reserved
    from ..serve.replicas import deployed
    from ..serve.server import Server

    plan.check()
    with reserved(settings, serving.listening()) as serve, ExitStack() as stack:
        with progress_bar("loading") as progress:
            models = stack.enter_context(deployed(plan, progress))
        for name in plan.named:
            note(f"{name} is on {count(plan.replicas, 'replica')}")
        serve(Server(models, settings), lambda url: _tell(url, settings))


def named(models: Any) -> dict[str, str]:
    """Name → path or name of each model; a file is called by its own name without its ending.

    Raises:
        ConfigError: a file does not exist, or two have the same name.
    """
    from ..names.grammar import is_path

    models_by_name: dict[str, str] = {}
    for argument in models:
        name, equals, source = argument.partition("=")
        if not equals or os.path.exists(argument):
            name = source = argument
        if os.path.exists(source):
            source = os.path.abspath(source)
            if name == argument:
                name = os.path.basename(source).removesuffix(".gguf")
        elif is_path(source):
            raise ConfigError(f"{source}: there is no such file or folder")
        if name in models_by_name:
            raise ConfigError(f"two models are called {name!r}; give NAME={source}")
        models_by_name[name] = source
    return models_by_name


def options_of(loading: LoadingForMany) -> dict[str, Any]:
    """The options that differ from the defaults of `ggmodel.load`, and the number of sequences."""
    defaults = {**LoadingToGenerate().arguments(), "cache_ram": 0}
    changed = {k: v for k, v in loading.arguments().items() if v != defaults[k]}
    if adapters := changed.get("adapters"):  # for processes of their own
        changed["adapters"] = {os.path.abspath(path): s for path, s in adapters.items()}
    if "prefix_store" in changed:
        changed["prefix_store"] = os.path.abspath(changed["prefix_store"])
    return {"parallel": loading.parallel, **changed}


def need_libraries() -> None:
    """Raises Unsupported unless the libraries of the server are installed."""
    try:
        for name in ("msgspec", "prometheus_client", "starlette", "uvicorn"):
            import_module(name)
    except ImportError as error:
        raise Unsupported(f"the server needs {error.name}: {install_command('serve')}") from None


def reachable(url: str) -> str:
    """The URL for clients on this machine; nobody can connect to "every address"."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _tell(url: str, settings: Settings) -> None:
    print(f"serving at {url} until Ctrl-C", flush=True)
    url = reachable(url)
    note(f"OpenAI's clients take base_url={url}/v1, people the page {url}")
    if settings.keys:
        note(f"keys that are accepted: {len(settings.keys)}")


_MORE = 2  # requests under way for each sequence: the next is read while one is computed

RequestFile = Annotated[
    Path,
    typer.Argument(
        metavar="REQUESTS.jsonl",
        help='Lines {"custom_id", "method": "POST", "url", "body"}, as OpenAI\'s batches.',
        show_default=False,
    ),
]
NamedModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        autocompletion=complete_model,
        metavar="MODEL",
        help="A file, folder, name, or NAME=MODEL; may be repeated. Requests may name other models "
        "on this machine.",
    ),
]


@expanded("where")
def batch(
    requests: RequestFile,
    answers: Annotated[
        Path, typer.Argument(metavar="ANSWERS.jsonl", help="The file to write.", show_default=False)
    ],
    model: NamedModels = None,
    ray: RayReplicas = None,
    ray_cpus: RayCpus = 1.0,
    ray_gpus: RayGpus = 0.0,
    force: Force = False,
    *,
    loading: LoadingForMany,
) -> None:
    """Answer a file of requests (offline batch inference).

    Answers are those of `ggmodel serve`, in the order of the requests. A run that was cut off goes
    on where it stopped.
    """
    need_libraries()
    check_target(answers, force=force, device=False)
    from ..serve.batch import AnswerFile, RequestFile, answer_here

    options = options_of(loading)
    models = named(model or ())
    width = loading.parallel * _MORE
    lines = RequestFile(requests)
    with AnswerFile(answers, lines, force=force) as written:
        before = written.done
        if before:
            note(f"{before:,} of {lines.count:,} answers are there already")
        with progress_bar("answering") as share:

            def progress(done: int) -> None:
                share(done / lines.count)

            if ray is None:
                import asyncio

                server = make_server(models, options, width)
                asyncio.run(answer_here(lines, written, server, width, progress))
            else:
                from ..serve.batch.on_ray import answer_on_ray

                def replica() -> Any:
                    return make_server(models, options, width)

                answer_on_ray(
                    lines, written, replica, width, ray, progress, cpus=ray_cpus, gpus=ray_gpus
                )
    print(printable(f"{answers}: {lines.count:,} answers, {lines.count - before:,} of them new"))


def make_server(models: dict[str, str], options: dict[str, Any], width: int) -> Server:
    """A server without a port."""
    from ..serve.models import ModelPool
    from ..serve.server import Server, Settings

    # Nobody else asks: models stay until the end.
    pool = ModelPool(models, options=options, keep_alive=-1.0, queue=max(512, 4 * width))
    return Server(pool, Settings(timeout=0.0))
