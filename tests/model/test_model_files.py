"""Model files with a mistake in them: what their author is told, and what is left behind."""

import importlib
import linecache
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ArchitectureError, ConfigError, LoadError, TensorError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend
from ggmodel.model import find
from tests.golden.files import Golden, load_golden

LLAMA = Path(__file__).parents[1] / "models" / "outside" / "llama.py"


@pytest.fixture(scope="module")
def golden() -> Golden:
    return load_golden("llama", "plain_gqa")


@pytest.fixture(scope="module")
def source(golden: Golden) -> MemorySource:
    return from_hf(find("llama"), golden.config, golden.weights())


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[Backend]:
    """The backends that loading has made."""
    # By name: as an attribute of its package `load` is the function.
    runner = importlib.import_module("ggmodel.runner.loading.preparation")
    made: list[Backend] = []
    new = runner.new_backend

    def noted(*args: object) -> Backend:
        made.append(new(*args))
        return made[-1]

    monkeypatch.setattr(runner, "new_backend", noted)
    return made


def edited(*changes: tuple[str, str]) -> str:
    text = LLAMA.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


MULMAT = edited(("self.gate(x).silu(self.up(x))", "self.gate(self.gate(x)).silu(self.up(x))"))
NO_ADDEND = edited(("        x = x + y\n", "        x = x + y.slice(0, 0, 3)\n"))
NO_NORM_FIELD = edited(
    ('    norm: RMSNorm = gguf("output_norm", hf="model.norm", shape=("hidden",))\n', ""),
    ("return self.norm(x)", "return x"),
)
NO_SUCH_NORM = edited(
    ('norm: RMSNorm = gguf("output_norm", hf=', 'norm: RMSNorm = gguf("final_norm", hf=')
)
UNDECLARED = edited(("self.norm(x)", "self.final_norm(x)"))
WRONG_SHAPE = edited(('hf="mlp.down_proj", shape=("ffn", "hidden")', 'shape=("hidden", "ffn")'))
BAD_ANNOTATION = edited(("    embed: Embedding = ", "    embed: int = "))
UNRESOLVABLE = edited(("    ffn: Dense | Experts = ", "    ffn: Dense | Sparse = "))
UNRESOLVABLE_KEY = edited(("    eps: float = ", "    eps: Float32 = "))
SYNTAX = edited(
    ("    def caches(self) -> list[Causal]:\n", "    def caches(self -> list[Causal]:\n")
)
IMPORT = edited(("from ggmodel.kvcache import Causal\n", "from ggmodel.kvcache import Casual\n"))
NO_RETURN = edited(("        return self.norm(x)", "        self.norm(x)"))
ALL_ROWS = edited(("x = layer(x, batch, cache, outputs)", "x = layer(x, batch, cache, None)"))
FEWER_CACHES = edited(("for layer in self.layers]", "for layer in self.layers[1:]]"))
NO_FORWARD = edited(("    def hidden(self, ctx, batch: Batch)", "    def hiding(self, ctx, batch)"))
NO_CACHES = edited(("    def caches(self) -> list[Causal]:", "    def cachings(self):"))
NO_CONFIG = edited(("class Llama(Model):\n    config: Hyper\n", "class Llama(Model):\n"))
NOT_REGISTERED = edited(('@register("llama", ', '@register("lama", '))


