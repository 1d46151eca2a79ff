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
from tests.peers.wide import nothing_narrow
from tests.tools.fixture import SMOL, FolderTest

DUMP = os.path.join(os.path.dirname(os.environ.get("DFLASH_BIN", "build/dflash")), "tests/peers_target_dump")
TEXTS = [
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n" * 3,
    "The sky is blue because air scatters short waves more than long ones; 1234567890 photons can't be wrong.",
]


def error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


class Target(FolderTest):
    def states_of(self, model, documents):
        """Per document the outputs of all layers, and the logits."""
        last, states, logits = {}, [], []
        hook = model.model.layers[-1].register_forward_hook(
            lambda module, args, out: last.__setitem__("raw", out[0] if isinstance(out, tuple) else out)
        )
        with torch.inference_mode():
            for ids in documents:
                out = model(torch.tensor([ids]), output_hidden_states=True)
                # the library's own last hidden state is after the final norm
                states.append([*(h[0] for h in out.hidden_states[1 : len(model.model.layers)]), last["raw"].reshape(len(ids), -1)])
                logits.append(out.logits[0])
        hook.remove()
        return states, logits

    def test_taps_and_logits_equal_those_of_transformers(self):
        self.assertTrue(os.path.exists(DUMP), "build the target peers_target_dump first: tests/peers/run does")
        tokenizer = transformers.AutoTokenizer.from_pretrained(SMOL)
        documents = [tokenizer(text)["input_ids"] for text in TEXTS]
        offsets = torch.tensor([0] + [len(d) for d in documents]).cumsum(0).int()
        save_file({"input_ids": torch.tensor(sum(documents, []), dtype=torch.int32), "doc_offsets": offsets}, self.path("in"))
        subprocess.run([DUMP, SMOL, self.path("in"), self.path("out")], check=True)
        found = load_file(self.path("out"))
        model = transformers.AutoModelForCausalLM.from_pretrained(SMOL, dtype=torch.float32).eval()
        layers = model.config.num_hidden_layers
        states, logits = self.states_of(model, documents)
        with nothing_narrow():
            exact = self.states_of(model.double(), documents)[1]
        own = error(torch.cat(logits).double(), torch.cat(exact))
        worst = 0.0
        for layer in range(layers):
            expected = torch.cat([document[layer] for document in states])
            worst = max(worst, error(found[f"tap.{layer}"], expected))
            # the first token's huge values hide the others
            first = torch.zeros(len(expected), dtype=torch.bool)
            first[offsets[:-1].long()] = True
            self.assertLess(error(found[f"tap.{layer}"][~first], expected[~first]), 1e-4, f"layer {layer}")
        self.assertLess(worst, 1e-5)
        # Behind 30 layers and the final norm the rounding of either side shows: that of transformers is measured.
        from_theirs, allowed = error(found["logits"], torch.cat(logits)), max(1e-5, 3 * own)
        from_exact = error(found["logits"].double(), torch.cat(exact))
        print(f"layers {worst:.1e}; logits from fp32 {from_theirs:.1e}, from fp64 {from_exact:.1e}; transformers' own {own:.1e}")
        exactness_row("SmolLM2-135M: all layers", packages("transformers"), worst, 1e-5)
        exactness_row("SmolLM2-135M: logits", packages("transformers"), from_theirs, allowed)
        exactness_row(f"SmolLM2-135M: logits, from fp64 (transformers' own fp32: {own:.1e})", packages("transformers") + " in fp64", from_exact, allowed)
        self.assertLess(from_theirs, allowed)
        self.assertLess(from_exact, allowed)


if __name__ == "__main__":
    unittest.main()
