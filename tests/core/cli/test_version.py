"""`dflash2 --version`."""

import tomllib
from pathlib import Path

import dflash2_core
from tests.core.cli.test_generate import dflash2


def test_it_says_the_version_that_the_distribution_has() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    done = dflash2("--version")
    assert (done.returncode, done.stdout) == (0, f"dflash2 {dflash2_core.__version__}\n")
    assert dflash2_core.__version__ == project["version"]


def test_without_a_command_the_help_is_still_shown() -> None:
    help_ = dflash2("--help").stdout
    assert "--version" in help_
    assert "far fewer" in help_
    assert "generate" in dflash2().stdout
