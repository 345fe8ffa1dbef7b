"""One drafter layer: attention and MLP, each between its pair of convolutions."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from dflash2_core.config import DrafterConfig
from dflash2_core.drafter.attention import Attend, DrafterAttention
from dflash2_core.drafter.convolution import GroupedDynamicConv
from dflash2_core.drafter.rotary import Rotation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu}


class GatedMLP(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        H, intermediate = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(H, intermediate, bias=False)
        self.up_proj = nn.Linear(H, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, H, bias=False)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return y


class DrafterLayer(nn.Module):
    """x += after(sublayer(before(norm(x)))), twice. DFlash 1 has the same layer without the convolutions."""

    def __init__(self, config: DrafterConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = DrafterAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMLP(config)
        self.attention_conv = _convolution(config)
        self.mlp_conv = _convolution(config)

    def keys_values(self, features: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """What this layer's attention sees of the target's features [R, T, H]: k and v [R, kv_heads, T, head_dim]."""
        return self.self_attn.keys_values(features, rotation)

    def forward(self, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """x [R, L, H], one block a row -> [R, L, H]"""
        x = x + self._attention(self.input_layernorm(x), rotation, attend)
        return x + self._mlp(self.post_attention_layernorm(x))

    def _attention(self, u: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        if self.attention_conv is None:
            o: Tensor = self.self_attn(u, rotation, self.index, attend)
            return o
        u, kernels = self.attention_conv.before(u)
        return self.attention_conv.after(self.self_attn(u, rotation, self.index, attend), kernels)

    def _mlp(self, u: Tensor) -> Tensor:
        if self.mlp_conv is None:
            o: Tensor = self.mlp(u)
            return o
        u, kernels = self.mlp_conv.before(u)
        return self.mlp_conv.after(self.mlp(u), kernels)


def _convolution(config: DrafterConfig) -> GroupedDynamicConv | None:
    if config.conv_kernel_size is None or config.conv_group_size is None:
        return None
    return GroupedDynamicConv(config.hidden_size, config.conv_kernel_size, config.conv_group_size)
