"""A drafter's folder (z-lab's or speculators' form) -> GGUF for llama.cpp, without torch and transformers."""

import json
import os

import gguf
import numpy as np

from tools.common import UserError, parser, run, say
from tools.import_gguf import PRE_TOKENIZERS, to_bf16
from tools.safetensors_file import read_folder, to_float32

ARCHITECTURE = "dflash"  # gguf 0.19 does not list it; its plain writer takes any name
TOP = {"fc.weight": "fc.weight", "hidden_norm.weight": "enc.output_norm.weight", "norm.weight": "output_norm.weight"}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NOT_WRITTEN = ("embed_tokens.weight", "t2d", "verifier_lm_head.weight", "verifier_norm.weight")  # the target's, or derived
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # gguf.TokenType


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise UserError(f"not JSON: {e}", path) from None


class Config:
    """config.json in either form, in z-lab's numbering of taps. `dflash eval` and `dflash train` read it more strictly."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "config.json")
        top = read_json(self.path)
        inner = top.get("dflash_config") or {}
        if top.get("speculators_model_type", "dflash") != "dflash" or not (inner or "aux_hidden_state_layer_ids" in top):
            raise UserError("this is no DFlash drafter", self.path, "give a folder that `dflash export` wrote")
        for key in ("conv_kernel_size", "selector_rank", "projector_type", "markov_rank", "sample_from_anchor", "attention_sink_bias"):
            if top.get(key) or inner.get(key):
                raise UserError(f"drafters with {key} are not supported", self.path)
        if "aux_hidden_state_layer_ids" in top:
            layers, taps = self.need(top, "transformer_layer_config"), [i - 1 for i in top["aux_hidden_state_layer_ids"]]
            causal = False if top.get("sliding_window_non_causal") else None
        else:
            layers, taps = top, self.need({**top, **inner}, "target_layer_ids")
            causal = top.get("is_causal", inner.get("causal"))
        self.taps = taps
        rope = layers.get("rope_parameters") or {}
        if rope.get("rope_type", "default") != "default" or layers.get("rope_scaling"):
            raise UserError("scaled rotary positions are not supported", self.path)
        self.rope_theta = rope.get("rope_theta", layers.get("rope_theta"))
        if self.rope_theta is None:
            raise UserError("rope_theta is missing", self.path)
        self.layers = self.need(layers, "num_hidden_layers")
        self.hidden = self.need(layers, "hidden_size")
        self.intermediate = self.need(layers, "intermediate_size")
        self.heads, self.kv_heads = self.need(layers, "num_attention_heads"), self.need(layers, "num_key_value_heads")
        self.head_dim = self.need(layers, "head_dim")
        self.positions = self.need(layers, "max_position_embeddings")
        self.eps = self.need(layers, "rms_norm_eps")
        self.vocab = self.need(layers, "vocab_size")
        self.draft_vocab = top.get("draft_vocab_size", self.vocab)
        self.block_size = inner.get("block_size", top.get("block_size"))
        self.mask_token_id = inner.get("mask_token_id", top.get("mask_token_id"))
        for name in ("block_size", "mask_token_id"):
            if getattr(self, name) is None:
                raise UserError(f"{name} is missing", self.path)
        self.sliding = [t == "sliding_attention" for t in layers.get("layer_types") or ["full_attention"] * self.layers]
        self.window = layers.get("sliding_window") if any(self.sliding) else None
        self.causal = {causal if causal is not None else s for s in self.sliding}
        if len(self.causal) > 1:
            raise UserError(
                "sliding layers of this drafter are causal and full ones are not: llama.cpp knows one causality for all layers",
                self.path,
                "train with draft.causal set, or with layers of one type",
            )

    def need(self, holder, key):
        if holder.get(key) is None:
            raise UserError(f"{key} is missing", self.path, "give a folder that `dflash export` wrote")
        return holder[key]

    def shapes(self):
        """{name in the folder: (name in the GGUF, shape)}"""
        h, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = [[h], [q, h], [kv, h], [kv, h], [h, q], [self.head_dim], [self.head_dim], [h], [self.intermediate, h], [self.intermediate, h]]
        sizes.append([h, self.intermediate])
        out = {name: (to, [h, len(self.taps) * h] if name == "fc.weight" else [h]) for name, to in TOP.items()}
        for i in range(self.layers):
            for (name, to), size in zip(LAYER.items(), sizes):
                out[f"layers.{i}.{name}.weight"] = (f"blk.{i}.{to}.weight", size)
        if self.draft_vocab != self.vocab:
            out["lm_head.weight"] = ("output.weight", [self.draft_vocab, h])
        return out


def tokenizer_of_gguf(path):
    """All tokenizer keys of the target's GGUF: [(key, value, type, type of the items)]."""
    try:
        reader = gguf.GGUFReader(path)
    except OSError:
        raise
    except Exception as e:
        raise UserError(f"not a GGUF file: {e}", path) from None
    keys = []
    for name, field in reader.fields.items():
        if name.startswith("tokenizer.") and name != "tokenizer.ggml.mask_token_id":
            keys.append((name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None))
    if not any(k[0] == "tokenizer.ggml.tokens" for k in keys):
        raise UserError("the GGUF file holds no tokenizer", path, "give the target's own GGUF")
    return keys


