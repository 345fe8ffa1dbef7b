"""The embedded pair from nothing: `python -m recipes.tiny_pair.build`. Some three hours on two idle CPU cores.

A step whose result stands in the work folder is not repeated, so that a build which was stopped goes on where it was.
`--scale 0.02 --work runs/small --assets runs/small/assets` makes a poor pair in some minutes, to see that every step works.
"""

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from recipes.tiny_pair.card import write_card, write_folder_card

SHAPE = "--window 96 --taps 0,1,2 --selector-rank 128 --start target"
RESPONSES = "--temperatures 0,0,0.7,1 --max-new-tokens 160"
LEARNING = "--documents 4 --optimizer muon --learning-rate 0.002 --loss ce-tv --teacher target --keep-features"
ABLATIONS = {
    "dflash2": "",
    "selector_off": "--freeze selector",
    "convolution_off": "--freeze convolution",
    "dflash1": "--version 1",
}
ASSETS = Path("dflash2_core/assets/tiny_pair")


@dataclass(frozen=True)
class Lengths:
    """Minutes of each step, prompts to learn from and prompts to measure on of each domain."""

    target: float = 50
    unloop: float = 10
    drafter: float = 80
    ablation: float = 3
    prompts: int = 1600
    measured: int = 70

    def scaled(self, factor: float) -> "Lengths":
        minutes = (factor * each for each in (self.target, self.unloop, self.drafter, self.ablation))
        return Lengths(*minutes, *(max(2, round(factor * each)) for each in (self.prompts, self.measured)))


def build(work: Path, lengths: Lengths) -> None:
    """Fills `work`: target, prompts, the drafter in `full`, shorter runs of it and of its lesser forms, figures of each."""
    if not (work / "looping_report.json").is_file():
        _python(f"recipes.tiny_pair.pretrain --output {work}/looping --minutes {lengths.target}")
    if not (work / "prompts.json").is_file():
        _python(f"recipes.tiny_pair.prompts --work {work} --per-domain {lengths.prompts}")
    if not (work / "target_report.json").is_file():
        options = f"--prompts {work}/training_prompts.jsonl --minutes {lengths.unloop}"
        _python(f"recipes.tiny_pair.unloop --start {work}/looping --output {work}/target {options}")
    _drafter(work, "full", lengths.drafter, "")
    _figures(work, "full", f"--temperatures 0 0.7 1 --per-domain {lengths.measured}")
    for name, options in ABLATIONS.items():
        _drafter(work, name, lengths.ablation, options)
        _figures(work, name, f"--temperatures 0 0.7 --per-domain {lengths.measured // 2}")


def _drafter(work: Path, name: str, minutes: float, options: str) -> None:
    folder = work / name
    if not (folder / "drafter" / "config.json").is_file():
        inputs = f"--target {work}/target --prompts {work}/training_prompts.jsonl --heldout {work}/prompts.json"
        places = f"--responses {work}/responses --output {work}/{name}"
        length = f"--minutes {minutes} --device cpu --dtype float32" + (" --resume" if (folder / "latest").is_dir() else "")
        _python(f"dflash2_core.cli train {inputs} {places} {SHAPE} {RESPONSES} {LEARNING} {length} {options}")


def _figures(work: Path, name: str, options: str) -> None:
    output = work / name / "figures.json"
    if not output.is_file():
        pair = f"--target {work}/target --drafter {work}/{name}/drafter --prompts {work}/prompts.json"
        _python(f"recipes.tiny_pair.measure {pair} {options} --output {output}")


def install(work: Path, assets: Path, lengths: Lengths) -> None:
    """Puts the pair, its prompts and its card where the package keeps them; the card first, since it needs every figure."""
    assets.mkdir(parents=True, exist_ok=True)
    facts = {"unloop_minutes": lengths.unloop, "measured": lengths.measured}
    write_card(work, assets / "README.md", list(ABLATIONS), **facts)
    for source, name in ((work / "target", "target"), (work / "full" / "drafter", "drafter")):
        shutil.rmtree(assets / name, ignore_errors=True)
        (assets / name).mkdir(parents=True)
        for file in sorted(source.iterdir()):
            shutil.copyfile(file, assets / name / file.name)
        write_folder_card(assets / name)
    shutil.copyfile(work / "prompts.json", assets / "prompts.json")


def _python(command: str) -> None:
    subprocess.run([sys.executable, "-m", *command.split()], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/tiny_pair"))
    parser.add_argument("--assets", type=Path, default=ASSETS)
    parser.add_argument("--scale", type=float, default=1.0, help="of every length")
    arguments = parser.parse_args()
    lengths = Lengths().scaled(arguments.scale)
    build(arguments.work, lengths)
    install(arguments.work, arguments.assets, lengths)


if __name__ == "__main__":
    main()
