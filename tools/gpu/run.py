"""What a GPU is asked, without anybody there: build, tests, training against the CPU, the quickstart's path, speed, sanitizers, one report.

Parts run one at a time or all together; the state folder carries results from call to call, and the report covers all of them.
"""

import json
import math
import os
import platform
import subprocess
import sys

from tools.common import parser
from tools.gpu import model
from tools.gpu.stages import NO_DEVICE, Runner, Stage, find_program, read_json, report, write

PARTS = ("build", "test", "train", "bench", "sanitize", "profile")
BUDGET = 560  # seconds; all parts together: 590
LIB = os.path.join("usr", "lib", "x86_64-linux-gnu")

# CPU and GPU, fp32, equal seeds: products are added in another order, which training carries on from step to step.
LOSS_BOUND = {"fp32": 2e-3, "bf16": 5e-2}  # relative, of each of the first STEPS steps
STEPS = 20


def said(*command):
    """Output of a command; empty: it is not there, or failed."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def torch_folder():
    """Of TORCH_WHEEL_DIR or of this Python; torch is not imported."""
    if os.environ.get("TORCH_WHEEL_DIR"):
        return os.environ["TORCH_WHEEL_DIR"]
    return said(sys.executable, "-c", "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")


def torch_version(folder):
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as f:
            return next((line.split("'")[1] for line in f if line.startswith("__version__")), "")
    except (OSError, IndexError):
        return ""


def machine(bundle):
    gpu = said("nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap,clocks.max.sm", "--format=csv,noheader").splitlines()
    nvcc = find_program("nvcc")
    torch = torch_folder()
    return {
        "commit": read_json(os.path.join(bundle, "manifest.json"), {}).get("commit", "?"),
        "GPU": "; ".join(gpu) or "none",
        "nvcc": said(nvcc, "--version").splitlines()[-1] if nvcc and said(nvcc, "--version") else "none",
        "torch": f"{torch_version(torch)} in {torch}" if torch else "none",
        "compiler": (said("g++", "--version").splitlines() or ["none"])[0],
        "cmake": (said("cmake", "--version").splitlines() or ["none"])[0],
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }


def architecture(facts):
    """compute_cap of the first GPU, "9.0" -> "90-real"."""
    fields = facts["GPU"].split("; ")[0].split(", ")
    return fields[3].replace(".", "") + "-real" if len(fields) > 3 else "90-real"


def nccl(torch):
    """Settings for the pip package's NCCL where the toolkit has none: its library has no name without a version."""
    folder = os.path.join(os.path.dirname(torch), "nvidia", "nccl")
    library = os.path.join(folder, "lib", "libnccl.so.2")
    if not os.path.exists(library) or os.path.exists("/usr/include/nccl.h") or os.path.exists("/usr/local/cuda/include/nccl.h"):
        return []
    return [f"-DNCCL_LIBRARY={library}", f"-DNCCL_INCLUDE_DIR={os.path.join(folder, 'include')}"]


def build_stages(state, bundle, facts):
    deps, torch = os.path.join(bundle, "deps"), torch_folder()
    build = os.path.join(state, "build")
    configure = ["cmake", "-S", os.getcwd(), "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DDFLASH_CUDA=ON",
                 f"-DTORCH_WHEEL_DIR={torch}", f"-DCMAKE_CUDA_ARCHITECTURES={architecture(facts)}", *nccl(torch)]  # fmt: skip
    environment = {}
    if os.path.isdir(deps):
        tools = os.path.join(deps, "usr", "bin")
        # Libraries find one another by the programs' RPATH. Later compilers' headers include less of one another than GCC 12's.
        configure += [
            f"-DCMAKE_PREFIX_PATH={deps}/usr", f"-DOPENSSL_ROOT_DIR={deps}/usr", f"-DSYSFMT_INCLUDE_DIR={deps}/usr/include",
            f"-DCMAKE_BUILD_RPATH={deps}/{LIB}", f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags -Wl,-rpath-link,{deps}/{LIB}",
            "-DCMAKE_CXX_FLAGS=-include cstdint -include algorithm"]  # fmt: skip
        environment = {"PKG_CONFIG_SYSROOT_DIR": deps, "PKG_CONFIG_LIBDIR": f"{deps}/{LIB}/pkgconfig:{deps}/usr/share/pkgconfig", "LD_LIBRARY_PATH": ""}
        if not find_program("ninja"):
            configure.append(f"-DCMAKE_MAKE_PROGRAM={tools}/ninja")
        if not find_program("pkg-config"):
            configure.append(f"-DPKG_CONFIG_EXECUTABLE={tools}/pkgconf")
            environment["LD_LIBRARY_PATH"] = f"{deps}/{LIB}"  # pkgconf's own
    jobs = str(facts["cores"])
    make = ["cmake", "--build", build, "-j", jobs, "--target"]
    return [
        Stage("configure", configure, 90, environment=environment),
        Stage("build kernels", [*make, "test_cuda_kernels"], 240, ("configure",)),
        Stage("build benchmark", [*make, "cuda_link_check", "bench_device_step"], 300, ("configure",)),
        Stage("build program", [*make, "dflash"], 400, ("configure",)),
        Stage("build unit tests", [*make, "test_device"], 200, ("configure",)),
    ]


