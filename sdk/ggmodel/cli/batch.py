"""`ggmodel batch`: offline inference, from a file of requests to a file of answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..atomic import check_target
from .expanded import expanded
from .loading import LoadingForMany
from .options import Force, RayCpus, RayGpus, RayReplicas, complete_model
from .serve import named, need_libraries, options_of
from .terminal import note, printable, progress_bar

if TYPE_CHECKING:
    from ..serve.server import Server

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
        Path,
        typer.Argument(metavar="ANSWERS.jsonl", help="The file to write.", show_default=False),
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
    from ..serve.batch import Answers, Requests, answer_here

    options = options_of(loading)
    models = named(model or ())
    width = int(options["parallel"]) * _MORE
    asked = Requests(requests)
    with Answers(answers, asked, force=force) as written:
        before = written.done
        if before:
            note(f"{before:,} of {asked.count:,} answers are there already")
        with progress_bar("answering") as share:

            def progress(done: int) -> None:
                share(done / asked.count)

            if ray is None:
                import asyncio

                server = make_server(models, options, width)
                asyncio.run(answer_here(asked, written, server, width, progress))
            else:
                from ..serve.batch.on_ray import answer_on_ray

                def replica() -> Any:
                    return make_server(models, options, width)

                answer_on_ray(
                    asked, written, replica, width, ray, progress, cpus=ray_cpus, gpus=ray_gpus
                )
    print(printable(f"{answers}: {asked.count:,} answers, {asked.count - before:,} of them new"))


def make_server(models: dict[str, str], options: dict[str, Any], width: int) -> Server:
    """A server without a port."""
    from ..serve.models import ModelPool
    from ..serve.server import Server, Settings

    # Nobody else asks: models stay until the end.
    pool = ModelPool(models, options=options, keep_alive=-1.0, queue=max(512, 4 * width))
    return Server(pool, Settings(timeout=0.0))
