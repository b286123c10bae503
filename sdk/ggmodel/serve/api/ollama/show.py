"""/api/show: a model by the headers of its files and by its store. It is not loaded."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import UNSET
from starlette.routing import Route

from ....chat.template import KEY as TEMPLATE
from ....errors import Error, ModelNotFound
from ....gguf_file import JoinedSource
from ....names import find, find_stored
from ....names.modelfile import Modelfile, describe
from ...endpoint import Answers, Call, route
from ...models.catalogue import capabilities_of, header_of
from ...pool import ListedModel, best_name
from ...server import Server
from .manage import NameRequest
from .schemas import OLLAMA, PlainMessage, ShownModel, ShownTensor, details, moment

_LONG = 5  # items of a list that is told only where all is wanted
_KEY_WIDTH = 30  # of names of parameters, in Ollama's list


class ShowRequest(NameRequest, kw_only=True):
    verbose: bool | None = None


def routes(server: Server) -> list[Route]:
    answers = Answers(ShownModel)
    return [route("POST", "/api/show", show, server, OLLAMA, ShowRequest, answers=answers)]


async def show(call: Call) -> None:
    """Describe a model, in Ollama's format. It is not loaded for that."""
    params = await call.decode(ShowRequest)
    name, listed = params.target, await call.server.models.listed()
    await call.json(await asyncio.to_thread(_described, name, listed, bool(params.verbose)))


def _described(name: str, listed: list[ListedModel], verbose: bool) -> ShownModel:
    model = _named(name, listed)
    if model.state is not None and not os.path.exists(model.path):  # on another machine
        return _shown(model, Modelfile([model.path]), model.state.metadata, verbose)
    from ....loading import open_source  # imports the engine

    found = find(model.source or model.path, download=False)
    made = describe(found)
    with open_source(found) as source:
        model.details = {**header_of(source), **model.details}
        if not made.stored and os.path.isfile(found):
            made = replace(made, bases=[*map(str, source.files)])
        shown = _shown(model, made, source.metadata, verbose)
        if isinstance(source, JoinedSource):
            shown.projector_info = _info(source.second.metadata, verbose)
            shown.details.families.append(str(source.second.metadata["general.architecture"]))
        shown.model_info["general.parameter_count"] = model.details["parameters"]
        if verbose:
            shown.tensors = [
                ShownTensor(one.name, one.dtype.name, [*one.shape])
                for one in source.tensors.values()
            ]
    return shown


def _named(name: str, listed: list[ListedModel]) -> ListedModel:
    """The listed model of a name, however its store spells it.

    Raises:
        ModelNotFound: there is none.
    """
    best = best_name(name, (one.name for one in listed))
    model = next((one for one in listed if one.name == best), None)
    # Programs add the tag to names of the hub, too, where it means nothing.
    for spelling in (name, name.removesuffix(":latest")):
        with suppress(Error):  # it is no name
            if model is None and (found := find_stored(spelling)):
                model = next((one for one in listed if one.path == str(found.path)), None)
    if model is None:
        raise ModelNotFound(f"model {name[:200]!r} not found; /api/tags lists all")
    return model


def _shown(
    model: ListedModel, made: Modelfile, metadata: Mapping[str, Any], verbose: bool
) -> ShownModel:
    template = metadata.get(TEMPLATE)
    template = template if isinstance(template, str) else ""
    return ShownModel(
        modelfile=f"# FROM {model.name} makes the same model as these lines.\n\n{made}",
        parameters="\n".join(
            f"{name:<{_KEY_WIDTH}} {json.dumps(value, ensure_ascii=False)}"
            for name, value in made.options
        ),
        template=made.template or template or (model.state.template if model.state else ""),
        details=details(model, model.state, made.parent),
        model_info=_info(metadata, verbose),
        capabilities=capabilities_of(metadata),
        modified_at=moment(model.created),
        system=made.system or UNSET,
        license="\n".join(made.licenses) or UNSET,
        messages=[PlainMessage(m["role"], m["content"]) for m in made.messages] or UNSET,
    )


def _info(metadata: Mapping[str, Any], verbose: bool) -> dict[str, Any]:
    """GGUF keys but for the templates; long lists are empty unless all is wanted."""
    return {
        key: _plain(value, verbose)
        for key, value in metadata.items()
        if not key.startswith(TEMPLATE)
    }


def _plain(value: Any, verbose: bool) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, (Sequence, np.ndarray)):
        return [_plain(v, verbose) for v in value] if verbose or len(value) <= _LONG else []
    return value.item() if isinstance(value, np.generic) else value
