"""Every golden, computed in every way: in batches, token by token, beside a second sequence, after
a context shift, in float64 with the numbers of the case and others, and with rounded weights."""

from __future__ import annotations

import pytest

from ggmodel.workbench import golden
from ggmodel.workbench.golden.changes import FOLLOWS
from tests.golden.files import HERE, load_golden

SPLITS = [*(f"batches of {n}" for n in (1, 2, 3, 7)), "token by token", "shared prefix"]
ROUNDED = ["F16", "BF16", "Q8_0"]
ALL = [
    (file.parent.name, case)
    for file in sorted(HERE.glob("*/cases.py"))
    for case in golden.Cases(file.parent).names
]
# Architectures, and cases of others, with a state of all tokens so far, which no cache can shorten
# at its beginning, or with learned positions, which nothing moves.
STATES = {
    "bart",
    "deepseek4",
    "falcon_h1",
    "gpt2",
    "granitehybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "lfm2vl",
    "mamba",
    "mamba2",
    "marian",
    "nemotron_h",
    "olmo_hybrid",
    "qwen35",
    "qwen3next",
    "qwen3vl/qwen35",
    "rwkv7",
    "whisper",
}
STATELESS = {
    "granitehybrid/attention",
    "qwen35/uncovered_pairs",
    "qwen35/wide_sections",
}  # attention alone
# Goldens of experts without the reference's choices of them: their prompts keep routers from ties.
UNROUTED = {
    *("phimoe/near", "phimoe/published", "phimoe/window"),  # no top-k chooses
    *("gemma4/experts", "internvl/experts", "qwen3vl/experts"),
    *("gpt_oss/other_layers", "gpt_oss/rounded_yarn"),
    *("llama4/every_layer", "llama4/interleaved", "llama4/two_experts", "llama4/untuned"),
    *("llama4/images", "llama4/llama3_rope", "llama4/released"),
    *("qwen3/experts_window", "qwen3/plain_weights", "qwen3/some_dense"),
    *("qwen35/experts", "qwen35/experts_groups"),
}
# Made before other numbers were recorded: transformers takes long with them. The package rwkv goes
# by the tensors alone.
UNCHANGED = {"gemma3n/images", "gemma3n/sounds", "gemma3n/untied", "rwkv7/heads", "rwkv7/published"}


def has_experts(architecture: str, case: str) -> bool:
    """Whether a checkpoint's names say that its layers choose experts."""
    names = load_golden(architecture, case).tensors
    return any({"experts", "router"} & {*name.split(".")} for name in names)


@pytest.mark.parametrize(("architecture", "case"), ALL, ids=map("/".join, ALL))
def test_every_way_gives_the_same(architecture: str, case: str):
    name = f"{architecture}/{case}"
    states = not STATES.isdisjoint({architecture, name}) and name not in STATELESS
    first, *others = golden.check(HERE / architecture, case)
    for outcome in (first, *others):
        assert outcome.ok, str(outcome)
        refused = {run.name: run.note for run in outcome.runs if run.note}
        expected = states and outcome is first
        assert list(refused) == ["context shift"] * expected, refused
        assert outcome.versions["transformers"]
    names = [run.name for run in first.runs]
    if first.greedy is None:
        assert names == ["each text alone", "float64", *ROUNDED]
        return
    routers = ["routers"] * (name not in UNROUTED and has_experts(architecture, case))
    follows = [FOLLOWS] * (name not in UNCHANGED)
    assert names == [*SPLITS, "context shift", "float64", *routers, *follows, *ROUNDED]
    shift = first.runs[len(SPLITS)]
    if states:
        assert shift.note.startswith("its state cannot shift")
    else:  # keys that were rotated twice are not bit for bit those of the shortened text
        assert shift.nmse > 0
    for outcome in others:
        assert [run.name for run in outcome.runs] == (SPLITS if outcome.greedy else [])
