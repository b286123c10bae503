"""Faults that no rule makes, in the parts that one architecture alone has: its goldens see each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.source import MODELS
from tests.faults.subjects import Subject, served_by, subjects
from tests.faults.trial import written

# File → descriptions, texts that the file has once, and what stands there instead.
FAULTS: dict[str, list[tuple[str, str, str]]] = {
    "bart/bart.py": [
        ("embeddings not scaled", ".scale(self.config.embedding_scale)", ""),
        ("the encoder's positions", "self.decoder.places(batch", "self.encoder.places(batch"),
        ("no residual beside the source", "self.cross_norm(x + self", "self.cross_norm(self"),
        ("no bias of logits", "if self.bias is None else logits + self.bias", ""),
        ("no first token", "*([] if forced is None else [Input(forced)])", ""),
    ],
    "bart/marian.py": [
        ("another base", "10000.0 **", "1000.0 **"),
        ("cosines first", "[np.sin(angles), np.cos(angles)]", "[np.cos(angles), np.sin(angles)]"),
        ("the decoder's positions late", "sines(step.positions,", "sines(step.positions + 1,"),
    ],
    "glm_ocr/model.py": [
        ("halves swapped", "i:turned:2] for i in (0, 1)", "i:turned:2] for i in (1, 0)"),
        (
            "sections in another order",
            "MROPE, h.sections",
            "MROPE, [*h.sections[1:3], h.sections[0], 0]",
        ),
    ],
    "glm_ocr/vision.py": [
        ("places row by row", ".swapaxes(2, 3)", ""),
        ("columns before rows", "np.concatenate([at,", "np.concatenate([np.flip(at),"),
        ("merged rows as they are", ".gelu_erf()", ""),
        ("the other epsilon", "MERGER_EPS)", "1e-3)"),
    ],
    "laguna/model.py": [
        ("gates by sigmoids", ".softplus()", ".sigmoid()"),
        ("logits of routers not capped", ", self.config.router_cap)", ", 0.0)"),
        ("ropes swapped", "[local if near else rope", "[rope if near else local"),
        ("weights of experts as they are", "hf=lambda hf: True", "hf=lambda hf: False"),
    ],
    "moonshine/model.py": [
        ("another activation of samples", ".tanh()", ".gelu_erf()"),
        ("the other part first", 'Part("fc1", 0,', 'Part("fc1", 1,'),
        ("norms of each channel", ".reshape(n * channels).layer", ".layer"),
        ("no positions of sounds", "q, k = rope(q, positions), rope(k, positions)", ""),
    ],
    "moonshine/config.py": [
        ("all of a head rotates", "int(head_dim * share)", "head_dim"),
    ],
    "muse_glimmer/model.py": [
        ("embeddings without a norm", ".rms_norm(eps=self.config.eps)", ""),
        ("gates by another function", "self.gate(x).sigmoid()", "self.gate(x).tanh()"),
        ("the other epsilon", "super().forward(x, self.config.post_eps)", "super().forward(x)"),
        ("weights without one", "op=AddConstant(1), ", ""),
        ("layers from the first", "(last - i) % 4", "i % 4"),
        ("keys scaled, too", "lambda hf: 1.0)", 'lambda hf: hf["qk_scale_factor"])'),
    ],
    "olmo/olmo_hybrid.py": [
        ("values overwritten once", "beta.scale(2)", "beta"),
        ("another epsilon of values", "NORM_EPS = 1e-5", "NORM_EPS = 1e-3"),
        ("keys before queries", 'for name in "qkv")', 'for name in "kqv")'),
        ("always rotated", " if self.config.rotates else None)", ")"),
        ("no norm of values", "return self.norm(y, NORM_EPS)", "return y * self.norm.weight"),
    ],
    "rwkv/rwkv7.py": [
        ("more is forgotten", "-math.exp(-0.5)", "-0.7"),
        ("another epsilon of heads", ".layer_norm(eps=_EPS)", ".layer_norm(eps=1e-5)"),
        ("decays and keys swapped", '"rwkvag"', '"rkwvag"'),
        ("other values unmixed", "* self.mix(v).sigmoid()", "* self.mix(v)"),
        ("keys added whole", "(rate * k - k) * self.added", "rate * k * self.added"),
        ("keys removed whole", "removed * rate,", "removed,"),
        ("removed keys of any length", ".reshape(*shape).l2_norm()", ".reshape(*shape)"),
        ("no function in decays", "self.decay(w, Tensor.tanh)", "self.decay(w)"),
        ("no function in gates", "self.gate(g, Tensor.sigmoid)", "self.gate(g)"),
        ("not squared", ".relu().sqr()", ".relu()"),
        ("no bonus", " + bonus.reshape(*y.shape)", ""),
        ("rows before the last one", "part.n, part.n + 1))", "part.n - 1, part.n))"),
    ],
}
CASES = [(path, *fault) for path, faults in FAULTS.items() for fault in faults]


def sees(subject: Subject, cache: Path, models: Path) -> bool:
    """Whether a golden refuses a model; texts go in parts, as states do from batch to batch."""
    parts = {} if subject.pictures else {"batch_size": 7}
    with subject.load(cache, models, **parts) as model:
        return subject.beyond(subject.numbers(model))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.parametrize(
    ("path", "description", "before", "after"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES]
)
def test_goldens_see_a_fault(cache: Path, path: str, description: str, before: str, after: str):
    text = (MODELS / path).read_text("utf-8")
    assert text.count(before) == 1
    with written(path, text.replace(before, after)) as models:
        assert any(sees(s, cache, models) for a in served_by(path) for s in subjects(a))


@pytest.mark.parametrize("path", FAULTS)
def test_goldens_accept_the_file_as_it_is(cache: Path, path: str):
    with written(path, (MODELS / path).read_text("utf-8")) as models:
        assert not any(sees(s, cache, models) for a in served_by(path) for s in subjects(a))