def test_stages(state):
    build = os.path.join(state, "build")
    return [
        Stage("link check", [f"{build}/tests/cuda_link_check"], 60, ("build benchmark",)),
        Stage("kernel tests", ["ctest", "--test-dir", build, "-L", "gpu", "--output-on-failure", "--verbose"], 120, ("build kernels",), gpu=True),
        Stage("unit tests of device", [f"{build}/tests/test_device"], 120, ("build unit tests",)),
    ]


RUN = """\
[run]
dir = "{dir}"
seed = 1
[target]
path = "{target}"
dtype = "{dtype}"
[draft]
layers = {layers}
block_size = {block}
taps = {taps}
mask_token_id = 0
init = "random"
[data]
train = ["{shard}"]
row_tokens = {row}
anchors = {anchors}
epochs = 1000
[optim]
name = "adamw"
lr = 1e-3
steps = {steps}
[layout]
targets = ["{device}"]
drafters = ["{device}"]
"""


def write_run(folder, name, size, device, dtype, steps, row, anchors, **other):
    """A model, a shard and a run of them in folder; the configuration's path."""
    hidden, layers, *_, vocab = model.SIZES[size]
    del hidden
    target, shard = os.path.join(folder, "model-" + size), os.path.join(folder, f"train-{size}.safetensors")
    if not os.path.exists(os.path.join(target, "config.json")):
        model.write_model(target, size)
    if not os.path.exists(shard):
        model.write_documents(shard, vocab, 64, min(row, 512))
    values = {"layers": 2, "block": 8, "taps": [1, layers // 2, layers - 2], **other}
    path = os.path.join(folder, name + ".toml")
    write(path, RUN.format(dir=os.path.join(folder, name), target=target, shard=shard, device=device, dtype=dtype, steps=steps, row=row, anchors=anchors, **values))
    return path


def losses_of(folder):
    """[loss] by step."""
    losses = []
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as f:
        for line in f:
            values = json.loads(line)
            if "loss" in values and values.get("kind") != "eval":
                losses.append(values["loss"])
    return losses


def compare(one, other, bound):
    """Figures of two runs' losses; ValueError where they are further apart than bound, relative, at any step."""
    if len(one) != len(other) or not one:
        raise ValueError(f"{len(one)} and {len(other)} steps")
    apart = [abs(a - b) / max(abs(a), 1e-6) if math.isfinite(a) and math.isfinite(b) else math.inf for a, b in zip(one, other, strict=True)]
    figures = {"steps": len(one), "first": one[0], "last": one[-1], "last of the other": other[-1], "furthest apart": max(apart), "bound": bound}
    if max(apart) > bound:
        raise ValueError(f"losses differ by {max(apart):.3g} at step {apart.index(max(apart))}, more than {bound}: {one} and {other}")
    return figures


def run_figures(folder):
    here = read_json(os.path.join(folder, "summary.json"), {})
    process = here.get("this_process", {})
    keys = ("tokens_per_s", "seconds", "peak_bytes", "mfu")
    return {"status": here.get("status"), "loss": here.get("loss"), **{k: process[k] for k in keys if k in process}}


def train_stages(state, device):
    dflash = os.path.join(state, "build", "dflash")
    folder = os.path.join(state, "train")

    def prepared(unused):
        del unused
        os.makedirs(folder, exist_ok=True)
        for name, where, dtype in (("cpu-fp32", "cpu:0", "fp32"), ("gpu-fp32", device, "fp32"), ("cpu-bf16", "cpu:0", "bf16"), ("gpu-bf16", device, "bf16"), ("again", device, "bf16")):
            write_run(folder, name, "tiny", where, dtype, STEPS, 256, 16)
        write_run(folder, "quickstart", "135m", device, "auto" if device.startswith("cuda") else "fp32", 30, 2048, 64, block=4, taps=[1, 8, 14, 20, 27])
        model.write_prompts(os.path.join(folder, "prompts.safetensors"), model.SIZES["135m"][-1], 4, 16)
        return "ok", "", {}

    def train(name, limit=60):
        return Stage(f"train {name}", [dflash, "train", os.path.join(folder, name + ".toml")], limit, ("build program", "prepare training"), gpu=not name.startswith("cpu"),
                     figures=lambda log, at: run_figures(os.path.join(folder, name)))  # fmt: skip

    def compared(one, other, bound):
        return lambda unused: ("ok", "", compare(losses_of(os.path.join(folder, one)), losses_of(os.path.join(folder, other)), bound))

    drafter = os.path.join(folder, "drafter")
    return [
        Stage("prepare training", prepared, 60),
        train("cpu-fp32"),
        train("gpu-fp32"),
        Stage("fp32: GPU against CPU", compared("cpu-fp32", "gpu-fp32", LOSS_BOUND["fp32"]), 5, ("train cpu-fp32", "train gpu-fp32")),
        train("cpu-bf16"),
        train("gpu-bf16"),
        Stage("bf16: GPU against CPU", compared("cpu-bf16", "gpu-bf16", LOSS_BOUND["bf16"]), 5, ("train cpu-bf16", "train gpu-bf16")),
        train("again"),
        Stage("the same bits twice", compared("gpu-bf16", "again", 0), 5, ("train gpu-bf16", "train again")),
        train("quickstart", 120),
        Stage("quickstart: export", [dflash, "export", os.path.join(folder, "quickstart"), "--out", drafter], 60, ("train quickstart",)),
        Stage("quickstart: evaluation", [dflash, "eval", "--target", os.path.join(folder, "model-135m"), "--drafter", drafter, "--prompts",
              "own=" + os.path.join(folder, "prompts.safetensors"), "--max-new-tokens", "16", "--decode", "1"], 90, ("quickstart: export",)),
    ]  # fmt: skip


def bench_figures(log, folder):
    del folder
    for line in reversed(log.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise ValueError("the benchmark printed no figures")


def bench_stages(state, device):
    program = os.path.join(state, "build", "bench", "bench_device_step")
    stages = []
    for size in ("135m", "4b", "8b", "27b"):
        command = [program, "drafter", "--device", device, "--size", size, "--steps", "6", "--warm", "3"]
        stages.append(Stage(f"drafter step {size}", command, 90, ("build benchmark",), gpu=True, figures=bench_figures))
    command = [program, "target", "--device", device, "--model", os.path.join(state, "train", "model-135m"), "--tokens", "8192"]
    stages.append(Stage("target capture 135m", command, 60, ("build benchmark", "prepare training"), gpu=True, figures=bench_figures))
    return stages


def sanitize_stages(state):
    tests = os.path.join(state, "build", "tests", "test_cuda_kernels")
    tool = find_program("compute-sanitizer") or "compute-sanitizer"
    return [
        Stage(f"sanitizer: {kind}", [tool, "--tool", kind, "--error-exitcode", "99", tests], 140, ("build kernels",), gpu=True, tool="compute-sanitizer")
        for kind in ("memcheck", "racecheck", "synccheck", "initcheck")
    ]


def profile_stages(state):
    folder = os.path.join(state, "train")
    run = [os.path.join(state, "build", "dflash"), "train", os.path.join(folder, "quickstart.toml"), f"--run.dir={folder}/profiled", "--optim.steps=10", "--profile.interval=5"]
    nsys = [find_program("nsys") or "nsys", "profile", "--trace=cuda,nvtx,osrt", "--force-overwrite=true", "--output", os.path.join(state, "timeline")]
    bench = [os.path.join(state, "build", "bench", "bench_device_step"), "drafter", "--device", "cuda:0", "--size", "8b", "--steps", "1", "--warm", "1"]
    ncu = [find_program("ncu") or "ncu", "--clock-control", "none", "--section", "SpeedOfLight", "--launch-skip", "200", "--launch-count", "40", "--target-processes", "all"]
    return [
        Stage("timeline", nsys + run, 120, ("build program", "prepare training"), gpu=True, tool="nsys"),
        Stage("kernels by counters", ncu + bench, 150, ("build benchmark",), gpu=True, tool="ncu"),
    ]


def stages_of(part, state, bundle, facts):
    if part == "build":
        return build_stages(state, bundle, facts)
    if part == "test":
        return test_stages(state)
    if part == "train":
        return train_stages(state, "cuda:0")
    if part == "bench":
        return bench_stages(state, "cuda:0")
    return sanitize_stages(state) if part == "sanitize" else profile_stages(state)


def main():
    p = parser("gpu.run", __doc__, "The report: STATE/report.md and STATE/report.json; logs of the stages: STATE/logs.\nExit code 1: some stage failed or did not end in time.")
    p.add_argument("parts", nargs="+", choices=("all", *PARTS), help="what to do, in this order")
    p.add_argument("--state", default="gpu-state", help="folder of builds, results and the report (default: %(default)s)")
    p.add_argument("--bundle", default="", help="the unpacked bundle, for its libraries; none: those of this system")
    p.add_argument("--budget", type=float, help="seconds for all of it (default: 590 for all, else 560)")
    options = p.parse_args()
    parts = [part for part in PARTS if "all" in options.parts or part in options.parts]
    state = os.path.abspath(options.state)
    budget = options.budget or (590 if "all" in options.parts else BUDGET)
    facts = machine(options.bundle)
    for name, value in facts.items():
        print(f"{name}: {value}")
    if facts["GPU"] == "none":
        print(NO_DEVICE)
    runner = Runner(state, facts["GPU"] != "none", budget)
    good = runner.run([s for part in parts for s in stages_of(part, state, options.bundle, facts)])
    write(runner.path("report.json"), json.dumps({"machine": facts, "stages": runner.results}, indent=1) + "\n")
    write(runner.path("report.md"), report(runner.results, facts))
    print(f"report: {runner.path('report.md')}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
