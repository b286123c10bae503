"""Records the activations of a transformers model, module by module.

Needs torch and transformers; the activations can be saved, and compared anywhere.
"""

from __future__ import annotations

import hashlib
import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..convert.checkpoint import Checkpoint
from ..convert.keys import listed_classes
from ..errors import ConfigError, NotInstalled, PromptError, Unsupported
from ..gguf_file import DType
from .activations import Activations
from .rounding import apart, rounding
from .routers import Router

if TYPE_CHECKING:
    from types import ModuleType

_SAMPLES = 64  # numbers of a tensor by which it is recognised
_INSTALL = "pip install torch transformers; or compare with activations saved elsewhere"
_AUDIO, _FRAMES = "[AUDIO]", 8  # Voxtral's token for a row, and the frames of one


def run(
    folder: str | Path,
    names: Iterable[str],
    inputs: Mapping[str, np.ndarray],
    *,
    kind: str = "",
    image: Mapping[str, Any] | None = None,
    adjust: Any = None,
    embeds: bool = False,
    types: Iterable[DType] = (DType.F32,),
) -> Activations:
    """Runs a checkpoint: float32, on the CPU, plain attention.

    Args:
        folder: config.json and safetensors.
        names: the modules to record, by their names in the checkpoint.
        inputs: keywords of its forward: `input_ids` int [n], to which a batch dim is added,
            `pixel_values`, …
        kind: of the item in the inputs, such as "image".
        image: data of the model's preparation, beside the values of the item.
        adjust: called with the transformers model before it runs.
        embeds: the whole model's result is hidden states: that of transformers without its head.
        types: of weights; the checkpoint is run again with each, and how far that moves each module
            is noted.

    Raises:
        NotInstalled: torch, transformers, or what transformers needs for this model is missing.
        Unsupported: transformers lacks the architecture.
        FormatError: the folder is no checkpoint.
        PromptError: transformers refuses the inputs.
    """
    names = [name for name in names if name]
    ran = _Run(Path(folder), names, inputs, kind, dict(image or {}), adjust, embeds)
    activations = ran.recorded()
    exact = activations.results
    for dtype in types:
        moved = ran.recorded(dtype, activations.routers).results
        activations.rounding[dtype.name] = {n: apart(moved[n], exact[n]) for n in exact}
    return activations


@dataclass(frozen=True)
class _Run:
    """The arguments of `run`."""

    folder: Path
    names: list[str]
    inputs: Mapping[str, np.ndarray]
    kind: str
    image: dict[str, Any]
    adjust: Any
    embeds: bool

    def recorded(self, dtype: DType | None = None, imposed: Sequence[Router] = ()) -> Activations:
        """Loads and runs the checkpoint, exactly or rounded to a type."""
        torch, transformers = need("torch"), need("transformers")
        with Checkpoint.open(self.folder) as checkpoint:
            config = checkpoint.config
            net = _loaded(transformers, torch, self.folder, config)
            if self.adjust is not None:
                self.adjust(net)
            modules = _located(net, checkpoint, self.names)
            tensors = {name: list(stored.shape) for name, stored in checkpoint.tensors.items()}
        activations = Activations(
            config=config,
            tensors=tensors,
            versions={m.__name__: m.__version__ for m in (torch, transformers)},
            inputs={k: np.asarray(v) for k, v in self.inputs.items()},
            kind=self.kind,
            image=self.image,
        )
        keywords = {k: torch.from_numpy(np.array(v)) for k, v in activations.inputs.items()}
        keywords["input_ids"] = keywords["input_ids"].reshape(1, -1).long()
        if config.get("is_encoder_decoder"):
            ids, start = keywords["input_ids"], config.get("decoder_start_token_id")
            if self.kind:
                del keywords["input_ids"]
            keywords["decoder_input_ids"] = ids if self.kind else torch.tensor([[start]])
        hooks = _Hooks(torch, activations)
        hooks.attach("", net.base_model if self.embeds else net)
        for name, module in modules.items():
            hooks.attach(name, module)
        recorded = {id(module) for module in modules.values()}
        for name, module in net.named_modules():
            held = next(module.parameters(False), None)
            if name and id(module) not in recorded and held is not None:
                hooks.note(name, module)
        try:
            with (
                torch.no_grad(),
                nullcontext() if dtype is None else rounding(net, dtype),
                hooks.counting(),
                choosing(net, imposed) as activations.routers,
            ):
                net(**keywords, use_cache=False)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise PromptError(f"transformers cannot compute this prompt: {reason}") from error
        return activations


