"""Every kind of valid config, small."""

from hypothesis import strategies as st

from dflash2_core.config import DrafterConfig
from tests.core.toys import drafter_config

SCALINGS: list[dict[str, object]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 512, "truncate": False, "beta_fast": 16.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
]


@st.composite
def configs(draw: st.DrawFn) -> DrafterConfig:
    """Configs of both versions, with all that a layout may have to say."""
    layers = draw(st.integers(1, 3))
    num_target_layers = draw(st.one_of(st.none(), st.integers(6, 40)))
    last = (num_target_layers or 40) - 2
    slides = draw(st.sampled_from(["none", "all", "first"]))
    window = draw(st.integers(1, 5000))
    windows = tuple(window if slides == "all" or (slides == "first" and i == 0) else None for i in range(layers))
    uniform = draw(st.booleans())
    flag = draw(st.booleans())
    version = draw(st.sampled_from([1, 2]))
    group = draw(st.sampled_from([1, 2, 4, 8, 16]))
    parts = {
        "conv_kernel_size": draw(st.integers(1, 5)),
        "conv_group_size": group,
        "selector_rank": draw(st.integers(1, 9)),
        "selector_top_k": draw(st.integers(1, 37)),
    }
    scales = {
        "output_multiplier": draw(st.sampled_from([1.0, 1.0, 0.25])),
        "input_embedding_scale": draw(st.sampled_from([1.0, 1.0, 4.0])),
        "final_logit_softcapping": draw(st.sampled_from([None, None, 20.0, 1.0])),
    }
    taps = draw(st.lists(st.integers(0, last), min_size=1, max_size=5, unique=True))
    return drafter_config(
        version=version,
        block_size=draw(st.integers(2, 17)),
        num_hidden_layers=layers,
        layer_windows=windows,
        layer_causal=(flag,) * layers if uniform else tuple(w is not None for w in windows),
        target_layer_ids=tuple(taps),
        num_target_layers=num_target_layers,
        rope_parameters=draw(st.sampled_from(SCALINGS)) | {"rope_theta": draw(st.sampled_from([1e4, 5e5, 1e7]))},
        rms_norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
        eos_token_ids=tuple(draw(st.lists(st.integers(0, 30), max_size=2, unique=True))),
        pad_token_id=draw(st.one_of(st.none(), st.integers(0, 30))),
        **(parts if version == 2 else {}),
        **scales,
    )
