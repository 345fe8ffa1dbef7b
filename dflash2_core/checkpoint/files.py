"""Which files of a folder are the checkpoint's weights, and which make it unsafe or ambiguous."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dflash2_core.checkpoint.header import is_regular
from dflash2_core.config.documents import read_object, stays_inside
from dflash2_core.config.reading import named, placed, shown
from dflash2_core.errors import CheckpointError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
TRAINING_STATE = frozenset(
    # what trainers leave beside a model: no weights of the drafter, never opened
    ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt", "rng_state.pth")
)
MASK_ROW = "mask_embedding.pt"
GGUF = b"GGUF"


@dataclass
class WeightFiles:
    """files: the safetensors to read; index: tensor -> file name, None for a single file."""

    files: list[Path] = field(default_factory=list)
    index: dict[str, str] | None = None
    problems: list[str] = field(default_factory=list)


def folder_at(path: str | Path) -> Path:
    """The checkpoint's folder; CheckpointError with a sentence for what is no such folder."""
    folder = Path(path)
    try:
        exists, is_folder = folder.exists(), folder.is_dir()
    except (OSError, ValueError) as problem:
        raise CheckpointError(
            f"{shown(str(folder))} is no usable path: {getattr(problem, 'strerror', None) or problem}"
        ) from None
    if not exists:
        raise CheckpointError(f"{placed(folder)} does not exist: expected a drafter's folder")
    if not is_folder:
        raise CheckpointError(_why_not_a_folder(folder))
    if not is_regular(folder / CONFIG):
        raise CheckpointError(f"{placed(folder)} has no {CONFIG}{_guess(folder)}: expected a drafter's folder")
    if not stays_inside(folder, folder / CONFIG):
        raise CheckpointError(f"{placed(folder / CONFIG)} leads out of the folder through a link: refused")
    return folder


def is_gguf(path: Path) -> bool:
    """Whether `path` is an ordinary file that begins as a GGUF does."""
    if not is_regular(path):
        return False
    with path.open("rb") as file:
        return file.read(len(GGUF)) == GGUF


def _why_not_a_folder(path: Path) -> str:
    if is_gguf(path):
        return f"{placed(path)} is a GGUF file, which gguf_export reads: expected a folder with {CONFIG} and safetensors"
    if path.suffix in PICKLES:
        return f"{placed(path)} is a pickle, which can run code when opened, and is never read: expected a drafter's folder"
    return f"{placed(path)} is a file: expected the folder that holds {CONFIG} and the weights"


def _guess(folder: Path) -> str:
    if any(folder.glob("*.gguf")):
        return " but holds GGUF files, which gguf_export reads"
    inside = sorted(child.name for child in folder.iterdir() if is_regular(child / CONFIG))
    return f", though folders inside it do ({', '.join(map(named, inside[:4]))})" if inside else ""


def find_weights(folder: Path) -> WeightFiles:
    """The safetensors of `folder`, single or sharded; all that is wrong with its files goes to `problems`."""
    found = WeightFiles()
    found.problems += _pickle_problems(folder)
    single, index = folder / WEIGHTS, folder / INDEX
    if single.exists() and index.exists():
        found.problems.append(f"{placed(folder)} holds both {WEIGHTS} and {INDEX}: two sets of weights; remove one")
    elif index.exists():
        _read_index(folder, found)
    elif single.exists():
        _add(folder, WEIGHTS, found)
    else:
        found.problems.append(f"{placed(folder)} has no {WEIGHTS} and no {INDEX}")
    used = {file.name for file in found.files} | {WEIGHTS} | set((found.index or {}).values())
    for stray in sorted(file.name for file in folder.glob("*.safetensors") if file.name not in used):
        found.problems.append(f"{named(stray)} is no part of this checkpoint's weights: remove it, or list it in {INDEX}")
    return found


def other_weights(folder: Path) -> list[str]:
    """Files that would contradict a single `model.safetensors` in `folder`."""
    strays = {file.name for file in folder.glob("*.safetensors")} - {WEIGHTS}
    return sorted({*strays, *_pickles(folder), *([INDEX] if (folder / INDEX).exists() else [])})


def _pickles(folder: Path) -> list[str]:
    names = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    return [name for name in names if name not in TRAINING_STATE and not name.startswith("rng_state_")]


def _pickle_problems(folder: Path) -> Iterator[str]:
    for name in _pickles(folder):
        if name == MASK_ROW:
            yield (
                f"{name} is a pickle, which can run code when opened: never read. Where you trust it, convert it once: "
                "weights = safetensors.torch.load_file('model.safetensors'); "
                f"row = torch.load('{name}', weights_only=True); "
                "weights['mask_embedding'] = (row['embedding'] if isinstance(row, dict) else row).reshape(-1); "
                "safetensors.torch.save_file(weights, 'model.safetensors'); then remove it"
            )
        else:
            yield (
                f"{named(name)} is a pickle, which can run code when opened: never read. If it holds weights that are not in "
                f"{WEIGHTS}, convert it once where you trust it: safetensors.torch.save_file(torch.load({shown(name)}, "
                f"weights_only=True), '{WEIGHTS}'); then remove it"
            )


def _read_index(folder: Path, found: WeightFiles) -> None:
    if not (is_regular(folder / INDEX) and stays_inside(folder, folder / INDEX)):
        found.problems.append(f"{INDEX} is no file of this folder")
        return
    try:
        weight_map = read_object(folder / INDEX, CheckpointError).get("weight_map")
    except CheckpointError as error:
        found.problems.append(str(error))
        return
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(n, str) for n in weight_map.values()):
        found.problems.append(f"{INDEX} has no weight_map of tensor names to file names")
        return
    found.index = weight_map
    for name in sorted(set(weight_map.values())):
        _add(folder, name, found)


def _add(folder: Path, name: str, found: WeightFiles) -> None:
    if "/" in name or "\\" in name or "\0" in name or not name.endswith(".safetensors") or len(name) > 255:
        found.problems.append(f"{INDEX} names the shard {shown(name)}: expected a .safetensors file of the same folder")
    elif not is_regular(folder / name):
        found.problems.append(f"{named(name)} is no ordinary file, or missing, in {placed(folder)}")
    elif not stays_inside(folder, folder / name):
        found.problems.append(f"{named(name)} leads out of the folder through a link: refused")
    else:
        found.files.append(folder / name)
