"""What README and the documentation show is run as it stands, or is at least there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dflash2_core.cli.commands import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_python_in_readme_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    length = float(re.search(r"^(?:length|stop) ([\d.]+)$", done.stdout, flags=re.MULTILINE)[1])
    assert length > 1.5, "nothing was drafted"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_and_option_that_is_shown_exists(page: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, rest in re.findall(r"^ +dflash2 ([\w-]+)(.*)$", page.read_text(), flags=re.MULTILINE):
        known = {option for parameter in commands[name].params for option in parameter.opts} | {"--help"}
        for option in re.findall(r"--[a-z-]+", re.split(r"#| -- ", rest)[0]):
            assert option in known, f"dflash2 {name} has no {option}"


def test_readme_and_each_guide_to_an_engine_show_commands() -> None:
    shown = {page.stem: len(re.findall(r"^ +dflash2 ", page.read_text(), flags=re.MULTILINE)) for page in PAGES}
    assert min(shown[name] for name in ("README", "serve-vllm", "serve-sglang", "serve-llama-cpp", "verify", "bench")) > 1


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_that_is_linked_to_or_named_exists(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).is_file(), link
    for name in re.findall(r"`(?:bash )?((?:adapters|bench|ci|tests|dflash2_core)/[\w/.]+\.\w+)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`((?:generate|serve|export|train|verify)_?\w*\.py)`|examples/(\w+\.py)", text):
        assert (ROOT / "examples" / "".join(name)).is_file(), name


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_option_of_make_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named_here = set(re.findall(r"`make ([\w-]+)`", page.read_text()))
    assert named_here <= targets


def test_every_page_stands_in_the_contents() -> None:
    listed = set(re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES if page != README}


def test_an_option_that_is_not_there_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("    dflash2 bench --rounds 3 --no-such-option -- --the-engines-own  # --a-comment\n")
    with pytest.raises(AssertionError, match="dflash2 bench has no --no-such-option"):
        test_every_command_and_option_that_is_shown_exists(page)
