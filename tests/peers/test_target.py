"""Hidden states and logits of our target against transformers, both in fp32 (label peers)."""

import os
import subprocess
import unittest

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.peers.exactness import exactness_row, packages
from tests.tools.fixture import SMOL, FolderTest

DUMP = os.path.join(os.path.dirname(os.environ.get("DFLASH_BIN", "build/dflash")), "tests/peers_target_dump")
TEXTS = [
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n" * 3,
    "The sky is blue because air scatters short waves more than long ones; 1234567890 photons can't be wrong.",
]


def error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


class Target(FolderTest):
    def test_taps_and_logits_equal_those_of_transformers(self):
        self.assertTrue(os.path.exists(DUMP), "build the target peers_target_dump first: tests/peers/run does")
        tokenizer = transformers.AutoTokenizer.from_pretrained(SMOL)
        documents = [tokenizer(text)["input_ids"] for text in TEXTS]
        offsets = torch.tensor([0] + [len(d) for d in documents]).cumsum(0).int()
        save_file({"input_ids": torch.tensor(sum(documents, []), dtype=torch.int32), "doc_offsets": offsets}, self.path("in"))
        subprocess.run([DUMP, SMOL, self.path("in"), self.path("out")], check=True)
        found = load_file(self.path("out"))
        model = transformers.AutoModelForCausalLM.from_pretrained(SMOL, dtype=torch.float32).eval()
        last = {}
        model.model.layers[-1].register_forward_hook(
            lambda module, args, out: last.__setitem__("raw", out[0] if isinstance(out, tuple) else out)
        )
        layers, states, logits = model.config.num_hidden_layers, [], []
        with torch.inference_mode():
            for ids in documents:
                out = model(torch.tensor([ids]), output_hidden_states=True)
                # the library's own last hidden state is after the final norm
                states.append([*(h[0] for h in out.hidden_states[1:layers]), last["raw"].reshape(len(ids), -1)])
                logits.append(out.logits[0])
        worst = largest = 0.0
        for layer in range(layers):
            expected = torch.cat([document[layer] for document in states])
            # The first token's residual is 789 in layer 2 and 106 in layer 10: what cancels leaves its rounding behind, so the largest value so far counts.
            largest = max(largest, expected.abs().max().item())
            worst = max(worst, (found[f"tap.{layer}"] - expected).abs().max().item() / largest)
            # the first token's huge values hide the others
            first = torch.zeros(len(expected), dtype=torch.bool)
            first[offsets[:-1].long()] = True
            self.assertLess(error(found[f"tap.{layer}"][~first], expected[~first]), 1e-4, f"layer {layer}")
        of_logits = error(found["logits"], torch.cat(logits))
        exactness_row("SmolLM2-135M: all layers (of the largest value so far)", packages("transformers"), worst, 1e-5)
        exactness_row("SmolLM2-135M: logits", packages("transformers"), of_logits, 1e-5)
        self.assertLess(worst, 1e-5)
        self.assertLess(of_logits, 1e-5)


if __name__ == "__main__":
    unittest.main()
