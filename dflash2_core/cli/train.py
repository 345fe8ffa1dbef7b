"""`dflash2 train`: a drafter for any Hugging Face causal LM, from prompts alone."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dflash2_core.errors import Dflash2Error

if TYPE_CHECKING:
    from dflash2_core.training.documents import Document
    from dflash2_core.training.responses import Responses
    from dflash2_core.transformers_engine import Target

T = TypeVar("T")


def train(
    target: Annotated[Path, typer.Option(help="Folder of the target.")],
    prompts: Annotated[Path, typer.Option(help=".jsonl or .json with text, messages or token_ids; else one prompt a line.")],
    output: Annotated[Path, typer.Option(help="Folder of the run; the drafter ends up in its folder `drafter`.")],
    heldout: Annotated[Path | None, typer.Option(help="Prompts on which acceptance is measured.")] = None,
    steps: Annotated[int | None, typer.Option(help="Length of the run; this or --minutes.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Length of the run; this or --steps.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
    seed: Annotated[int, typer.Option(help="Of the responses, the first weights and the batches.")] = 0,
    version: Annotated[int, typer.Option(help="2, or 1 for DFlash 1.")] = 2,
    block_size: Annotated[int, typer.Option(help="Rows of a block, anchor included.")] = 8,
    layers: Annotated[int, typer.Option(help="Layers of the drafter.")] = 2,
    taps: Annotated[str | None, typer.Option(help="Target layers, as 0,1,2. Default: spread evenly.")] = None,
    window: Annotated[int | None, typer.Option(help="Sliding window of every layer. Default: the whole context.")] = None,
    intermediate_size: Annotated[int | None, typer.Option(help="Default: the target's.")] = None,
    selector_rank: Annotated[int, typer.Option(help="Rank of the selector's codebooks.")] = 64,
    selector_top_k: Annotated[int, typer.Option(help="Candidates a row.")] = 16,
    conv_kernel_size: Annotated[int, typer.Option(help="Taps of the convolutions.")] = 2,
    conv_group_size: Annotated[int, typer.Option(help="Channels that share a kernel.")] = 16,
    mask_token_id: Annotated[int | None, typer.Option(help="Default: the tokenizer's mask token.")] = None,
    start: Annotated[str, typer.Option(help="target: begin with copies of its last layers; random.")] = "random",
    freeze: Annotated[list[str] | None, typer.Option(help="selector, convolution: left off. May be repeated.")] = None,
    temperatures: Annotated[str, typer.Option(help="Of the responses, dealt out in turn.")] = "0,0.7,1",
    responses: Annotated[Path | None, typer.Option(help="Folder that keeps them, for other runs too. Default: OUTPUT.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Of each response.")] = 256,
    documents: Annotated[int, typer.Option(help="Documents a step.")] = 8,
    anchors: Annotated[int, typer.Option(help="Blocks drawn from each document.")] = 32,
    optimizer: Annotated[str, typer.Option(help="adamw, muon.")] = "adamw",
    learning_rate: Annotated[float, typer.Option(help="Peak rate of AdamW; Muon's follows from it.")] = 6e-4,
    loss: Annotated[
        str, typer.Option(help="tv: 0.1 CE + 0.1 CE of the selector + 0.9 TV; ce: both CEs; ce-tv: from ce to tv.")
    ] = "tv",
    teacher: Annotated[str, typer.Option(help="text: the CEs' labels are the tokens; target: its distribution.")] = "text",
    outside: Annotated[str, typer.Option(help="skip, inject: a label that is no candidate.")] = "skip",
    gamma: Annotated[float | None, typer.Option(help="Decay of the position weights. Default: by block size.")] = None,
    autocast: Annotated[bool, typer.Option("--autocast", help="bfloat16 in the drafter's forward pass.")] = False,
    keep_features: Annotated[bool, typer.Option("--keep-features", help="Keep the target's features in memory.")] = False,
    evaluate_every: Annotated[int, typer.Option(help="Steps between measurements; 0: at the end only.")] = 0,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints; 0: at the end only.")] = 200,
    dtype: Annotated[str, typer.Option(help="Of the target: auto, float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
) -> None:
    """Train a drafter: the target answers the prompts, and the drafter learns to draft its answers."""
    import torch
    import transformers

    from dflash2_core.drafter import save_drafter
    from dflash2_core.training.loop import Settings
    from dflash2_core.training.loop import train as run
    from dflash2_core.training.losses import Objective
    from dflash2_core.training.responses import Responses
    from dflash2_core.training.shape import Shape, config_for
    from dflash2_core.training.start import Part, copy_from_target, new_drafter
    from dflash2_core.training.start import freeze as keep_as_it_began
    from dflash2_core.transformers_engine import Target

    settings = Settings(
        steps=steps,
        minutes=minutes,
        documents=documents,
        anchors=anchors,
        optimizer=_one_of(optimizer, "optimizer", "adamw", "muon"),
        learning_rate=learning_rate,
        autocast=autocast,
        keep_features=keep_features,
        seed=seed,
        evaluate_every=evaluate_every,
        save_every=save_every,
        objective=Objective(
            mix=_one_of(loss, "loss", "tv", "ce", "ce-tv"),
            teacher=_one_of(teacher, "teacher", "text", "target"),
            outside=_one_of(outside, "outside", "skip", "inject"),
            gamma=gamma,
        ),
    )
    shape = Shape(
        version=version,
        block_size=block_size,
        layers=layers,
        taps=None if taps is None else _list_of(int, taps, "taps"),
        window=window,
        intermediate_size=intermediate_size,
        selector_rank=selector_rank,
        selector_top_k=selector_top_k,
        conv_kernel_size=conv_kernel_size,
        conv_group_size=conv_group_size,
        mask_token_id=mask_token_id,
    )
    answers = {"max_new_tokens": max_new_tokens, "seed": seed}
    drawn = Responses(prompts=prompts, temperatures=_list_of(float, temperatures, "temperatures"), **answers)
    parts: list[Part] = [_one_of(part, "freeze", "selector", "convolution") for part in freeze or []]
    console = Console(stderr=True)
    kept_in = responses or output
    for folder in (output, kept_in):
        _make_folder(folder)

    transformers.utils.logging.disable_progress_bar()
    model = Target.from_pretrained(target, dtype=dtype, device=device)
    drafter = new_drafter(config_for(model, shape), seed).to(model.device)
    if _one_of(start, "start", "target", "random") == "target":
        copy_from_target(drafter, model)
    keep_as_it_began(drafter, parts)
    texts = _documents(model, drawn, kept_in / "documents.safetensors", console)
    measured: list[Document] = []
    if heldout is not None:
        greedy = Responses(prompts=heldout, temperatures=(0.0,), **answers)
        measured = _documents(model, greedy, kept_in / "heldout.safetensors", console)
    num_tokens = sum(len(text.tokens) - text.prompt_length for text in texts)
    console.print(f"{drafter.config.num_parameters:,} parameters · {num_tokens:,} tokens of the target's to learn from")

    with _bar(console) as bar:
        task = bar.add_task("training", total=1.0)
        for record in run(drafter, model, texts, measured, settings, output, resume=resume):
            bar.update(task, completed=record["progress"], description=_described(record))
            if "heldout" in record:
                console.print(_measured(record))
    save_drafter(drafter.to(torch.bfloat16), output / "drafter")
    console.print(f"the drafter is in {output / 'drafter'}")


def _documents(target: "Target", responses: "Responses", kept_in: Path, console: Console) -> "list[Document]":
    from dflash2_core.training.responses import documents_for

    texts: list[Document] = []
    with _bar(console) as bar:
        task = bar.add_task("the target answers", total=1.0)
        for share in documents_for(target, responses, kept_in, texts):
            bar.update(task, completed=share)
    return texts


def _bar(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn()
    return Progress(*columns, console=console)


def _described(record: dict[str, Any]) -> str:
    parts = " · ".join(f"{name} {record[name]:.3f}" for name in ("unary", "selector", "tv") if name in record)
    return f"step {record['step']} · {parts}"


def _measured(record: dict[str, Any]) -> str:
    figures = record["heldout"]
    recall = " ".join(f"{share:.0%}" for share in figures["recall"])
    return (
        f"step {record['step']}: acceptance length {figures['acceptance_length']:.2f} "
        f"(oracle {figures['oracle_length']:.2f}) · recall {recall}"
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Dflash2Error(f"{folder} cannot be a folder to write to: {error.strerror}") from error


def _one_of(value: str, option: str, *allowed: T) -> T:
    for candidate in allowed:
        if value == candidate:
            return candidate
    raise Dflash2Error(f"--{option} is {value!r}; it must be one of {', '.join(map(str, allowed))}")


def _list_of(parse: Callable[[str], T], value: str, option: str) -> tuple[T, ...]:
    try:
        return tuple(parse(part) for part in value.split(","))
    except ValueError as error:
        raise Dflash2Error(f"--{option} is {value!r}; it must be numbers separated by commas") from error
