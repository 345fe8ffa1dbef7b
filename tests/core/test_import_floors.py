"""Each part of the core knows only the parts below it; adapters and the exporter know the core and never each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = [
    {"errors", "proposal", "acceptance", "ending", "engine_watcher"},
    {"config"},
    {"assets", "checkpoint", "compatibility"},
    {"manifest"},
    {"conversion"},
    {"sampling"},
    {"drafter", "engine_log", "engines"},
    {"engine_metrics", "engine_program", "engine_process"},
    {"server_process"},
    {"deployment", "transformers_engine"},
    {"training"},
    {"conformance", "diagnosis"},
    {"benchmarks"},
    {"cli"},
]
FLOOR_OF = {name: height for height, names in enumerate(FLOORS) for name in names}
NOT_IN_THE_BASE_INSTALL = {"transformers", "tokenizers", "reasoning_gym"}
ENGINES = {"vllm", "sglang", "llama_cpp"}
ADAPTERS = sorted(path for path in (ROOT / "adapters").rglob("*.py"))


def imports_of(source: Path) -> set[str]:
    """Every module that a file imports, as dotted names; imports inside functions and type checks count too."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source} imports relatively: the floors are read from absolute names"
            names.add(node.module or "")
            if node.module == "dflash2_core":
                names |= {f"dflash2_core.{alias.name}" for alias in node.names}
    return names


def part_of(source: Path) -> str:
    first = source.relative_to(ROOT / "dflash2_core").parts[0]
    return first.removesuffix(".py")


CORE_FILES = sorted(path for path in (ROOT / "dflash2_core").rglob("*.py") if path.parent.name != "dflash2_core")
CORE_FILES += sorted(path for path in (ROOT / "dflash2_core").glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("source", CORE_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_part_imports_only_the_parts_below_it(source: Path) -> None:
    part = part_of(source)
    assert part in FLOOR_OF, f"{part} has no floor yet: give it one in FLOORS"
    for name in imports_of(source):
        if not name.startswith("dflash2_core."):
            continue
        other = name.split(".")[1]
        if other == part or other not in FLOOR_OF:
            continue
        assert FLOOR_OF[other] < FLOOR_OF[part], f"{part} imports {other}, which is not below it"


@pytest.mark.parametrize("source", CORE_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_imports_no_engine_and_no_adapter(source: Path) -> None:
    roots = {name.split(".")[0] for name in imports_of(source)}
    assert not roots & (ENGINES | {"adapters", "gguf_export", "mlx", "mlx_backend", "recipes"})
    assert not {root for root in roots if root.startswith("dflash2_") and root != "dflash2_core"}


def test_the_base_install_imports_the_package_without_the_extras() -> None:
    """What `import dflash2_core` reaches may use base dependencies only."""
    reached = [path for path in CORE_FILES if FLOOR_OF[part_of(path)] <= FLOOR_OF["drafter"]]
    assert reached
    for source in reached:
        assert not {name.split(".")[0] for name in imports_of(source)} & NOT_IN_THE_BASE_INSTALL, source


@pytest.mark.parametrize("source", ADAPTERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_adapter_imports_no_other_and_nothing_of_the_core_above_the_engines(source: Path) -> None:
    own = source.relative_to(ROOT / "adapters").parts[0]
    for name in imports_of(source):
        first, *rest = name.split(".")
        if first == "dflash2_core" and rest and rest[0] in FLOOR_OF:
            assert FLOOR_OF[rest[0]] <= FLOOR_OF["server_process"], f"{own} imports {name}"
        elif first.startswith("dflash2_") and first != "dflash2_core":
            assert first == own, f"{own} imports {first}"
        assert first not in {"recipes", "tests"}


@pytest.mark.parametrize("source", sorted((ROOT / "mlx_backend").glob("*.py")), ids=lambda path: path.name)
def test_the_mlx_backend_knows_the_core_up_to_the_drafter_and_no_adapter(source: Path) -> None:
    for name in imports_of(source):
        first, *rest = name.split(".")
        if first == "dflash2_core" and rest and rest[0] in FLOOR_OF:
            assert FLOOR_OF[rest[0]] <= FLOOR_OF["drafter"], f"{source.name} imports {name}"
        assert first not in {"adapters", "gguf_export", "recipes", "tests"}
        assert first == "dflash2_core" or not first.startswith("dflash2_")


def test_a_floor_broken_on_purpose_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "broken.py"
    source.write_text("def f():\n    from dflash2_core.cli import main\n")
    assert "dflash2_core.cli" in imports_of(source)
