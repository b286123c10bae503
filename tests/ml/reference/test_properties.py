"""Random ops on random operands: ggml against the reference."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggmodel.ml import OPS, Backend
from tests.ml.reference.comparison import compare, compute
from tests.ml.reference.recipes import RECIPES


def test_every_op_takes_part():
    assert set(RECIPES) == set(OPS)


@pytest.mark.parametrize("op", OPS)
@settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_ggml_equals_the_reference(op: str, ggml: Backend, reference: Backend, data):
    recipe = RECIPES[op](data.draw, op)
    compare(op, recipe, compute(ggml, recipe, op), compute(reference, recipe, op))