@pytest.mark.parametrize(
    ("text", "kind", "message", "line"),
    [
        (MULMAT, TensorError, "mulmat", "self.gate(self.gate(x))"),
        (NO_ADDEND, TensorError, "add", "x = x + y.slice(0, 0, 3)"),
        (NO_NORM_FIELD, LoadError, "unused   output_norm.weight", None),
        (NO_SUCH_NORM, LoadError, "final_norm.weight; the file has output_norm.weight", None),
        (UNDECLARED, ArchitectureError, "no attribute 'final_norm'", "self.final_norm(x)"),
        (WRONG_SHAPE, LoadError, "(layers[0].ffn.down.weight) is [128, 64], not [64, 128]", None),
        (BAD_ANNOTATION, ConfigError, "Llama.embed is tagged", "embed: int"),
        (UNRESOLVABLE, ConfigError, "'Dense | Sparse' of Layer.ffn cannot be resolved", "ffn: "),
        (UNRESOLVABLE_KEY, ConfigError, "'Float32' of Hyper.eps cannot be", "eps: Float32"),
        (SYNTAX, ArchitectureError, "SyntaxError", "def caches(self -> "),
        (IMPORT, ArchitectureError, "ImportError: cannot import name 'Casual'", "import Casual"),
        (NO_RETURN, TensorError, "Llama.hidden returned NoneType", '@register("llama"'),
        (ALL_ROWS, TensorError, "where 1 were wanted; take x.rows(batch.outputs)", "@register"),
        (FEWER_CACHES, TensorError, "2 layers, but caches() declared 1", "batch.through"),
        (NO_FORWARD, Unsupported, "Llama has no forward", "@register"),
        (NO_CACHES, Unsupported, "Llama declares no caches", "@register"),
        (NO_CONFIG, ConfigError, "Llama must annotate its hyperparameters", "@register"),
        (NOT_REGISTERED, ArchitectureError, "registers no architecture 'llama', only 'lama'", None),
    ],
    ids=lambda v: next((n for n in globals() if n.isupper() and globals()[n] is v), ""),
)
def test_a_mistake_is_named_and_leaves_nothing_behind(
    tmp_path: Path,
    source: MemorySource,
    golden: Golden,
    backends: list[Backend],
    text: str,
    kind: type[ggmodel.Error],
    message: str,
    line: str | None,
):
    file = tmp_path / "llama.py"
    file.write_text(text)
    with pytest.raises(ggmodel.Error) as caught:
        ggmodel.load(source, models=tmp_path, context_length=64, batch_size=16)
    error = str(caught.value)
    assert type(caught.value) is kind
    assert message in error
    if line is not None:
        linecache.checkcache()
        named = [part.split(":")[0] for part in error.split(f"{file}:")[1:]]
        numbers = [int("".join(c for c in n.split()[0] if c.isdigit())) for n in named]
        assert any(line in linecache.getline(str(file), n) for n in numbers), error
    assert all(b.closed for b in backends)
    # The good one, from the same folder and from the package, in the same process.
    file.write_text(LLAMA.read_text())
    for folder in (tmp_path, None):
        with ggmodel.load(source, models=folder, context_length=64, batch_size=16) as model:
            logits = model.logits(golden.prompt[:4].tolist())
        assert abs(logits - golden.logits[:4]).max() < 1e-2
    assert len(backends) >= 2
    assert all(b.closed for b in backends)


@pytest.mark.parametrize("call", ["validate", "post_load"])
def test_validate_and_post_load_in_their_order(
    tmp_path: Path, source: MemorySource, backends: list[Backend], call: str
):
    # validate sees the filled fields before there is memory for weights, post_load the weights.
    text = LLAMA.read_text() + (
        f"\n    def {call}(self):\n"
        "        from ggmodel.errors import Unsupported\n"
        "        weight = self.layers[0].attn.q.weight\n"
        "        try:\n"
        "            seen = abs(weight.floats()).sum() > 0\n"
        "        except Exception:\n"
        "            seen = False\n"
        "        raise Unsupported(f'{weight.shape} {seen}')\n"
    )
    (tmp_path / "llama.py").write_text(text)
    with pytest.raises(Unsupported) as caught:
        ggmodel.load(source, models=tmp_path, context_length=64, batch_size=16)
    assert str(caught.value).startswith("(64, 64) ")
    assert [b.closed for b in backends] == [True]


def test_a_warning_for_what_is_unused_when_not_strict(
    golden: Golden, vary: Callable[..., MemorySource]
):

    source = from_hf(find("llama"), golden.config, golden.weights())
    more = vary(source, tensors={"stray.weight": np.zeros(4, np.float32)})
    with pytest.raises(LoadError, match=r"unused +stray\.weight"):
        ggmodel.load(more, context_length=64)
    with (
        pytest.warns(UserWarning, match=r"does not use stray\.weight"),
        ggmodel.load(more, context_length=64, batch_size=16, strict=False) as model,
    ):
        assert model.report.unused == ["stray.weight"]
