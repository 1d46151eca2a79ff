"""Our drafter against z-lab's and speculators' own modules: hidden states, loss, all gradients, and ten training steps (label peers)."""

import itertools
import os
import subprocess
import unittest

try:
    import dflash.model  # noqa: F401
    import speculators  # noqa: F401
    import torch
    from safetensors.torch import load_file, save_file
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.peers import drafter_cases as d
from tests.peers.exactness import exactness_row, packages
from tests.tools.fixture import FolderTest

DUMP = os.path.join(os.path.dirname(os.environ.get("DFLASH_BIN", "build/dflash")), "tests/peers_drafter_dump")
STEPS = 10
LR, BETAS, DECAY, CLIP = 1e-3, (0.9, 0.999), 0.01, 1.0
# Gradients are sums of many products in another order.
BOUND, STEPS_BOUND = 3e-5, 1e-4


def combinations():
    """Every pair of layer kinds and causality, with the other settings going round."""
    blocks, heads, taps = itertools.cycle((4, 8, 16)), itertools.cycle(((4, 4), (4, 2), (6, 2), (4, 1), (8, 2))), itertools.cycle(range(1, 7))
    windows = itertools.cycle((2, 5, 9, 17, 100))
    rows = itertools.cycle(((24,), (13, 11, 9), (40,), (9, 8, 14, 6), (20, 20)))
    kinds = ("f", "s", "ff", "fs", "sf", "ss", "sfs", "fsf")
    for seed, (kind, causal) in enumerate(itertools.product(kinds, (None, True, False))):
        for repeat in range(2):
            nh, nkv = next(heads)
            yield d.make_case(1000 + 2 * seed + repeat, layers=len(kind), kinds=kind, causal=causal, block=next(blocks), heads=nh, kv=nkv,
                              head_dim=(8, 16)[repeat], taps=next(taps), window=next(windows) if "s" in kind else 0, documents=next(rows),
                              valid=4 + repeat)  # fmt: skip


def flat(prefix, tensors):
    return {f"{prefix}.{name}": tensor.contiguous() for name, tensor in tensors.items()}


class Drafter(FolderTest):
    def ours(self, tensors):
        self.assertTrue(os.path.exists(DUMP), "build the target peers_drafter_dump first: tests/peers/run does")
        save_file(tensors, self.path("in"))
        subprocess.run([DUMP, self.path("in"), self.path("out")], check=True)
        return load_file(self.path("out"))

    def compare(self, index, case, found, expected, who):
        b = d.shape_of(case)["block"]
        valid = case["anchor_valid"].bool()
        hidden = expected.pop("hidden").view(len(valid), b, -1)[valid, 1:]
        worst = {"hidden": d.error(found[f"case.{index}.hidden"].view(len(valid), b - 1, -1)[valid], hidden)}
        for name, tensor in expected.items():
            worst[name] = d.error(found[f"case.{index}.{name}"], tensor)
        for name, value in worst.items():
            self.assertLess(value, BOUND, f"{who}, {name}, {d.shape_of(case)}, slides {case['sliding'].tolist()}")
        return max(worst.values())

    def test_forward_and_gradients_equal_both_packages(self):
        torch.set_num_threads(1)
        cases, pool = list(combinations()), d.make_pool()
        tensors = {"pool": pool}
        for i, case in enumerate(cases):
            tensors.update(flat(f"case.{i}", case))
        found = self.ours(tensors)
        worst, both = {"z-lab": 0.0, "speculators": 0.0}, 0
        for i, case in enumerate(cases):
            values = d.numbers(case, pool)
            expected = d.results(d.zlab_module(case, values), d.zlab_hidden, case, values)
            worst["z-lab"] = max(worst["z-lab"], self.compare(i, case, found, expected, "z-lab"))
            if d.speculators_agrees(case):
                both += 1
                expected = d.results(d.speculators_module(case, values), d.speculators_hidden, case, values)
                worst["speculators"] = max(worst["speculators"], self.compare(i, case, found, expected, "speculators"))
        self.assertGreater(both, 10)
        for who, package, n in (("z-lab", "dflash", len(cases)), ("speculators", "speculators", both)):
            exactness_row(f"drafters, hidden states, loss and gradients, {n} problems", packages(package, "torch"), worst[who], BOUND)
        print(f"{len(cases)} problems, {both} of them with speculators; largest error {worst}")

    def steps(self, module, hidden_of, batches, values):
        groups = [{"params": [p for n, p in module.named_parameters() if n in values and p.ndim > 1]},
                  {"params": [p for n, p in module.named_parameters() if n in values and p.ndim == 1], "weight_decay": 0.0}]  # fmt: skip
        optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, weight_decay=DECAY)
        trained = groups[0]["params"] + groups[1]["params"]
        for step in range(STEPS):
            module.zero_grad()
            total, weight = 0.0, 0.0
            for case in batches[2 * step : 2 * step + 2]:
                loss, w = d.loss_of(case, hidden_of(module, case, values), values["head"])
                loss.backward()
                total, weight = total + loss.item(), weight + w
            for p in trained:
                p.grad.div_(weight)
            norm = torch.nn.utils.clip_grad_norm_(trained, CLIP).item()
            optimizer.step()
            yield total / weight, norm

    def test_ten_training_steps_have_the_losses_of_both_packages(self):
        torch.set_num_threads(1)
        pool = d.make_pool()
        for kinds, window, who in (("sf", 5, "z-lab"), ("fff", 0, "z-lab"), ("ff", 0, "speculators"), ("ss", 100, "speculators")):
            batches = []
            for i in range(2 * STEPS):
                case = d.make_case(500 + i, layers=len(kinds), kinds=kinds, window=window, taps=3, block=8, documents=(11 + i % 7, 17), valid=5)
                case["shape"] = (batches or [case])[0]["shape"].clone()
                batches.append(case)
            tensors = {"pool": pool, "optim": torch.tensor([LR, *BETAS, DECAY, CLIP])}
            for i, case in enumerate(batches):
                tensors.update(flat(f"batch.{i}", case))
            found = self.ours(tensors)
            values = d.numbers(batches[0], pool)
            make, hidden_of = ((d.zlab_module, d.zlab_hidden) if who == "z-lab" else (d.speculators_module, d.speculators_hidden))
            worst = 0.0
            for step, (loss, norm) in enumerate(self.steps(make(batches[0], values), hidden_of, batches, values)):
                worst = max(worst, abs(found[f"steps.loss.{step}"].item() / loss - 1))
                self.assertLess(worst, STEPS_BOUND, f"{who}, {kinds}, loss of step {step}")
                self.assertLess(abs(found[f"steps.grad_norm.{step}"].item() / norm - 1), 1e-3, f"{who}, {kinds}, norm of step {step}")
            exactness_row("losses of ten training steps (relative)", packages("dflash" if who == "z-lab" else who, "torch"), worst, STEPS_BOUND)
            print(f"ten steps, {kinds}, against {who}: largest relative error of a loss {worst:.2e}")


if __name__ == "__main__":
    unittest.main()