@contextmanager
def choosing(net: Any, imposed: Sequence[Router] = ()) -> Iterator[list[Router]]:
    """A list, to which each router that chooses experts within the block adds itself, in the order
    of execution: the calls of `topk` whose scores are [tokens, experts].

    Args:
        net: a model of transformers; it computes no loss of its routers, which would ask again.
        imposed: choices that the routers have to make, in that order; they may be of a longer text.
    """
    torch = need("torch")
    experts, routers = _experts(net.config.to_dict()), list[Router]()
    net.config.get_text_config().output_router_logits = False

    class Choosing(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: tuple = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            if function not in (torch.topk, torch.Tensor.topk):
                return result
            scores = args[0] if args else kwargs["input"]
            if scores.shape[-1] != experts or scores.numel() != scores.shape[-2] * experts:
                return result
            if imposed:
                chosen = torch.from_numpy(imposed[len(routers)].choices[: scores.shape[-2]])
                chosen = chosen.to(torch.int64).reshape(result.indices.shape)
                result = torch.return_types.topk((scores.gather(-1, chosen), chosen))
            rows = scores.detach().float().numpy().reshape(-1, experts).copy()
            choices = result.indices.numpy().reshape(len(rows), -1).astype("int32")
            routers.append(Router(choices, rows))
            return result

    with Choosing():
        yield routers


def _experts(config: Mapping[str, Any]) -> int:
    """The number of experts by a config: the largest one that is called so."""
    numbers = [0]
    for key, value in config.items():
        if isinstance(value, Mapping):
            numbers.append(_experts(value))
        elif str(key).endswith("experts"):
            numbers += [n for n in np.ravel(value) if isinstance(n, (int, np.integer))]
    return max(map(int, numbers))


def item_inputs(folder: str | Path, text: str, kind: str, item: Any) -> dict[str, np.ndarray]:
    """The model inputs that the checkpoint's own processor makes of a text with an image, a sound
    or a video.

    Args:
        text: with the processor's marker for the item.
        item: what the model's modality has opened.

    Raises:
        NotInstalled: transformers, or what the processor needs is missing.
        Unsupported: the folder has no processor, or this one does not take the item.
    """
    transformers = need("transformers")
    try:
        processor = transformers.AutoProcessor.from_pretrained(folder, trust_remote_code=False)
        made = _processed(processor, text, kind, item)
    except Exception as error:
        raised = NotInstalled if isinstance(error, ImportError) else Unsupported
        raise raised(
            f"the processor of {folder} does not take this {kind}: {type(error).__name__}: {error}"
        ) from error
    inputs = {k: np.asarray(v) for k, v in made.items() if k not in ("attention_mask", "labels")}
    ids = inputs.get("input_ids")
    if ids is None:  # the text is the decoder's, and no more than what is given
        ids = np.asarray(processor.tokenizer(text, add_special_tokens=False)["input_ids"])
    return inputs | {"input_ids": ids.reshape(-1)}


def _processed(processor: Any, text: str, kind: str, item: Any) -> Mapping[str, Any]:
    if type(processor).__name__ != "VoxtralProcessor" or kind != "audio":
        return processor(text=text, **_given(kind, item), return_tensors="np")
    # It takes sounds in conversations only, which mistral-common tokenises.
    window = processor.audio_kwargs["max_source_positions"]
    heard = processor.feature_extractor(
        item.samples,
        sampling_rate=item.rate,
        padding=True,
        truncation=False,
        pad_to_multiple_of=processor.audio_kwargs["pad_to_multiple_of"],
        return_tensors="np",
    )["input_features"][0]
    windows = np.stack(np.split(heard, heard.shape[1] // window, axis=1))
    rows = _AUDIO * (heard.shape[1] // _FRAMES)
    ids = processor.tokenizer(text.replace(_AUDIO, rows))["input_ids"]
    return {"input_ids": ids, "input_features": windows}


def _given(kind: str, item: Any) -> dict[str, Any]:
    """Keywords of a processor for an opened item."""
    if kind == "audio":
        return {"audio": [item.samples], "sampling_rate": item.rate}
    if kind == "video":
        return {"videos": [item.frames], "do_sample_frames": False}
    return {"images": [item]}


def need(name: str) -> ModuleType:
    """The module of that name.

    Raises:
        NotInstalled: it cannot be imported; says how it is installed.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # libraries that do not fit one another raise all kinds
        raise NotInstalled(f"{name} cannot be imported ({error}): {_INSTALL}") from None


def _loaded(transformers: Any, torch: Any, folder: Path, config: Mapping[str, Any]) -> Any:
    name = next(iter(listed_classes(config)), "")
    try:
        cls = getattr(transformers, name, None)
    except ImportError as error:  # transformers imports its modules only now
        raise NotInstalled(
            f"transformers cannot import {name}: {error.__cause__ or error}"
        ) from error
    if not isinstance(cls, type) or not issubclass(cls, transformers.PreTrainedModel):
        raise Unsupported(
            f"{folder / 'config.json'} names the architecture {name!r}, which transformers "
            f"{transformers.__version__} does not have"
        )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        net = cls.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            # No code of an untrusted folder runs: neither its Python nor its pickles.
            trust_remote_code=False,
            use_safetensors=True,
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"transformers does not load {folder}: {reason}") from error
    return net.eval()


class _Hooks:
    """Records the inputs and results of each module's first call."""

    def __init__(self, torch: Any, record: Activations):
        self.torch, self.record = torch, record
        self._running: list[str] = []  # recorded modules, in their first call
        self._known: dict[bytes, np.ndarray] = {}

    def attach(self, name: str, module: Any) -> None:
        def before(_: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if name not in self.record.order:
                self._running.append(name)
                inputs = self._tensors((*args, *options.values()))[:1]
                self._keep(self.record.module_inputs, name, inputs)

        def after(_: Any, args: tuple[Any, ...], result: Any) -> None:
            if name not in self.record.order:
                self._running.remove(name)
                self.record.order.append(name)
                self._keep(self.record.results, name, self._tensors((result,)))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Within the block, error functions and tanh are counted in the modules around them."""
        torch, gelus, running = self.torch, self.record.gelus, self._running
        erfs, tanhs = (torch.erf, torch.Tensor.erf), (torch.tanh, torch.Tensor.tanh)

        class Counting(torch.overrides.TorchFunctionMode):
            def __torch_function__(
                self, function: Any, types: Any, args: tuple = (), kwargs: Any = None
            ) -> Any:
                gelu = function is torch.nn.functional.gelu
                by_tanh = gelu and (kwargs or {}).get("approximate") == "tanh"
                if gelu or function in (*erfs, *tanhs):
                    for name in running:
                        counts = gelus.setdefault(name, [0, 0])
                        counts[by_tanh or function in tanhs] += 1
                return function(*args, **(kwargs or {}))

        with Counting():
            yield

    def note(self, name: str, module: Any) -> None:
        def called(*_: Any) -> None:
            if name not in self.record.others:
                self.record.others.append(name)

        module.register_forward_pre_hook(called)

    def _keep(self, where: dict[str, np.ndarray], name: str, tensors: list[Any]) -> None:
        for i, tensor in enumerate(tensors):
            if not tensor.is_floating_point() or tensor.numel() != tensors[0].numel():
                continue
            array = tensor.detach().to(self.torch.float32).cpu().numpy().copy()
            # The result of one module is the input of another: kept once.
            digest = hashlib.blake2b(array.tobytes() + repr(array.shape).encode()).digest()
            where[f"{name}#{i}" if i else name] = self._known.setdefault(digest, array)

    def _tensors(self, values: Iterable[Any]) -> list[Any]:
        tensors = []
        for value in values:
            value = value.to_tuple() if hasattr(value, "to_tuple") else value
            if isinstance(value, (tuple, list)):
                tensors += [v for v in value if isinstance(v, self.torch.Tensor)]
            elif isinstance(value, self.torch.Tensor):
                tensors.append(value)
        return tensors


def _located(net: Any, checkpoint: Checkpoint, names: list[str]) -> dict[str, Any]:
    """Modules by their names in the checkpoint.

    Names in memory may differ, and change between versions of transformers. A module is found by
    its tensors: equal content first, then the most similar name.
    """
    inside = dict(net.named_modules())
    held: dict[Any, list[str]] = {}
    for name, tensor in net.state_dict().items():
        held.setdefault(_fingerprint(tensor.cpu().numpy()), []).append(name)
    renamed: dict[str, str] = {}
    for name in checkpoint.tensors:
        try:
            same = held.get(_fingerprint(checkpoint.array(name)), [])
        except Unsupported:  # a type that is no plain number
            continue
        if same:
            renamed[name] = max(same, key=lambda other: (_alike(name, other), -other.count(".")))
    located: dict[str, Any] = {}
    for name in names:
        votes: Counter[str] = Counter()
        for tensor, here in renamed.items():
            rest = tensor.removeprefix(name)
            if tensor.startswith(f"{name}.") and here.endswith(rest):
                votes[here[: -len(rest)]] += 1
        place = votes.most_common(1)[0][0] if votes else name
        if place in inside:
            located[name] = inside[place]
    return located


def _fingerprint(values: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    flat = values.reshape(-1)
    some = flat[:: max(1, len(flat) // _SAMPLES)].astype(np.float32)
    return values.shape, some.tobytes()


def _alike(one: str, other: str) -> int:
    """The number of parts that both names share in order (longest common subsequence)."""
    a, b = one.split("."), other.split(".")
    best = [0] * (len(b) + 1)
    for part in a:
        before = list(best)
        for j, name in enumerate(b):
            best[j + 1] = before[j] + 1 if part == name else max(best[j], before[j + 1])
    return best[-1]
