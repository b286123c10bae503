"""The beginning of a new architecture: a model file, a golden test, a README.

The model file is a copy of a known architecture's. With a checkpoint at hand, fields are added
for the tensors and the configuration that the copy does not read, named as in other
architectures.
"""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...model import Model, Module, config_class, find
from ...model.registry import supported
from ...model.report import Missing
from ...model.source_code import file_of
from ...platforms.files import to_disk
from ...storage import private_folder, remove_leftovers
from ..nodes import ranges
from .cases import encoder_of, listed, literal, shrunk, small_config
from .extend import Extension, Scaffold
from .files import Files
from .fit import best_fit, listed_class
from .source import bound, camel, renamed, with_whole_imports
from .translate import llama_cpp_name

_TEMPLATES = Path(__file__).with_name("templates")  # with placeholders like @NAME@
_COMPLETE = "complete"  # the folder of files that only have to be moved
_LAYER = re.compile(r"^(.*?)(?:\[(\d+)\](.*))?$")


def scaffold(
    name: str,
    folder: str | Path = ".",
    *,
    template: str | None = None,
    hf: str | Path | None = None,
    models: str | Path | None = None,
) -> Scaffold:
    """Writes the beginning of an architecture to a folder, for use with `--models`.

    Args:
        name: of the architecture in files, "my-model".
        template: the architecture to copy; by default the one that fits `hf` best, else llama.
        hf: a Hugging Face directory; config.json and the index of its tensors are read.
        models: a folder of further architectures to copy from.

    Raises:
        ConfigError: the name is invalid, or taken in the folder.
        ArchitectureError: the template is unknown.
        FormatError, LoadError: the directory cannot be read.
    """
    folder = Path(folder)
    remove_leftovers(folder / _importable(name), lambda begun: _finish(begun, folder))
    _check_free(name, folder)
    begun = Scaffold(_registered(name, folder), [], template or "llama")
    guess = f"{camel(name)}ForCausalLM"
    if hf is None:
        cls = find(begun.template, models)
        if encoder_of({"architectures": cls.hf_architectures[:1]}):
            guess = f"{camel(name)}Model"
        config = small_config(cls) | {"architectures": [guess], "model_type": name}
        sources = _sources(cls, name, begun.name, guess)
    else:
        theirs, shapes = _checkpoint(hf)
        fit = best_fit(
            begun.name, theirs, shapes, [template] if template else supported(models), models
        )
        cls, config, begun.missing = fit.cls, shrunk(theirs), _folded(fit.report.missing)
        if (encoder := encoder_of(config)) is not None:
            config["architectures"] = [encoder]
        sources = _sources(cls, name, begun.name, listed_class(theirs) or guess)
        Extension(begun, Files(sources, fit, begun.left), shapes, models).extend()
    begun.template = cls.architecture
    written = {folder / path: text for path, text in sources.items()}
    written |= _golden_test(begun, folder, next(iter(sources)), config)
    _write(written, folder, name)
    begun.files = list(written)
    return begun


def _importable(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _check_free(name: str, folder: Path) -> None:
    """Checks an architecture's name, also against the files of a folder."""
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise ConfigError(f"{name!r} cannot be an architecture's name: letters, digits, -, _")
    own = _importable(name)
    taken = (folder / f"{own}.py", folder / own, folder / "goldens" / own)
    there = next((path for path in taken if path.exists()), None)
    if there is not None:
        raise ConfigError(f"{there} exists; choose another name, or remove it")


def _registered(name: str, folder: Path) -> str:
    """The architecture's name in files: llama.cpp's, unless another architecture has it."""
    own = llama_cpp_name(name)
    taken = own in supported() or (folder / "goldens" / _importable(own)).exists()
    return name if taken else own


def _golden_test(
    begun: Scaffold, folder: Path, source: str, config: Mapping[str, Any]
) -> dict[Path, str]:
    """The golden test of an architecture, and a README if the folder has none.

    Args:
        source: the first of the architecture's files.
    """
    importable = _importable(begun.name)
    goldens = folder / "goldens" / importable
    values = {
        "NAME": begun.name,
        "FILE": importable,
        "MODEL": f"{source.partition('/')[0]}/" if "/" in source else source,
        "TEMPLATE": begun.template,
        "CONFIG": literal(config, 0),
        "CASES": listed(config),
    }
    cases = "cases.txt" if encoder_of(config) is None else "embeddings.txt"
    templates = {goldens / "cases.py": cases, goldens / f"test_{importable}.py": "test.txt"}
    if not (folder / "README.md").exists():
        templates[folder / "README.md"] = "README.md"
    written = {}
    for path, template in templates.items():
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        written[path] = re.sub(r"@(\w+)@", lambda match: values[match[1]], text)
    return written


def _folded(missing: Iterable[Missing]) -> list[str]:
    """Fields without a tensor, those of several layers on one line: "layers[0-3].ffn_norm: no
    tensor model.layers.0.post_attention_layernorm.weight"."""
    layers: dict[tuple[str, str], list[int]] = {}
    tried: dict[tuple[str, str], str] = {}
    for m in missing:
        head, number, tail = _LAYER.sub(r"\1\0\2\0\3", m.field.partition(" ")[0]).split("\0")
        layers.setdefault((head, tail), []).append(int(number or -1))
        tried.setdefault((head, tail), f": no tensor {m.tried[0]}" if m.tried else "")
    return [
        f"{head}[{ranges(numbers)}]{tail}{tried[head, tail]}"
        if numbers[0] >= 0
        else f"{head}{tried[head, tail]}"
        for (head, tail), numbers in layers.items()
    ]


def _checkpoint(folder: str | Path) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """A checkpoint's config.json and the shapes of its tensors, numpy order."""
    from ...convert.checkpoint import Checkpoint

    with Checkpoint.open(folder) as checkpoint:
        shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()}
        return dict(checkpoint.config), shapes


