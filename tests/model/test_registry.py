"""Where architectures are found, and what is said when one is not."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ggmodel
from ggmodel import Model, register
from ggmodel.cli import app
from ggmodel.convert import from_hf
from ggmodel.errors import ArchitectureError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find, registry, supported
from tests.golden.files import load_golden

Write = Callable[..., Path]

MODEL = """
from ggmodel import Config, Model, kv, register

class SmallConfig(Config):
    layers: int = kv("block_count")

@register({name!r}, hf="{hf}")
class Found(Model):
    config: SmallConfig
    mark = {mark!r}
"""


def model(name: str, mark: str = "", hf: str = "") -> str:
    return MODEL.format(name=name, mark=mark, hf=hf)


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Architectures that a test registers are gone after it; those it imports stay."""
    supported()
    registered, modules = dict(registry._registered), set(sys.modules)
    yield
    registry._registered.clear()
    registry._registered.update(registered)
    for name in set(sys.modules) - modules:
        if name.startswith(("ggmodel_models_", "third_party")):
            registry._forget(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write("a.py", text)` writes into the folder of models and returns the folder."""

    def write(name: str, text: str, folder: str = "models") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path / folder

    return write


def mark_of(cls: type[Model]) -> str:
    return cls.__dict__["mark"]


# by decorator


def test_a_registered_class_is_found():
    @register("mine", hf=("MineForCausalLM", "YoursForCausalLM"))
    class Mine(Model):
        pass

    assert find("mine") is Mine
    assert Mine.architecture == "mine"
    assert Mine.hf_architectures == ("MineForCausalLM", "YoursForCausalLM")
    assert "mine" in supported()


def test_one_hugging_face_name_needs_no_tuple():
    @register("mine", hf="MineForCausalLM")
    class Mine(Model):
        pass

    assert Mine.hf_architectures == ("MineForCausalLM",)


def test_a_name_is_registered_once():
    @register("mine")
    class Mine(Model):
        pass

    with pytest.raises(
        ArchitectureError, match=r"'mine' is already registered, by .*Mine"
    ) as caught:

        @register("mine")
        class Other(Model):
            pass

    assert f"{__file__}:" in str(caught.value)
    assert find("mine") is Mine


def test_a_model_that_encodes_images_inherits_the_asking_for_it():
    with pytest.raises(ArchitectureError, match=r"Blind has encode_multimodal.*VisionModel"):

        @register("blind")
        class Blind(Model):
            def encode_multimodal(self, ctx, image):
                return []


def test_the_same_class_may_be_registered_again_as_a_notebook_does():
    def cell() -> type[Model]:
        @register("mine")
        class Mine(Model):
            pass

        return Mine

    cell()
    latest = cell()
    assert find("mine") is latest


# built in


def test_the_architectures_that_come_along():
    assert "llama" in supported()
    assert find("llama").__module__ == "ggmodel.models.llama.model"


@pytest.mark.parametrize("name", ["qwen3moe", "gemma-embedding"])
def test_a_name_that_is_no_name_of_a_module(name: str):
    assert name in supported()
    # In a process that has imported none of them yet.
    code = f"from ggmodel.model import find; print(find({name!r}).architecture)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == name, done.stderr


def test_a_module_is_no_architecture():
    assert "gemma_embedding" not in supported()


@pytest.mark.parametrize("name", ["lama", "Llama"])
def test_an_unknown_architecture_lists_those_there_are_and_the_nearest(name: str):
    with pytest.raises(ArchitectureError) as caught:
        find(name)
    text = str(caught.value)
    assert f"no architecture {name!r}; did you mean 'llama'? Supported: " in text
    assert all(known in text for known in supported())
    assert "models=" in text


def test_without_a_near_name_none_is_proposed(write: Write):
    folder = write("far_away.py", "")
    with pytest.raises(ArchitectureError) as caught:
        find("zzz", folder)
    assert "did you mean" not in str(caught.value)
    assert "far_away" in str(caught.value)


# a folder


def test_a_file_in_a_folder(write: Write):
    folder = write("mine.py", model("mine", "file"))
    assert mark_of(find("mine", folder)) == "file"
    assert mark_of(find("mine", str(folder))) == "file"
    assert "mine" in supported(folder)


def test_a_second_name_in_a_file_that_is_called_otherwise(write: Write):
    folder = write("first.py", model("first") + model("second", "2"))
    assert mark_of(find("second", folder)) == "2"
    assert mark_of(find("first", folder)) == ""


def test_a_package_in_a_folder_imports_its_own_modules(write: Write):
    write("mine/__init__.py", "from .model import Found as Found\n")
    write("mine/model.py", "from .vision import MARK\n" + model("mine") + "    mark = MARK\n")
    folder = write("mine/vision.py", "MARK = 'seen'\n")
    assert mark_of(find("mine", folder)) == "seen"
    assert "mine" in supported(folder)


def test_the_same_class_as_long_as_the_file_is_the_same(write: Write):
    folder = write("mine.py", model("mine"))
    assert find("mine", folder) is find("mine", folder)


def test_a_file_that_has_changed_is_imported_again(write: Write):
    # Within one second and of the same size: what Python's own bytecode cache cannot tell apart.
    folder = write("mine.py", model("mine", "one"))
    assert mark_of(find("mine", folder)) == "one"
    write("mine.py", model("mine", "two"))
    assert mark_of(find("mine", folder)) == "two"


def test_a_change_within_a_package_counts_too(write: Write):
    write("mine/__init__.py", "from .vision import MARK\n" + model("mine") + "    mark = MARK\n")
    folder = write("mine/vision.py", "MARK = 'one'\n")
    assert mark_of(find("mine", folder)) == "one"
    write("mine/vision.py", "MARK = 'two'\n")
    assert mark_of(find("mine", folder)) == "two"


def test_no_bytecode_is_left_in_the_folder(write: Write):
    folder = write("mine.py", model("mine"))
    before = sys.dont_write_bytecode
    find("mine", folder)
    assert os.listdir(folder) == ["mine.py"]
    assert sys.dont_write_bytecode == before


def test_a_folder_comes_first_and_serves_only_those_who_name_it(write: Write):
    built_in = find("llama")
    folder = write("llama.py", model("llama", "mine"))
    other = write("llama.py", model("llama", "theirs"), folder="other")
    assert mark_of(find("llama", folder)) == "mine"
    assert mark_of(find("llama", other)) == "theirs"
    assert mark_of(find("llama", folder)) == "mine"
    assert find("llama") is built_in


@pytest.mark.parametrize("file", ["my_llama.py", "qwen3.py", "mine/__init__.py"])
def test_a_folder_comes_first_whatever_its_files_are_called(write: Write, file: str):
    folder = write(file, model("llama", "mine", hf="LlamaForCausalLM"))
    assert mark_of(find("llama", folder)) == "mine"
    assert mark_of(registry.find_hf(["LlamaForCausalLM"], folder)) == "mine"
    assert "mine" not in vars(find("llama"))


@pytest.mark.parametrize("name", ["'llama'", "NAME"])
def test_a_folder_comes_first_with_a_module_of_a_family(write: Write, name: str):
    write("kin/__init__.py", "")
    text = model("llama", "mine").replace("register('llama'", f"register({name}")
    folder = write("kin/elder.py", "NAME = 'llama'\n" + text)
    assert mark_of(find("llama", folder)) == "mine"


def test_a_command_and_load_take_the_model_of_the_folder(write: Write):
    folder = write(
        "other_name.py",
        "from ggmodel import register\n"
        "from ggmodel.models import llama\n\n"
        "@register('llama')\n"
        "class Mine(llama.Llama):\n"
        "    def hidden(self, ctx, batch):\n"
        "        raise RuntimeError('mine is used')\n",
    )
    file = Path(__file__).parents[1] / "fixtures" / "llama-converter-plain-f32.gguf"
    with pytest.raises(ArchitectureError, match=r"other_name\.py:7 .*mine is used"):
        ggmodel.load(file, models=folder)
    done = CliRunner().invoke(app, ["check", str(file), "--models", str(folder)])
    assert done.exit_code == 1
    assert "mine is used" in done.output


def test_a_file_that_cannot_be_imported_is_an_error_of_every_search(write: Write):
    write("mine.py", model("llama", "mine"))
    folder = write("unfinished.py", "1 / 0\n")
    for search in (find, lambda name, folder: registry.find_hf([name], folder)):
        with pytest.raises(ArchitectureError, match=r"unfinished\.py:1 .*cannot be imported"):
            search("llama", folder)


def test_a_script_in_a_folder_does_not_end_the_process(write: Write):
    folder = write("setup.py", "import sys\nsys.exit(0)\n")
    with pytest.raises(ArchitectureError, match=r"setup\.py: .*it ends the process"):
        find("llama", folder)


def test_two_files_of_a_folder_that_register_one_name(write: Write):
    write("llama.py", model("llama", hf="LlamaForCausalLM"))
    folder = write("llama_before.py", model("llama", hf="LlamaForCausalLM"))
    both = r"llama\.py:\d+ and .*llama_before\.py:\d+ both "
    with pytest.raises(ArchitectureError, match=f"{both}register the architecture 'llama'"):
        find("llama", folder)
    with pytest.raises(ArchitectureError, match=f"{both}serve LlamaForCausalLM"):
        registry.find_hf(["LlamaForCausalLM"], folder)
    assert find("qwen2", folder) is find("qwen2")


def test_a_variant_of_a_folder_comes_before_the_built_in(write: Write):
    text = model("llama", "pooled").replace("'llama',", "'llama', pooled=True,")
    folder = write("mine.py", text)
    assert mark_of(find("llama", folder, pooled=True)) == "pooled"
    assert find("llama", folder) is find("llama")
    write("mine.py", model("gemma3", "plain"))
    assert mark_of(find("gemma3", folder, pooled=True)) == "plain"


def test_what_a_folder_lacks_is_found_elsewhere(write: Write):
    folder = write("mine.py", model("mine"))
    assert find("llama", folder) is find("llama")
    with pytest.raises(ArchitectureError, match="no architecture 'mine'"):
        find("mine")


def test_a_model_file_may_build_on_one_that_comes_along(write: Write):
    text = "from ggmodel.models.llama import Llama\n" + model("mine").replace("(Model)", "(Llama)")
    folder = write("mine.py", text.replace("config: SmallConfig", ""))
    assert issubclass(find("mine", folder), find("llama"))
    assert find("llama").__module__ == "ggmodel.models.llama.model"


def test_a_built_in_first_imported_by_a_model_file_is_registered_for_all(
    write: Write, monkeypatch: pytest.MonkeyPatch
):
    for module in ("ggmodel.models.llama", "ggmodel.models.llama.model"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    registry._registered.pop("llama", None)
    folder = write("mine.py", "import ggmodel.models.llama\n" + model("mine"))
    find("mine", folder)
    assert find("llama").__module__ == "ggmodel.models.llama.model"


def test_a_name_that_is_no_identifier(write: Write):
    folder = write("gpt_oss.py", model("gpt-oss", "dash"))
    assert mark_of(find("gpt-oss", folder)) == "dash"


def test_a_file_must_register_its_name(write: Write):
    folder = write("mine.py", model("other"))
    with pytest.raises(ArchitectureError, match=r"mine\.py registers no .*'mine', only 'other'"):
        find("mine", folder)
    folder = write("mine.py", "")
    with pytest.raises(ArchitectureError, match=r"decorate its model with @register\('mine'\)"):
        find("mine", folder)


def test_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(ArchitectureError, match="is no folder"):
        find("llama", tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../evil", "..", "a/../../evil", "", "__init__", "x" * 10_000])
def test_an_architecture_of_a_hostile_file_reaches_nothing_outside(write: Write, name: str):
    folder = write("mine.py", model("mine"))
    for path in (folder.parent / "evil.py", folder / "__init__.py", folder / "_.py"):
        path.write_text("raise SystemExit('reached')\n")
    with pytest.raises(ArchitectureError, match="no architecture") as caught:
        find(name, folder)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
        ("import ggmodel\nimport no_such_module_at_all\n", 2, "ModuleNotFoundError: No module"),
        ("\n\n1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("from ggmodel import kv\n\nx: int = kv()\n", 3, "kv"),
        ("def f():\n    raise ValueError\nf()\n", 2, "ValueError"),
    ],
)
def test_a_file_that_cannot_be_imported_names_its_line(
    write: Write, text: str, line: int, message: str
):
    folder = write("mine.py", text)
    modules = set(sys.modules)
    with pytest.raises(ArchitectureError) as caught:
        find("mine", folder)
    error = str(caught.value)
    assert error.startswith(f"{folder / 'mine.py'}:{line}")
    assert "the model file cannot be imported" in error
    assert message in error
    assert caught.value.__cause__ is not None
    assert {m for m in set(sys.modules) - modules if m.startswith("ggmodel_models_")} == set()
    write("mine.py", model("mine", "mended"))
    assert mark_of(find("mine", folder)) == "mended"


def test_a_package_that_cannot_be_imported_names_the_line_within(write: Write):
    write("mine/__init__.py", "from . import good, vision\n")
    write("mine/good.py", "")
    folder = write("mine/vision.py", "x = 1\ny = x.nothing\n")
    with pytest.raises(ArchitectureError) as caught:
        find("mine", folder)
    assert str(caught.value).startswith(f"{folder / 'mine' / 'vision.py'}:2")
    assert not any(m.startswith("ggmodel_models_") and "mine" in m for m in sys.modules)


def test_after_a_broken_file_the_one_that_comes_along_is_still_there(write: Write):
    built_in = find("llama")
    folder = write("llama.py", "1 / 0\n")
    with pytest.raises(ArchitectureError):
        find("llama", folder)
    assert find("llama") is built_in


# entry points


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`installed("name", text)` is a distribution with that entry point."""

    def install(name: str, text: str) -> None:
        (tmp_path / "third_party_model.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        entry = metadata.EntryPoint(name, "third_party_model", "ggmodel.models")

        def entry_points(group: str) -> list[metadata.EntryPoint]:
            return [entry] if group == "ggmodel.models" else []

        monkeypatch.setattr(metadata, "entry_points", entry_points)

    return install


def test_an_entry_point(installed: Callable[..., None]):
    installed("theirs", model("theirs", "entry"))
    assert "theirs" in supported()
    assert mark_of(find("theirs")) == "entry"
    assert find("theirs").__module__ == "third_party_model"


def test_an_entry_point_is_imported_only_when_asked_for(installed: Callable[..., None]):
    installed("theirs", "raise SystemExit('imported')\n")
    assert find("llama").architecture == "llama"
    with pytest.raises(ArchitectureError, match=r"no architecture 'thei'; did you mean 'theirs'"):
        find("thei")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1 / 0\n",
            r"third_party_model\.py:1 .*'third_party_model' of 'theirs' cannot be imported",
        ),
        (model("others"), r"called 'theirs' but registers no model .*@register\('theirs'\)"),
    ],
)
def test_an_entry_point_that_does_not_work(installed: Callable[..., None], text: str, message: str):
    installed("theirs", text)
    with pytest.raises(ArchitectureError, match=message):
        find("theirs")


VARIANTS = """
from ggmodel import register
from ggmodel.models import llama

@register("twofold")
class Plain(llama.Llama):
    pass

@register("twofold", pooled=True)
class Pooled(llama.Llama):
    pass
"""


def test_a_pooling_type_selects_the_embedding_variant(tmp_path: Path):
    (tmp_path / "twofold.py").write_text(VARIANTS)
    assert find("twofold", tmp_path).__name__ == "Plain"
    variant = find("twofold", tmp_path, pooled=True)
    assert (variant.__name__, variant.architecture) == ("Pooled", "twofold")
    assert find("llama", pooled=True) is find("llama")  # it has no variant
    assert supported(tmp_path).count("twofold") == 1


@pytest.mark.parametrize(("pooling", "name"), [(None, "Plain"), (0, "Plain"), (1, "Pooled")])
def test_a_file_with_a_pooling_type_is_loaded_as_the_variant(
    tmp_path: Path, pooling: int | None, name: str
):
    (tmp_path / "twofold.py").write_text(VARIANTS)
    golden = load_golden("llama", "plain_gqa")
    source = from_hf(find("twofold", tmp_path), golden.config, golden.weights())
    metadata = dict(source.metadata)
    if pooling is not None:
        metadata["twofold.pooling_type"] = pooling
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    with ggmodel.load(MemorySource(metadata, tensors), models=tmp_path) as model:
        assert type(model.model).__name__ == name


# families: several architectures in one folder


def imported_by(name: str, folder: Path | None = None) -> list[str]:
    """The modules of architectures that a process imports to find one."""
    code = (
        "import sys\n"
        "from ggmodel.model import find\n"
        f"print(find({name!r}, {str(folder) if folder else None!r}).architecture)\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('ggmodel.models.', 'ggmodel_m'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    found, modules = done.stdout.splitlines()
    assert found == name, done.stderr
    return modules.split()


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("llama", ["llama", "llama.model"]),
        ("gpt-oss", ["gpt_oss", "gpt_oss.model"]),
        ("qwen2", ["qwen", "qwen.qwen2"]),
        ("olmo2", ["olmo", "olmo.olmo2"]),
    ],
)
def test_only_the_one_asked_for_is_imported(name: str, modules: list[str]):
    assert imported_by(name) == [f"ggmodel.models.{m}" for m in modules]


@pytest.mark.parametrize("name", ["model", "config", "vision", "qwen", "image"])
def test_a_module_or_a_family_is_no_architecture(name: str):
    assert name not in supported()
    with pytest.raises(ArchitectureError, match=f"no architecture '{name}'"):
        find(name)


@pytest.fixture
def family(write: Write) -> Path:
    write("kin/__init__.py", '"""A family."""\n')
    write("kin/helper.py", "MARK = 'helped'\n")
    elder = model("elder", hf="ElderForCausalLM")
    write("kin/elder.py", f"from .helper import MARK\n{elder}    mark = MARK\n")
    write("kin/broken.py", "1 / 0\n@register('broken')\nclass Broken: pass\n")
    return write("kin/younger.py", model("younger", "2") + model("third", "3"))


def test_a_family_in_a_folder(family: Path):
    assert mark_of(find("elder", family)) == "helped"
    assert mark_of(find("younger", family)) == "2"
    assert find("elder", family) is find("elder", family)
    assert find("llama", family) is find("llama")


def test_only_one_of_a_family_is_imported(family: Path):
    modules = imported_by("younger", family)
    assert [m.rpartition(".")[2] for m in modules if "." in m] == ["younger"]


def test_the_names_of_a_family_are_listed(family: Path):
    names = set(supported(family)) - set(supported())
    assert names == {"elder", "younger", "third", "broken"}


def test_a_helper_or_a_family_in_a_folder_is_no_architecture(family: Path):
    (family / "kin" / "broken.py").unlink()
    for name in ("helper", "kin"):
        with pytest.raises(ArchitectureError, match="no architecture"):
            find(name, family)
    assert mark_of(find("third", family)) == "3"
    assert mark_of(registry.find_hf(["ElderForCausalLM"], family)) == "helped"


def test_a_broken_one_of_a_family_names_its_line(family: Path):
    with pytest.raises(ArchitectureError) as caught:
        find("broken", family)
    assert str(caught.value).startswith(f"{family / 'kin' / 'broken.py'}:1")
    assert mark_of(find("younger", family)) == "2"


def test_a_change_in_a_family_counts(family: Path):
    assert mark_of(find("elder", family)) == "helped"
    (family / "kin" / "helper.py").write_text("MARK = 'change'\n")
    assert mark_of(find("elder", family)) == "change"
