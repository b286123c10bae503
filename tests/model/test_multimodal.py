"""Data beside an item that is prepared already."""

from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import PromptError
from ggmodel.model import Modality, Numbers
from ggmodel.workbench.golden import source_of
from tests.golden.files import load_golden


@pytest.mark.parametrize(
    ("numbers", "given", "found"),
    [
        (Numbers(int), np.int64(3), 3),
        (Numbers(int), [[3]], 3),
        (Numbers(int), np.uint64(2**64 - 1), 2**64 - 1),
        (Numbers(float), 2, 2.0),
        (Numbers(float), np.float32(0.5), 0.5),
        (Numbers(int, (3,)), np.array([[1, 4, 6]]), (1, 4, 6)),
        (Numbers(int, (3,), least=1), [1, 4, 6], (1, 4, 6)),
        (Numbers(float, ("frames",)), (0, 1.5), (0.0, 1.5)),
        (Numbers(float, ("frames",)), [2.0], (2.0,)),
        (Numbers(int, ("n",), most=3, ascending=True), [1, 1, 3], (1, 1, 3)),
        (Numbers(int, ("n", 2)), [[1, 2], [3, 4]], ((1, 2), (3, 4))),
        (Numbers(int, (1, 2)), [[[1, 2]]], ((1, 2),)),
    ],
)
def test_numbers_are_read_whatever_holds_them(numbers: Numbers, given: Any, found: Any):
    read = numbers.read(given)
    assert read == found and type(read) is type(found)


class Fails:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("no array")


@pytest.mark.parametrize(
    ("numbers", "given", "wanted"),
    [
        (Numbers(int), "3", "give a whole number"),
        (Numbers(int), True, "give a whole number"),
        (Numbers(int), 3.0, "give a whole number"),
        (Numbers(int), 10**30, "give a whole number"),
        (Numbers(int, least=0), -1, "give a whole number of at least 0"),
        (Numbers(int, most=9), 10, "give a whole number of at most 9"),
        (Numbers(float, least=0, most=1000), 1001, "give a number of at least 0 and at most 1,000"),
        (
            Numbers(float, ("n",), ascending=True),
            [1, 0],
            r"give numbers \[n\], none before the last",
        ),
        (Numbers(float), None, "give a number"),
        (Numbers(float), {}, "give a number"),
        (Numbers(int), [None], "give a whole number"),
        (Numbers(int), [[2**70]], "give a whole number"),
        (Numbers(float), [{}], "give a number"),
        (Numbers(float, ("n",)), [[None]], r"give numbers \[n\]"),
        (Numbers(float), Fails(), "give a number"),
        (Numbers(float), float("nan"), "give a number"),
        (Numbers(float, ("n",)), [], r"give numbers \[n\]"),
        (Numbers(float, ("n",)), ["a"], r"give numbers \[n\]"),
        (Numbers(float, ("n",)), [[1.0], [2.0, 3.0]], r"give numbers \[n\]"),
        (Numbers(int, (3,)), [1, 2], r"give whole numbers \[3\]"),
        (Numbers(int, ("n", 2)), [1, 2], r"give whole numbers \[n, 2\]"),
    ],
)
def test_other_numbers_are_refused(numbers: Numbers, given: Any, wanted: str):
    with pytest.raises(PromptError, match=f"; {wanted}$"):
        numbers.read(given)


def modality(**declared: Any) -> Modality:
    never: Any = None
    return Modality("", never, never, never, never, never, **declared)


def test_data_are_those_that_are_declared():
    declared = modality(data={"grid": Numbers(int, (2,))})
    assert declared.read_data("image", {"grid": [1, 2]}) == {"grid": (1, 2)}
    with pytest.raises(PromptError, match="this image: its grid is 'x'; give whole numbers"):
        declared.read_data("image", {"grid": "x"})
    with pytest.raises(PromptError, match="image has data named 'grit'; this model takes grid"):
        declared.read_data("image", {"grit": [1, 2]})
    with pytest.raises(PromptError, match="this model takes none"):
        modality(data={}).read_data("image", {"grid": [1, 2]})
    with pytest.raises(PromptError, match="data of this image are int; give a dict"):
        declared.read_data("image", 5)  # type: ignore[arg-type]


def test_undeclared_data_stay_as_they_are():
    given = {"mask": "x"}
    assert modality().read_data("image", given) is given


def test_data_beside_samples_are_refused():
    """An array of them is opened, not prepared."""
    with (
        ggmodel.load(source_of(load_golden("qwen2audio", "published"))) as model,
        pytest.raises(PromptError, match="frames beside audio that is opened; give data beside a"),
    ):
        model.encode_media("audio", np.zeros(16000, np.float32), frames=9)


def test_data_beside_a_file_are_refused():
    with (
        ggmodel.load(source_of(load_golden("idefics3", "tiles"))) as model,
        pytest.raises(PromptError, match="grid beside image that is opened; give data beside"),
    ):
        model.encode_media("image", "a.png", grid=(1, 2))
