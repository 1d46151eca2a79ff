"""GGUF -> Hugging Face folder (bf16 safetensors), without torch and transformers.

Quantised blocks are dequantised in numpy and rounded to bf16 (nearest, ties to even). Llama GGUFs store the rows of q and k in
the order of interleaved rotary pairs; Hugging Face wants halves, so the order is undone here.
"""

import json
import os

import gguf
import numpy as np

from tools.common import Progress, UserError, parser, run, say, write_atomically, write_tensors

TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# How the text is split before byte-pair merging, by the name that the GGUF gives it. A wrong split gives wrong ids without a word.
PRE_TOKENIZERS = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
    "gpt-2": BYTE_LEVEL,
}
CONTROL = 3  # gguf.TokenType.CONTROL


def to_bf16(x):
    """float32 array -> bytes of bf16, rounded to nearest, ties to even."""
    if not np.isfinite(x).all():
        raise ValueError("non-finite value")
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def undo_rotary_pairs(w, heads):
    """[heads * d, K] with rows (pair, half) in each head -> rows (half, pair)."""
    rows, columns = w.shape
    return w.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


class Fields:
    def __init__(self, reader, path):
        self.reader, self.path = reader, path

    def __call__(self, key, default=...):
        field = self.reader.fields.get(key)
        if field is None:
            if default is ...:
                raise UserError(f"GGUF without key {key}", self.path)
            return default
        return field.contents()


def model_config(field, tied, vocab, head_dim):
    heads = field("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": field("tokenizer.ggml.bos_token_id", None),
        "eos_token_id": field("tokenizer.ggml.eos_token_id", None),
        "pad_token_id": field("tokenizer.ggml.padding_token_id", None),
        "dtype": "bfloat16",
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"),
        "initializer_range": 0.02,
        "intermediate_size": field("llama.feed_forward_length"),
        "max_position_embeddings": field("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": field("llama.block_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv", heads),
        # GGUF keeps float32: the shortest decimal that means the same float32 is the number that was meant
        "rms_norm_eps": float(str(np.float32(field("llama.attention.layer_norm_rms_epsilon")))),
        "rope_scaling": None,
        "rope_theta": float(str(np.float32(field("llama.rope.freq_base", 10000.0)))),
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": vocab,
    }


def tokenizer_files(field, path):
    """(tokenizer.json, tokenizer_config.json) as dicts; byte-pair vocabularies only."""
    kind, pre = field("tokenizer.ggml.model"), field("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise UserError(
            f"tokenizer {kind} with pre-splitting {pre} is not supported",
            path,
            f"supported: gpt2 with {', '.join(PRE_TOKENIZERS)}; or give the model's own files with --tokenizer FOLDER",
        )
    tokens, types, merges = (field(f"tokenizer.ggml.{k}") for k in ("tokens", "token_type", "merges"))
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise UserError("token list and types do not fit", path)
    added = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, (t, kind) in enumerate(zip(tokens, types))
        if kind == CONTROL
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [m.split(" ") for m in merges],
        },
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "add_prefix_space": False}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = field(f"tokenizer.ggml.{key}_token_id", None)
        if index is not None:
            config[f"{name}_token"] = tokens[index]
    config["model_max_length"] = field("llama.context_length")
    template = field("tokenizer.chat_template", None)
    if template:
        config["chat_template"] = template
    return tokenizer, config


def convert(path, out, tokenizer_folder=None):
    try:
        reader = gguf.GGUFReader(path)
    except OSError:
        raise
    except Exception as e:
        raise UserError(f"not a GGUF file: {e}", path) from None
    field = Fields(reader, path)
    if field("general.architecture") != "llama":
        raise UserError(f"architecture {field('general.architecture')} is not supported", path, "supported: llama")
    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv", field("llama.attention.head_count"))
    layers, hidden = field("llama.block_count"), field("llama.embedding_length")
    head_dim = field("llama.attention.key_length", hidden // heads)
    if any(k.startswith("llama.rope.scaling") for k in reader.fields) or any(t.name == "rope_freqs.weight" for t in reader.tensors):
        raise UserError("scaled rotary positions are not supported", path)

    tensors, progress = {}, Progress("tensors", len(reader.tensors))
    for done, t in enumerate(reader.tensors):
        parts = t.name.split(".")
        if t.name in TOP:
            name = TOP[t.name]
        elif len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight" and parts[2] in LAYER and int(parts[1]) < layers:
            name = f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"
        else:
            raise UserError(f"tensor {t.name} has no place in a Llama model", path)
        w = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
        if parts[-2] == "attn_q":
            w = undo_rotary_pairs(w, heads)
        elif parts[-2] == "attn_k":
            w = undo_rotary_pairs(w, kv_heads)
        try:
            tensors[name] = ("BF16", list(w.shape), to_bf16(w))
        except ValueError as e:
            raise UserError(f"tensor {t.name}: {e}", path) from None
        progress.at(done)
    expected = 2 + layers * len(LAYER)
    tied = "lm_head.weight" not in tensors
    if len(tensors) != expected + (not tied):
        raise UserError(f"{len(tensors)} tensors, expected {expected} (+ output.weight)", path)
    vocab = tensors["model.embed_tokens.weight"][1][0]

    os.makedirs(out, exist_ok=True)
    config = model_config(field, tied, vocab, head_dim)
    if tokenizer_folder:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            with open(os.path.join(tokenizer_folder, name), encoding="utf-8") as f:
                write_atomically(os.path.join(out, name), f.read())
    else:
        tokenizer, tokenizer_config = tokenizer_files(field, path)
        write_atomically(os.path.join(out, "tokenizer.json"), json.dumps(tokenizer, ensure_ascii=False, indent=1))
        write_atomically(os.path.join(out, "tokenizer_config.json"), json.dumps(tokenizer_config, ensure_ascii=False, indent=2))
    generation = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if config[k] is not None}
    write_atomically(os.path.join(out, "generation_config.json"), json.dumps(generation, indent=2))
    write_tensors(os.path.join(out, "model.safetensors"), dict(sorted(tensors.items())), {"format": "pt"})
    write_atomically(os.path.join(out, "config.json"), json.dumps(config, indent=2))
    say(f"{out}: {len(tensors)} tensors, {layers} layers, hidden {hidden}, vocabulary {vocab}, {'tied head' if tied else 'own head'}")


def main():
    p = parser(
        "import_gguf",
        "Imports a Llama-family GGUF file as a Hugging Face folder: config.json, generation_config.json, model.safetensors (bf16),\n"
        "tokenizer.json, tokenizer_config.json with the chat template.",
        "example:\n  python -m tools.import_gguf SmolLM2-135M-Instruct.Q4_1.gguf .deps/models/SmolLM2-135M-Instruct",
    )
    p.add_argument("gguf", help="the GGUF file")
    p.add_argument("out", help="folder to write (made if missing)")
    p.add_argument("--tokenizer", metavar="FOLDER", help="take tokenizer.json and tokenizer_config.json from here instead of the GGUF")
    a = p.parse_args()
    convert(a.gguf, a.out, a.tokenizer)


if __name__ == "__main__":
    run(main)
