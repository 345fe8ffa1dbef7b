"""What users install: the wheel, in an empty environment, away from the checkout."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of scripts of an empty environment with the built wheel in it."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("dflash2-*.whl")
    venv.create(folder / "venv", with_pip=True)
    scripts = folder / "venv" / "bin"
    requirement = f"dflash2[transformers] @ {wheel.as_uri()}"
    options = ("--quiet", "--constraint", ROOT / "ci" / "core.txt")
    run(scripts / "pip", "install", *options, requirement, cwd=folder)
    return scripts


@pytest.mark.slow
def test_the_installed_wheel_runs_the_demo_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    demo = run(installed / "dflash2", "generate", "--compare", cwd=tmp_path)
    assert "identical: 3 of 3" in demo.stdout.splitlines()[-1]
    where = run(installed / "python", "-c", "import dflash2_core; print(dflash2_core.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where.stdout


@pytest.mark.slow
def test_the_installed_wheel_answers_in_json(installed: Path, tmp_path: Path) -> None:
    answer = json.loads(run(installed / "dflash2", "generate", "def f(", "--json", "--compare", cwd=tmp_path).stdout)
    assert answer["plain_identical"] is True
    assert answer["stats"]["num_accepted"] > 0
