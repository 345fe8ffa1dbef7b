"""Keys of a config.json that this project knows but does not compute with.

Every key of a config is consumed by a layout, listed here, or refused by name: a key nobody knows may change what the
drafter means, and a drafter that is half understood drafts badly without a message.
"""

from collections.abc import Mapping, Sequence

from dflash2_core.config.reading import Reader, named, shown

WITHOUT_EFFECT = (
    # the library's bookkeeping
    *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "architectures", "model_type"),
    *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "license"),
    # the dtype the weights were saved in: each tensor says so itself
    *("dtype", "torch_dtype"),
    # training only
    *("initializer_range", "attention_dropout", "hidden_dropout", "pretraining_tp"),
    # how a Hugging Face model would be called, and its head for classification
    *("use_cache", "output_attentions", "output_hidden_states", "return_dict", "torchscript", "use_bfloat16"),
    *("chunk_size_feed_forward", "id2label", "label2id", "num_labels", "problem_type"),
    # a drafter borrows both from the target, or carries what it carries
    "tie_word_embeddings",
)

INERT = {
    # key -> the value it may have, why another one is refused
    "attention_bias": (False, "the published drafters have no bias in q, k, v and o, and none is loaded"),
    "mlp_bias": (False, "the published drafters have no bias in their MLP, and none is loaded"),
    "auto_map": ({}, "it names Python code to run from the checkpoint; remove it, no such code is needed or run"),
    "trust_remote_code": (False, "no code from a checkpoint is run"),
    "partial_rotary_factor": (1.0, "the whole head is rotated"),
    "sample_from_anchor": (False, "drafting from the anchor's own row is another convention: row 0 is not read here"),
    "is_neox_style": (True, "the rotation pairs channel i with i + head_dim / 2"),
    "add_swa_attention_sink_bias": (False, "attention sinks are not part of DFlash 1 or 2 as computed here"),
    "attention_sink_bias": (False, "attention sinks are not part of DFlash 1 or 2 as computed here"),
    "use_aux_hidden_state": (True, "the drafter reads the target's hidden states, always"),
    "quantization_config": ({}, "quantised weights are not read; convert them back to bf16, fp16 or fp32 first"),
    "compression_config": ({}, "quantised weights are not read; convert them back to bf16, fp16 or fp32 first"),
    "pruned_heads": ({}, "no head is cut out of the weights"),
    "is_encoder_decoder": (False, "a drafter has no encoder"),
    "is_decoder": (False, "a drafter is no decoder of an encoder"),
    "add_cross_attention": (False, "a drafter has no encoder"),
    "tie_encoder_decoder": (False, "a drafter has no encoder"),
}


def read_bookkeeping(reader: Reader, prefix: str, accept: Mapping[str, Sequence[object]] = {}) -> None:
    """Ask for the keys under `prefix` that change nothing; a value that would change something is a problem.

    accept  more values of a key in `INERT` that a layout is known to write without meaning anything by them
    """
    for key in WITHOUT_EFFECT:
        reader.raw(f"{prefix}{key}")
    read_inert(reader, prefix, accept)


def read_inert(reader: Reader, prefix: str, accept: Mapping[str, Sequence[object]] = {}) -> None:
    """Ask for the keys of `INERT` under `prefix`."""
    for key, (neutral, reason) in INERT.items():
        found = reader.raw(f"{prefix}{key}")
        if found is None or found in accept.get(key, ()):
            continue
        if found != neutral or isinstance(found, bool) != isinstance(neutral, bool):
            reader.problems.append(f"{prefix}{key} is {shown(found)}: not supported, since {reason}")


def refuse_unread(reader: Reader) -> None:
    """What no reader asked for is refused by name."""
    for path in reader.unread():
        reader.problems.append(
            f"{named(path)} is a key this project does not know; if it changes nothing, remove it from the config, "
            "if it does, the drafter would be run as something else"
        )
