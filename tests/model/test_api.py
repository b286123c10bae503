"""The public face: what is imported from where, and what an import costs."""

import json
import subprocess
import sys

import pytest

import ggmodel
from ggmodel import errors

HEAVY = ["numpy", "cffi", "ggmodel.native", "ggmodel.ml", "ggmodel.models", "gguf", "jinja2"]


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_public_names_are_there():
    names = json.loads(
        in_new_process(
            "import ggmodel, json\n"
            "for name in ggmodel.__all__: getattr(ggmodel, name)\n"
            "print(json.dumps([ggmodel.__all__, dir(ggmodel)]))"
        )
    )
    assert names[0] == ggmodel.__all__
    assert set(names[0]) <= set(names[1])


@pytest.mark.parametrize("name", ggmodel.__all__)
def test_each_public_name_can_be_the_first(name: str):
    out = in_new_process(f"from ggmodel import {name} as it; print(it is not None)")
    assert out == "True\n"


@pytest.mark.parametrize(
    "name", ["chat", "convert", "errors", "image", "kvcache", "ml", "models", "nn", "workbench"]
)
def test_subpackages_are_reached_by_an_attribute(name: str):
    assert in_new_process(f"import ggmodel; print(ggmodel.{name}.__name__)") == f"ggmodel.{name}\n"


def test_what_the_documents_reach():
    said = in_new_process(
        "import ggmodel\n"
        "print(ggmodel.convert.convert.__name__, ggmodel.chat.take_items.__name__,"
        " ggmodel.gguf_file.JoinedSource.__name__)"
    )
    assert said == "convert take_items JoinedSource\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'ggmodel' has no attribute 'nothing'"):
        ggmodel.__getattr__("nothing")
    assert not hasattr(ggmodel, "nothing")


@pytest.mark.parametrize("code", ["import ggmodel", "from ggmodel.gguf_file import open_gguf"])
def test_importing_loads_neither_numpy_nor_ggml(code: str):
    loaded = json.loads(
        in_new_process(f"{code}\nimport sys, json; print(json.dumps(list(sys.modules)))")
    )
    assert "ggmodel" in loaded
    assert not set(HEAVY) & set(loaded)


def test_every_error_is_of_one_family():
    kinds = [v for v in vars(errors).values() if isinstance(v, type)]
    assert len(kinds) > 10
    assert all(issubclass(kind, ggmodel.Error) for kind in kinds)


def test_the_public_names_of_the_layer_of_models():
    from ggmodel import model, nn

    for package in (model, nn):
        constants_first = sorted(package.__all__, key=lambda name: (not name.isupper(), name))
        assert constants_first == package.__all__
        assert [n for n in package.__all__ if not hasattr(package, n)] == []
    assert model.Model is ggmodel.Model
    assert model.gguf is ggmodel.gguf
