"""One pair, one set of prompts, four engines, each alone and with the drafter: the same ids, and as many drafts kept.

The table that comes of it is written to build/cross_engine.md, and README shows it.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from dflash2_core import load_drafter
from tests.cross_engine.columns import ALL, OWN, TITLES, Column, column, version_of
from tests.cross_engine.running import ROOT, Running
from tests.cross_engine.texts import NEW_TOKENS, Text, kept_by_position, kept_drafts, texts
from tests.engines.spoiling import set_key, spoilt

WRITTEN = ROOT / "build/cross_engine.md"
IN_README = re.compile(r"<!-- cross-engine -->\n(.*?)<!-- /cross-engine -->", re.DOTALL)

Columns = Mapping[tuple[str, bool], Column]


@pytest.fixture(scope="module")
def asked() -> list[Text]:
    return texts()


@pytest.fixture(scope="module")
def columns(running: Running, asked: list[Text]) -> Columns:
    return {(name, drafts): column(running, name, asked, drafts=drafts) for name in ALL for drafts in (False, True)}


def test_there_is_enough_to_compare(asked: list[Text]) -> None:
    assert len(asked) >= 50
    assert min(len(text.ids) for text in asked) >= NEW_TOKENS


@pytest.mark.parametrize("drafts", [False, True], ids=["alone", "with its drafter"])
@pytest.mark.parametrize("name", ALL)
def test_every_column_is_token_identical(name: str, drafts: bool, columns: Columns, asked: list[Text]) -> None:
    assert columns[name, drafts].identical(asked) == len(asked)


@pytest.mark.parametrize("name", ALL)
def test_every_engine_keeps_as_many_drafts_of_every_place_as_the_definition_says(
    name: str, columns: Columns, asked: list[Text]
) -> None:
    if name == OWN:
        cycles = [kept for text in asked for kept in kept_drafts(text.prompt, text.ids, shortened=True)]
    else:
        cycles = [kept for text in asked for kept in text.kept]
    counted = columns[name, True].counted
    assert counted is not None
    assert counted.num_accepted == sum(cycles) > 1000
    assert list(counted.accepted_per_position) == kept_by_position(cycles)


def test_an_id_exchanged_in_one_column_is_seen(columns: Columns, asked: list[Text]) -> None:
    sound = columns["vllm", True]
    spoilt = [[*sound.ids[0][:-1], sound.ids[0][-1] ^ 1], *sound.ids[1:]]
    assert Column(spoilt, sound.counted).identical(asked) == len(asked) - 1


def test_drafts_from_other_layers_would_be_seen(asked: list[Text], tmp_path: Path) -> None:
    folder = spoilt(tmp_path / "drafter", config=set_key("dflash_config", "target_layer_ids", to=[1, 0, 2]))
    exchanged = load_drafter(folder, dtype="float32")
    some = asked[:10]
    kept = [kept_drafts(text.prompt, text.ids, of=exchanged) for text in some]
    sound = [kept_drafts(text.prompt, text.ids) for text in some]
    assert kept_by_position([k for each in kept for k in each]) != kept_by_position([k for each in sound for k in each])


def test_the_table_is_written_and_readme_shows_it(running: Running, columns: Columns, asked: list[Text]) -> None:
    versions = {name: version_of(running, name) for name in ALL}
    WRITTEN.parent.mkdir(exist_ok=True)
    WRITTEN.write_text(table(columns, asked, versions))
    shown = IN_README.search((ROOT / "README.md").read_text())
    assert shown is not None
    assert shown[1].strip() == WRITTEN.read_text().strip(), f"copy {WRITTEN.relative_to(ROOT)} into README"


def table(columns: Columns, asked: list[Text], versions: Mapping[str, str]) -> str:
    """In Markdown. A token a cycle more than the drafts kept: the target's own."""
    rows = [
        "| engine | version | alone | with the drafter | drafts kept | tokens a cycle |",
        "|-|-|-|-|-|-|",
    ]
    num_cycles = sum(len(text.kept) for text in asked)
    for name in ALL:
        counted = columns[name, True].counted
        assert counted is not None
        same = [f"{columns[name, drafts].identical(asked)} of {len(asked)} identical" for drafts in (False, True)]
        kept = f"{counted.num_accepted} | {1 + counted.num_accepted / num_cycles:.2f}"
        rows.append(f"| {TITLES[name]} | {versions[name]} | {same[0]} | {same[1]} | {kept} |")
    return "\n".join(rows) + "\n"
