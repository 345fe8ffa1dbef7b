"""Small models with known habits: a random target, random drafters, and drafters that know (or never know) the answer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash2_core.config import DrafterConfig
from dflash2_core.drafter import Drafter, DrafterContext
from dflash2_core.proposal import Proposal
from dflash2_core.transformers_engine import Target

VOCABULARY = 37  # a prime, so that padding errors show
MASK, EOS, PAD = 36, 35, 34


def drafter_config(**changes: object) -> DrafterConfig:
    """A DFlash 2 drafter for the toy target, with some fields changed."""
    fields: dict[str, object] = {
        "version": 2,
        "block_size": 8,
        "target_layer_ids": (0, 2, 4),
        "mask_token_id": MASK,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "target_hidden_size": 16,
        "num_target_layers": 6,
        "conv_kernel_size": 2,
        "conv_group_size": 4,
        "selector_rank": 7,
        "selector_top_k": 5,
    } | changes
    layers = int(fields["num_hidden_layers"])  # type: ignore[call-overload]
    fields.setdefault("layer_windows", (None,) * layers)
    fields.setdefault("layer_causal", (False,) * layers)
    if fields["version"] == 1:
        fields |= dict.fromkeys(("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"))
    return DrafterConfig(**fields)  # type: ignore[arg-type]


def randomise(model: nn.Module, seed: int, scale: float = 0.2) -> None:
    """Every weight its own random value: norms too, so that no two layers can be taken for each other."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.copy_(1 + scale * noise if parameter.ndim == 1 else scale * noise)


def random_drafter(seed: int = 0, **changes: object) -> Drafter:
    drafter = Drafter(drafter_config(**changes))
    randomise(drafter, seed)
    return drafter.requires_grad_(False).eval()


def toy_model(seed: int = 0, **changes: object) -> Qwen3ForCausalLM:
    """6 layers, width 16, 37 ids, float32, random: its greedy text wanders instead of repeating one id."""
    config = Qwen3Config(
        **{  # type: ignore[arg-type]
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 6,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
            "bos_token_id": None,
        }
        | changes
    )
    model = Qwen3ForCausalLM(config).eval()
    randomise(model, seed, scale=0.6)
    return model


def toy_target(seed: int = 0, **changes: object) -> Target:
    return Target(toy_model(seed, **changes))


class ScriptedDrafter(Drafter):
    """Drafts what it is told to, whatever the features say. `script` maps an absolute position to the id to draft there."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        randomise(self, 0)
        self.requires_grad_(False)
        self.script: dict[int, int] = {}

    def propose(self, context: DrafterContext, anchors: Tensor, lengths: Sequence[int], **_: object) -> Proposal:  # type: ignore[override]
        start, (length,) = context.lengths[0] + 1, lengths
        tokens = [self.script.get(start + k, 0) for k in range(length)]
        return Proposal(tokens=torch.tensor([tokens]), lengths=torch.tensor([length]))


def oracle(prompt: Sequence[int], text: Sequence[int], **changes: object) -> ScriptedDrafter:
    """Knows the target's greedy text and drafts it."""
    drafter = ScriptedDrafter(drafter_config(**changes))
    drafter.script = {len(prompt) + i: token for i, token in enumerate(text)}
    return drafter


def always_wrong(prompt: Sequence[int], text: Sequence[int], **changes: object) -> ScriptedDrafter:
    """Knows the target's greedy text and drafts another id at every place."""
    drafter = ScriptedDrafter(drafter_config(**changes))
    drafter.script = {len(prompt) + i: (token + 1) % VOCABULARY for i, token in enumerate(text)}
    return drafter
