"""cibuildwheel understands its part of pyproject.toml, on every platform."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cibuildwheel.options import CommandLineArguments, Options
from cibuildwheel.platforms import linux, macos, windows

ROOT = Path(__file__).parents[2]
PLATFORMS = {
    "linux": (linux, "x86_64 aarch64", ["cp310-manylinux_x86_64", "cp310-manylinux_aarch64"]),
    "macos": (macos, "x86_64 arm64", ["cp310-macosx_x86_64", "cp310-macosx_arm64"]),
    "windows": (windows, "AMD64", ["cp310-win_amd64"]),
}


def options(name: str, archs: str) -> Options:
    """The options for a platform, without those of this machine's environment."""
    arguments = dataclasses.replace(
        CommandLineArguments.defaults(), platform=name, archs=archs, package_dir=ROOT
    )
    return Options(platform=name, command_line_arguments=arguments, env={})


@pytest.mark.parametrize("name", PLATFORMS)
def test_one_wheel_is_built_for_each_kind_of_processor(name: str) -> None:
    platform, archs, expected = PLATFORMS[name]
    read = options(name, archs)
    found = platform.get_python_configurations(
        read.globals.build_selector, read.globals.architectures
    )
    assert [configuration.identifier for configuration in found] == expected
    read.check_for_invalid_configuration(expected)


@pytest.mark.parametrize("name", PLATFORMS)
def test_the_wheel_brings_the_ggml_that_is_built_before(name: str) -> None:
    _, archs, [identifier, *_] = PLATFORMS[name]
    build = options(name, archs).build_options(identifier)
    folder = build.environment.as_dictionary({})["GGMODEL_BUNDLE"]
    assert build.before_all.endswith(f"tools/wheel.py ggml {folder}")
    assert not Path(folder).is_absolute()
    assert (ROOT / "tools" / "wheel.py").is_file()
    assert "ggmodel run {project}/examples/assets/stories.gguf" in build.test_command
    # Isolation would install what the wheel replaces.
    assert "--no-isolation" in build.build_frontend.args


def test_ggml_is_built_by_the_python_of_the_wheel() -> None:
    """Images of manylinux have another one in front, in which our tools do not run."""
    _, archs, [identifier, *_] = PLATFORMS["linux"]
    version = identifier.partition("-")[0]
    before = options("linux", archs).build_options(identifier).before_all
    for command in before.split(" && "):
        assert command.startswith(f"/opt/python/{version}-{version}/bin/python ")


def test_the_machine_that_builds_is_of_the_same_kind() -> None:
    arguments = dataclasses.replace(
        CommandLineArguments.defaults(), platform="linux", archs=None, package_dir=ROOT
    )
    read = Options(platform="linux", command_line_arguments=arguments, env={})
    assert len(read.globals.architectures) == 1
