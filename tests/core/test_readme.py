"""What README shows is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dflash2_core.cli import app

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_python_in_readme_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    length = float(re.search(r"^(?:length|stop) ([\d.]+)$", done.stdout, flags=re.MULTILINE)[1])
    assert length > 1.5, "nothing was drafted"


def test_every_option_that_readme_names_exists() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shown = re.findall(r"^ +dflash2 ([\w-]+)(.*)$", README, flags=re.MULTILINE)
    assert shown
    for name, rest in shown:
        known = {option for parameter in commands[name].params for option in parameter.opts} | {"--help"}
        for option in re.findall(r"--[a-z-]+", rest.split("#")[0]):
            assert option in known, f"dflash2 {name} has no {option}"


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_every_file_that_readme_links_to_exists(link: str) -> None:
    assert (Path(__file__).parents[2] / link).is_file()
