"""Changes: other numbers in a configuration, and what the reference computes with them.

A key that is read, but forgotten at its second use, changes nothing while its value is neutral
there, and the model still moves when it does. So a golden has, for each number of config.json that
moves the reference's results, those with another value; the model must follow to the same.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArchitectureError, Error
from .files import Prompt
from .runs import Run, nmse
from .weights import Array

if TYPE_CHECKING:
    from ...runner import LoadedModel
    from . import Loading
    from .files import Golden

FOLLOWS = "other numbers"  # the name of the run
# Far above what float64 notices: a rounding of the reference is no change.
MOVES = 1e-8
_SMALL = 1e-2


def others(value: Any) -> Iterator[Any]:
    """Other values of a hyperparameter: a little and much larger numbers, a part of a whole one,
    which may divide what it did; the opposite of a bool; none for texts. The largest is first where
    a number is small: an epsilon has to be seen at each of its uses."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, 2 * value + 1, value // 2)
    elif isinstance(value, float):
        larger = value * 1.37 or 0.5, value * 10 or 5.0, value * 1000 or 50.0
        yield from reversed(larger) if 0 < abs(value) < _SMALL else larger
    elif isinstance(value, Sequence) and not isinstance(value, str):
        others_of = [list(others(item)) for item in value]
        for i in range(max(map(len, others_of), default=0)):
            pairs = zip(value, others_of, strict=True)
            yield [new[min(i, len(new) - 1)] if new else item for item, new in pairs]


def numbers(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers of a config.json by their paths, such as "text_config.rms_norm_eps"."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{above}{key}.")
        elif any(True for _ in others(value)):
            yield above + key, value


def changed(config: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A config.json with another value at a path."""
    result = copy.deepcopy(dict(config))
    *outer, key = path.split(".")
    inside = result
    for name in outer:
        inside = inside[name]
    inside[key] = value
    return result


def recorded(
    config: Mapping[str, Any],
    compute: Callable[[dict[str, Any]], Array],
    report: Callable[[str], None] = lambda path: None,
) -> tuple[dict[str, Any], Array]:
    """The first other value of each number that moves the reference's results: path → value, and
    the results [paths, n]. Numbers that fix a shape have none: the checkpoint does not fit then.

    Args:
        compute: the results of the reference for a configuration [n].
        report: called with each path before its values are tried.
    """
    usual = compute(dict(config))
    values, results = dict[str, Any](), list[Array]()
    for path, value in numbers(config):
        report(path)
        for other in others(value):
            try:
                result = compute(changed(config, path, other))
            except Exception:  # the reference raises whatever a number leads it to
                continue
            if np.isfinite(result).all() and nmse(result, usual) > MOVES:
                values[path] = other
                results.append(result)
                break
    return values, np.stack(results) if results else np.zeros((0, len(usual)), np.float32)


def compared(golden: Golden) -> list[Golden | Prompt]:
    """The prompts whose last logits are compared: the one of text, and the first with an item of
    each kind."""
    first = dict[str, Any]()
    for prompt in golden.prompts.values():
        for part in prompt.parts:
            if isinstance(part, str):
                first.setdefault(golden.pictures[part].kind, prompt)
    return [golden, *{id(prompt): prompt for prompt in first.values()}.values()]


def _ids(prompt: Golden | Prompt) -> np.ndarray:
    return prompt.ids if isinstance(prompt, Prompt) else prompt.prompt


def last(model: LoadedModel, golden: Golden) -> Array:
    """A model's last logits of these prompts, one after the other."""
    from . import laid_out, text_of

    prompts = [
        laid_out(model, golden, each) if isinstance(each, Prompt) else text_of(model, golden)
        for each in compared(golden)
    ]
    return np.concatenate([model.logits(items)[-1] for items in prompts])


def runs(loading: Loading, golden: Golden, case: str, bound: float) -> Iterator[Run]:
    """The worst of the changes, and each that the model does not follow, or fails at. One that it
    refuses is left out, for nobody takes that for a result, unless it refuses all; so is one of
    `UNFOLLOWED` in cases.py.

    The models are loaded for texts of just this length, by which transformers chooses factors of
    ropes.
    """
    from . import source_of

    errors = list[float]()
    reasons = getattr(loading.cases.module, "UNFOLLOWED", {})
    sources = [p.shape[0] for p in golden.pictures.values() if p.kind == "source"]
    longest = max([*sources, *(len(_ids(prompt)) for prompt in compared(golden))])
    for (path, value), want in zip(golden.changes.items(), golden.changed, strict=True):
        if any(fnmatchcase(f"{case}.{path}", pattern) for pattern in reasons):
            continue
        note = ""
        other = replace(golden, config=changed(golden.config, path, value))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                source = source_of(other, models=loading.models)
                options = {"backend": "reference", "context_length": longest}
                with loading.load(source, **options) as model:
                    error = nmse(last(model, golden), want)
            except ArchitectureError as failure:  # the model's code fails
                error, note = np.inf, str(failure)
            except Error:
                continue
        errors.append(error)
        if not error < bound:
            yield Run(f"with {path} = {value!r:.40}", error, bound, note)
    if golden.changes and not errors:
        yield Run(FOLLOWS, np.inf, bound, f"none of {len(golden.changes)} could be compared")
    elif golden.changes:  # goldens of before have none
        yield Run(FOLLOWS, max((e for e in errors if e < bound), default=0.0), bound)
