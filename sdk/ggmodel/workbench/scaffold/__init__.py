"""The beginning of a new architecture: a model file, a golden test, a README.

It begins as a copy of a known one. Where a checkpoint is at hand, the fields that its tensors and
its configuration ask for are put in, named as other architectures name the same.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError, Error
from ...model import LoadReport, Model, Module, config_class, find
from ...model.config import key_fields
from ...model.module import module_fields
from ...model.registry import supported
from ...model.source_code import declared, file_of
from .names import Proposal, learn, propose, unread, usable
from .shrink import SMALL, shrunk
from .source import bound, camel, quoted, renamed, with_fields, with_imports
from .text import CASES, README, TEST

# Of a config.json: what no architecture reads, for it says how to train, to sample, or to save.
_NOT_READ = frozenset(
    "architectures model_type torch_dtype dtype transformers_version bos_token_id eos_token_id "
    "pad_token_id use_cache initializer_range tie_word_embeddings hidden_act hidden_activation "
    "attention_dropout hidden_dropout attention_bias mlp_bias pretraining_tp vocab_size "
    "_name_or_path auto_map output_router_logits router_aux_loss_coef router_jitter_noise "
    "rope_parameters rope_scaling max_window_layers chunk_size_feed_forward is_encoder_decoder "
    "output_attentions output_hidden_states return_dict id2label label2id problem_type "
    "attn_implementation resid_pdrop embd_pdrop quantization_config cache_implementation "
    "use_bidirectional_attention".split()
)


@dataclass
class Scaffold:
    """What was begun.

    Attributes:
        files: that were written.
        template: the architecture it began from.
        proposals: fields put in for tensors that the template does not read.
        keys: hyperparameters put in for keys that it does not read.
        missing: fields of the template that the checkpoint has nothing for.
    """

    name: str
    files: list[Path]
    template: str
    proposals: list[Proposal] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def scaffold(
    name: str,
    folder: str | Path = ".",
    *,
    template: str | None = None,
    hf: str | Path | None = None,
    models: str | Path | None = None,
) -> Scaffold:
    """Begins an architecture in a folder, which `--models` then names.

    Args:
        name: as files will name it, "my-model".
        template: the architecture to begin from; with `hf` the one that fits it best, else llama.
        hf: a Hugging Face directory; config.json and the index of its tensors are read.
        models: a folder with more architectures to begin from.

    Raises:
        ConfigError: the name is none, or something of that name is there already.
        ArchitectureError: there is no such template.
        FormatError, LoadError: the directory cannot be read.
    """
    folder = Path(folder)
    importable = re.sub(r"\W", "_", name)
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise ConfigError(f"{name!r} cannot be an architecture's name: letters, digits, -, _")
    target = folder / f"{importable}.py"
    goldens = folder / "goldens" / importable
    there = next((p for p in (target, folder / importable, goldens) if p.exists()), None)
    if there is not None:
        raise ConfigError(f"{there} is there already; choose another name, or remove it")
    begun = _begin(name, template, hf, models)
    model = next(iter(begun.sources)).rpartition("/")[0] + "/"
    model = f"{importable}.py" if model == "/" else model
    tests = {"NAME": name, "FILE": importable, "MODEL": model, "TEMPLATE": begun.template}
    written = {
        **{folder / path: text for path, text in begun.sources.items()},
        goldens / "cases.py": _filled(CASES, tests | {"CONFIG": _literal(begun.config)}),
        goldens / f"test_{importable}.py": _filled(TEST, tests),
    }
    if not (folder / "README.md").exists():
        written[folder / "README.md"] = _filled(README, tests)
    _write(written)
    return Scaffold(name, list(written), begun.template, begun.proposals, begun.keys, begun.missing)


def _write(files: Mapping[Path, str]) -> None:
    """All of them, or none."""
    done: list[Path] = []
    folders = {p for path in files for p in path.parents if not p.exists()}
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            done.append(path)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        for path in done:
            path.unlink(missing_ok=True)
        for made in sorted(folders, reverse=True):  # inner ones first
            with suppress(OSError):
                made.rmdir()
        raise ConfigError(f"{error.filename}: {error.strerror}; nothing was written") from error


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], text)


def _literal(value: Any, indent: int = 4) -> str:
    """A value of JSON as Python, dictionaries with one entry a line, strings in double quotes."""
    if isinstance(value, Mapping):
        inner = " " * (indent + 4)
        items = (f"{inner}{_literal(k)}: {_literal(v, indent + 4)},\n" for k, v in value.items())
        return f"{{\n{''.join(items)}{' ' * indent}}}" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_literal(v, indent) for v in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return quoted(value) if isinstance(value, str) else repr(value)


@dataclass
class _Begun:
    sources: dict[str, str]
    template: str
    config: dict[str, Any]
    proposals: list[Proposal] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def _begin(
    name: str, template: str | None, hf: str | Path | None, models: str | Path | None
) -> _Begun:
    if hf is None:
        cls = find(template or "llama", models)
        guess = f"{camel(name)}ForCausalLM"
        config = _small_config(cls) | {"architectures": [guess], "model_type": name}
        return _Begun(_sources(cls, name, guess), cls.architecture, config)
    from ...convert.checkpoint import Checkpoint

    with Checkpoint.open(hf) as checkpoint:
        given = dict(checkpoint.config)
        shapes = {n: tuple(t.shape) for n, t in checkpoint.tensors.items()}
    fit = _best_fit(given, shapes, [template] if template else supported(models), models)
    guess = _listed(given) or f"{camel(name)}ForCausalLM"
    begun = _Begun(_sources(fit.cls, name, guess), fit.cls.architecture, shrunk(given))
    _extend(begun, fit, given, shapes, models)
    return begun


def _listed(given: Mapping[str, Any]) -> str | None:
    """The class that a config names, if it names one."""
    listed = given.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, str) and first.isidentifier() else None


@dataclass
class _Fit:
    """How well an architecture's declaration fits a checkpoint.

    Attributes:
        named: it is the one that the config names.
        read: names in the checkpoint that fields read.
        owners: name of a module in the checkpoint → the class that stands for it.
    """

    cls: type[Model]
    config: Any
    named: bool
    read: set[str]
    report: LoadReport
    owners: dict[str, type[Module]]

    @property
    def score(self) -> tuple[bool, int, bool, bool]:
        # An embedding variant may fit as well, but is less of a beginning. Where nothing fits
        # llama is one.
        usual = bool(self.read) or self.cls.architecture == "llama"
        more = len(self.read) - len(self.report.missing)
        return usual, more, self.named, "head" in module_fields(self.cls)


def _best_fit(
    given: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    names: list[str],
    models: str | Path | None,
) -> _Fit:
    fits, errors = [], []
    for name in names:
        try:
            fits.append(_fit(find(name, models), given, shapes))
        except Error as error:
            errors.append(error)
    if not fits:
        raise errors[-1]
    return max(fits, key=lambda fit: fit.score)


def _fit(cls: type[Model], given: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> _Fit:
    from ...convert.declaration import plan
    from ...convert.from_hf import normalize, read_config

    _, config = read_config(cls, normalize(given))
    found = plan(cls, config, shapes)
    read = {source for entry in found.entries for source in entry.sources}
    owners = {pair.name: pair.module for pair in found.pairs}
    named = _listed(given) in cls.hf_architectures
    return _Fit(cls, config, named, read, found.report, owners)


def _sources(cls: type[Model], name: str, hf: str) -> dict[str, str]:
    """Path below the folder → text, of the files of an architecture under another name."""
    file = Path(file_of(cls) or "")
    if not file.is_file():
        raise ConfigError(f"the source of {cls.architecture!r} is not at hand; begin from another")
    importable = re.sub(r"\W", "_", name)
    files = _files(file, cls.architecture)
    package = len(files) > 1
    sources = {}
    for path in files:
        before = path.read_text(encoding="utf-8")
        if keyword.iskeyword(own := camel(name)) or own in bound(before) - {cls.__name__}:
            raise ConfigError(
                f"{name!r} would be the class {own}, a name that is taken in {path.name} of "
                f"{cls.architecture!r}; choose another"
            )
        config = config_class(cls)
        config_name = config.__name__ if Path(file_of(config) or "") in files else None
        text = renamed(before, cls.architecture, cls.__name__, config_name, name, hf)
        sources[f"{importable}/{path.name}" if package else f"{importable}.py"] = text
    return sources


def _files(file: Path, architecture: str) -> list[Path]:
    """The files of an architecture: those of its folder, or only its own in a family's folder, or
    where a folder holds no other module."""
    folder = file.parent
    if folder.name != re.sub(r"\W", "_", architecture) or not (folder / "__init__.py").is_file():
        return [file]
    register = f'@register("{architecture}"'
    texts = {p: p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.py"))}
    files = [p for p, text in texts.items() if register in text or "@register(" not in text]
    return [file] if len(files) == 2 and file.name != "__init__.py" else files


def _small_config(cls: type[Model]) -> dict[str, Any]:
    """A config.json of what an architecture reads, small."""
    config: dict[str, Any] = {}
    for _, tag, kind, _ in key_fields(config_class(cls)):
        for key in tag.hf:
            if isinstance(key, str) and "." not in key:
                if key in SMALL:
                    config[key] = SMALL[key]
                elif key.endswith(("norm_eps", "layer_norm_epsilon", "norm_epsilon")):
                    config[key] = 1e-5
                elif kind is float and key == "rope_theta":
                    config[key] = 10000.0
    for experts in ("num_local_experts", "num_experts", "num_experts_per_tok", "sliding_window"):
        config.pop(experts, None)
    more = {k: SMALL[k] for k in ("bos_token_id", "eos_token_id", "vocab_size", "torch_dtype")}
    return {**config, **more, "hidden_act": "silu", "tie_word_embeddings": False}


def _extend(
    begun: _Begun,
    fit: _Fit,
    given: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    models: str | Path | None,
) -> None:
    """Puts in what the checkpoint has and the template does not read."""
    known = learn(_all(models))
    fields: dict[str, dict[str, list[str]]] = {}
    where = {c: path for path, text in begun.sources.items() for c in _classes(text)}
    own = camel(next(iter(begun.sources)).split("/")[0].removesuffix(".py"))
    names = {fit.cls.__name__: own}
    for of in unread(shapes, fit.report.unused):
        cls = fit.owners.get(of.parent)
        owner = None if cls is None else names.get(cls.__name__, cls.__name__)
        taken = set() if cls is None else {*declared(cls), *dir(cls)}
        taken |= {p.line.partition(":")[0] for p in begun.proposals if p.owner == owner}
        proposal = propose(of, owner if owner in where else None, known, fit.config, taken)
        begun.proposals.append(proposal)
        if proposal.owner is not None:
            fields.setdefault(where[proposal.owner], {}).setdefault(proposal.owner, []).append(
                proposal.line
            )
    config = f"{own}Config"
    begun.keys = list(_keys(fit.cls, given))
    if begun.keys and config in where:
        fields.setdefault(where[config], {})[config] = begun.keys
    for path, added in fields.items():
        text = with_fields(begun.sources[path], added, "Of the checkpoint; nothing reads it yet:")
        kinds = {p.kind for p in begun.proposals if p.owner in added}
        modules = {k: "ggmodel" if k == "Tensor" else "ggmodel.nn" for k in kinds}
        begun.sources[path] = with_imports(text, modules)
    begun.missing = [str(m) for m in fit.report.missing]


def _classes(source: str) -> list[str]:
    return re.findall(r"^class (\w+)", source, re.M)


def _all(models: str | Path | None) -> Iterator[type[Model]]:
    for name in supported(models):
        try:
            yield find(name, models)
        except Error:
            continue  # somebody's unfinished file


class _Reads(dict[str, Any]):
    """A config that remembers which of its keys were asked for."""

    def __init__(self, config: Mapping[str, Any]):
        super().__init__(config)
        self.asked: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def _keys(cls: type[Model], given: Mapping[str, Any]) -> Iterator[str]:
    """Hyperparameters for the scalars of a config that nothing reads."""
    from ...convert.from_hf import normalize

    reads = _Reads(normalize(given))
    config_class(cls).from_hf(reads)
    taken = {*declared(config_class(cls)), *dir(config_class(cls))}
    for key, value in reads.items():
        plain = isinstance(value, (bool, int, float, str))
        if plain and key not in reads.asked and key not in _NOT_READ and key.isidentifier():
            kind = type(value).__name__
            yield f'{usable(key, taken)}: {kind} = kv("{key}", hf="{key}")'