def _write(files: Mapping[Path, str], folder: Path, name: str) -> None:
    """Writes all files, or none."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    placed: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with private_folder(folder / _importable(name)) as work:
            for path, text in files.items():
                new = work / "begun" / path.relative_to(folder)
                new.parent.mkdir(parents=True, exist_ok=True)
                new.write_text(text, encoding="utf-8", newline="\n")
                to_disk(new)
            # From here on another run can finish what this one cannot.
            _place((work / "begun").rename(work / _COMPLETE), folder, placed)
    except BaseException as error:
        for path in placed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in made:  # inner ones first
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            where = error.filename2 or error.filename
            raise ConfigError(f"{where}: {error.strerror}; nothing was written") from error
        raise


def _place(new: Path, folder: Path, placed: list[Path]) -> None:
    """Moves files and folders that do not exist there.

    Args:
        placed: each is added.
    """
    for path in sorted(new.iterdir()):
        target = folder / path.name
        if path.is_dir() and target.exists():
            _place(path, target, placed)
        elif not target.exists():
            placed.append(path.rename(target))
    to_disk(folder)


def _finish(leftover: Path, folder: Path) -> None:
    """Moves the rest of the files of a process that was killed while it moved them."""
    if (leftover / _COMPLETE).is_dir():
        _place(leftover / _COMPLETE, folder, [])


def _sources(cls: type[Model], name: str, registered: str, hf: str) -> dict[str, str]:
    """The files of an architecture under another name: path below the folder → text."""
    file = Path(file_of(cls) or "")
    if not file.is_file():
        raise ConfigError(f"the source of {cls.architecture!r} is missing; begin from another")
    importable = _importable(name)
    files = _files(file, cls.architecture)
    package = len(files) > 1
    around = cls.__module__ if file.name == "__init__.py" else cls.__module__.rpartition(".")[0]
    copied = {path.stem for path in files} if package else set[str]()
    sources = {}
    for path in files:
        before = path.read_text(encoding="utf-8")
        taken = bound(before) | {Module.__name__}  # which the classes that are added need
        if keyword.iskeyword(own := camel(name)) or own in taken - {cls.__name__}:
            raise ConfigError(
                f"{name!r} would be the class {own}, a name that is taken in {path.name} of "
                f"{cls.architecture!r}; choose another"
            )
        config = config_class(cls)
        config_name = config.__name__ if Path(file_of(config) or "") in files else None
        text = renamed(before, cls.architecture, cls.__name__, config_name, name, registered, hf)
        if around.startswith("ggmodel."):  # a folder of somebody's own has no such name
            text = with_whole_imports(text, around, copied)
        if path.name == "__init__.py" and path != file:
            head = f'"""{own}: begun from {cls.architecture}."""'
            text = f'{head}\n\nfrom .{file.stem} import {own}\n\n__all__ = ["{own}"]\n'
        sources[f"{importable}/{path.name}" if package else f"{importable}.py"] = text
    return sources


def _files(file: Path, architecture: str) -> list[Path]:
    """The files of an architecture: those of its folder, or only its own in a family's folder, or
    where a folder holds no other module."""
    folder = file.parent
    if folder.name != _importable(architecture) or not (folder / "__init__.py").is_file():
        return [file]
    register = f'@register("{architecture}"'
    texts = {p: p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.py"))}
    files = [p for p, text in texts.items() if register in text or "@register(" not in text]
    return [file] if len(files) == 2 and file.name != "__init__.py" else files