def tokenizer_of_folder(folder, vocab):
    """The same from tokenizer.json: byte-pair vocabularies whose splitting llama.cpp knows by a name."""
    string, array, i32, u32 = (gguf.GGUFValueType[n] for n in ("STRING", "ARRAY", "INT32", "UINT32"))
    path = os.path.join(folder, "tokenizer.json")
    tokenizer, config = read_json(path), read_json(os.path.join(folder, "tokenizer_config.json"))
    model = tokenizer.get("model") or {}
    pre = next((name for name, value in PRE_TOKENIZERS.items() if value == tokenizer.get("pre_tokenizer")), None)
    if model.get("type") != "BPE" or pre is None:
        raise UserError(
            "this tokenizer's splitting has no known name in llama.cpp",
            path,
            f"known here: {', '.join(PRE_TOKENIZERS)}; give the target's GGUF as --target instead",
        )
    token_of = {i: t for t, i in model["vocab"].items()}
    kinds = dict.fromkeys(token_of, NORMAL)
    for added in tokenizer.get("added_tokens") or []:
        token_of[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    size = max(max(token_of) + 1, vocab)
    tokens = [token_of.get(i, f"[PAD{i}]") for i in range(size)]  # rows of the embedding that no token has
    keys = [
        ("tokenizer.ggml.model", "gpt2", string, None),
        ("tokenizer.ggml.pre", pre, string, None),
        ("tokenizer.ggml.tokens", tokens, array, string),
        ("tokenizer.ggml.token_type", [kinds.get(i, UNUSED) for i in range(size)], array, i32),
        ("tokenizer.ggml.merges", [m if isinstance(m, str) else " ".join(m) for m in model["merges"]], array, string),
    ]
    index = {t: i for i, t in enumerate(tokens)}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token in index:
            keys.append((f"tokenizer.ggml.{key}_token_id", index[token], u32, None))
    if isinstance(config.get("add_bos_token"), bool):
        keys.append(("tokenizer.ggml.add_bos_token", config["add_bos_token"], gguf.GGUFValueType.BOOL, None))
    if isinstance(config.get("chat_template"), str):
        keys.append(("tokenizer.chat_template", config["chat_template"], string, None))
    return keys


def draft_tokens(tensors, config, folder):
    """d2t as llama.cpp wants it: the target's ids themselves, int64."""
    dtype, shape, data = tensors.get("d2t", (None, None, None))
    if dtype != "I64" or shape != [config.draft_vocab]:
        raise UserError(f"d2t is {dtype} {shape}, expected I64 [{config.draft_vocab}]", folder)
    ids = np.ascontiguousarray(data).view("<i8") + np.arange(config.draft_vocab)
    if not (np.diff(ids) > 0).all() or ids[0] < 0 or ids[-1] >= config.vocab:
        raise UserError(f"d2t does not list rising ids of the target's {config.vocab} tokens", folder)
    return ids


def export(folder, target, out, dtype):
    config = Config(folder)
    tensors = read_folder(folder)
    shapes = config.shapes()
    known = {*shapes, *NOT_WRITTEN, "lm_head.weight", *(["d2t"] if config.draft_vocab != config.vocab else [])}
    spare = sorted(set(tensors) - known)
    if spare:
        raise UserError(f"tensor {spare[0]} has no place in a DFlash drafter", folder)
    for name, (_, shape) in shapes.items():
        found = tensors[name][1] if name in tensors else "missing"
        if found != shape:
            raise UserError(f"tensor {name} is {found}, expected {shape}", folder)
    tokenizer = tokenizer_of_folder(target, config.vocab) if os.path.isdir(target) else tokenizer_of_gguf(target)
    count = len(next(value for key, value, _, _ in tokenizer if key == "tokenizer.ggml.tokens"))
    if count != config.vocab:
        raise UserError(f"the target's tokenizer has {count} tokens, the drafter's target {config.vocab}", target, "give the drafter's own target")

    temporary = out + ".tmp"
    writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
    writer.add_type("model")
    writer.add_name(os.path.basename(os.path.abspath(folder)))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if dtype == "bf16" else gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.positions)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab)
    writer.add_uint32("dflash.block_size", config.block_size)
    writer.add_array("dflash.target_layers", [tap + 1 for tap in config.taps])  # by the layer that takes it in
    writer.add_bool("dflash.attention.causal", config.causal == {True})
    if config.window:
        writer.add_sliding_window(config.window)
        writer.add_array("dflash.attention.sliding_window_pattern", config.sliding)
    for key, value, kind, item in tokenizer:
        if value != []:  # which the format cannot hold
            writer.add_key_value(key, value, kind, item)
    writer.add_uint32("tokenizer.ggml.mask_token_id", config.mask_token_id)
    for name, (to, shape) in shapes.items():
        weights = to_float32(*tensors[name])
        if not np.isfinite(weights).all():
            raise UserError(f"tensor {name} holds values that are not finite", folder)
        if dtype == "bf16" and len(shape) == 2:  # norms are read as float32
            packed = np.frombuffer(to_bf16(weights), np.uint8).reshape(shape[0], 2 * shape[1])
            writer.add_tensor(to, packed, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(to, weights)
    if config.draft_vocab != config.vocab:
        writer.add_tensor("d2t", draft_tokens(tensors, config, folder), raw_dtype=gguf.GGMLQuantizationType.I64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(temporary, out)
    say(f"{out}: {config.layers} layers, block size {config.block_size}, {len(shapes)} tensors, {dtype}")


def main():
    p = parser(
        "export_gguf",
        "Writes a drafter as GGUF for llama.cpp (llama-server -m TARGET.gguf -md OUT.gguf --spec-type draft-dflash). Embedding and head\n"
        "are taken from the target at run time; a drafter with a draft vocabulary brings its own head.",
        "example:\n  python -m tools.export_gguf drafter --target SmolLM2-135M-Instruct.Q4_1.gguf --out drafter.gguf",
    )
    p.add_argument("drafter", help="drafter folder in z-lab's or speculators' form")
    p.add_argument("--target", required=True, metavar="GGUF|FOLDER", help="where the tokenizer comes from: the target's GGUF, or its Hugging Face folder")
    p.add_argument("--out", required=True, help="GGUF file to write")
    p.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="type of the matrices (default: bf16)")
    a = p.parse_args()
    export(a.drafter, a.target, a.out, a.dtype)


if __name__ == "__main__":
    run(main)
