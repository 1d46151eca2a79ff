"""Packs one archive for a machine with a GPU and without a network: the source tree and the libraries that Debian gives it here.

That machine brings a compiler, the CUDA 13 toolkit, cmake, and a Python with torch 2.11 (its LibTorch is linked) and numpy.
"""

import glob
import io
import json
import os
import re
import subprocess
import tarfile

from tools.common import UserError, parser, run, say

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 60_000_000  # bytes of the archive
LIB = "usr/lib/x86_64-linux-gnu"

# What is built against, what that needs when it runs, and the two build tools that may be missing there. Headers and shared libraries of
# Debian 12 work under any later glibc; the versions are those of pins/apt.txt.
PACKAGES = (
    "libcaf-dev libcaf-core0.17 libcaf-io0.17 libcaf-openssl0.17 libspdlog-dev libspdlog1.10 libfmt-dev libfmt9 catch2 libtomlplusplus-dev "
    "libtomlplusplus3 libcli11-dev nlohmann-json3-dev prometheus-cpp-dev libprometheus-cpp-core1.0 libcpp-httplib-dev libcpp-httplib0.11 "
    "libhwy-dev libhwy1 libisal-dev libisal2 libssl-dev libssl3 zlib1g zlib1g-dev libbrotli1 libbrotli-dev pkgconf-bin libpkgconf3 ninja-build"
).split()
KEPT = re.compile(r"^/?(usr/include/|usr/lib/|lib/|usr/bin/(pkgconf|ninja)$|usr/share/(cmake|pkgconfig)/)")
LEFT_OUT = re.compile(r"(libcrypto|libssl|libz|libbrotli\w*-static|libhwy\w*)\.a$|libhwy_test|libprometheus-cpp-pu|/engines-3/|/ossl-modules/|/cmake/prometheus-cpp/")

# Of prometheus-cpp only its core is used; the package's own file asks for civetweb, curl and zlib.
PROMETHEUS = """\
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../../../../.." ABSOLUTE)
add_library(prometheus-cpp::core SHARED IMPORTED)
set_target_properties(prometheus-cpp::core PROPERTIES IMPORTED_LOCATION "${root}/usr/lib/x86_64-linux-gnu/libprometheus-cpp-core.so.1.0"
  INTERFACE_INCLUDE_DIRECTORIES "${root}/usr/include")
"""
RUN = """\
#!/bin/sh
# The stages of tools/gpu/run.py, in this folder; see source/docs/gpu-machine.md.
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/source" && exec python3 -B -m tools.gpu.run --bundle "$here" "$@"
"""


def output(*command):
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if result.returncode != 0:
        raise UserError(result.stderr.strip() or f"exit code {result.returncode}", " ".join(command), "bin/setup installs the packages that are needed")
    return result.stdout


def package_files(names):
    """{path in deps/: path here} of all that a build uses; links stay links."""
    files = {}
    for line in output("dpkg", "-L", *names).splitlines():
        if not KEPT.match(line) or LEFT_OUT.search(line) or (os.path.isdir(line) and not os.path.islink(line)):
            continue
        inside = line.lstrip("/")
        if inside.startswith("lib/"):
            inside = "usr/" + inside  # /lib is a link to usr/lib
        files[inside] = line
    # Two of Debian's headers of OpenSSL lie in a folder of the architecture, which only the system's compiler looks into.
    for path in glob.glob("/usr/include/x86_64-linux-gnu/openssl/*.h"):
        files["usr/include/openssl/" + os.path.basename(path)] = path
    return files


def add_text(archive, name, text, mode=0o644):
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text.encode()), mode
    archive.addfile(info, io.BytesIO(text.encode()))


def plain(info):
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def make(out, name="dflash-gpu", commit="HEAD", packages=PACKAGES, effort=6):
    """Returns bytes of the archive; effort: of xz, 0 to 9. The tree is that of the commit: what is not committed is not in it."""
    source = subprocess.run(["git", "archive", "--format=tar", commit], capture_output=True, check=False, cwd=ROOT)
    if source.returncode != 0:
        raise UserError(source.stderr.decode().strip(), f"git archive {commit}", "--commit names a commit of this repository")
    files = package_files(packages)
    facts = {
        "commit": output("git", "rev-parse", commit).strip(),
        "packages": dict(line.split() for line in output("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages).splitlines()),
    }
    temporary = out + ".tmp"
    try:
        with tarfile.open(temporary, "w:xz", preset=effort) as archive:
            with tarfile.open(fileobj=io.BytesIO(source.stdout)) as tree:
                for member in tree:
                    data = tree.extractfile(member) if member.isfile() else None
                    member.name = f"{name}/source/{member.name}"
                    member.pax_headers = {}
                    archive.addfile(plain(member), data)
            for inside, path in sorted(files.items()):
                archive.add(path, f"{name}/deps/{inside}", recursive=False, filter=plain)
            add_text(archive, f"{name}/deps/{LIB}/cmake/prometheus-cpp/prometheus-cpp-config.cmake", PROMETHEUS)
            add_text(archive, f"{name}/manifest.json", json.dumps(facts, indent=1) + "\n")
            add_text(archive, f"{name}/run", RUN, 0o755)
        size = check_size(temporary)
        os.replace(temporary, out)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return size


def check_size(path, limit=LIMIT):
    size = os.path.getsize(path)
    if size > limit:
        raise UserError(f"the bundle has {size / 1e6:.1f} MB, more than {limit / 1e6:.0f}", path, "take something out of the tree or of PACKAGES")
    return size


def main():
    p = parser("gpu.bundle", __doc__, "There: tar xf dflash-gpu.tar.xz && dflash-gpu/run all --state state")
    p.add_argument("--out", default="dflash-gpu.tar.xz", help="the archive (default: %(default)s)")
    p.add_argument("--commit", default="HEAD", help="what is packed (default: %(default)s)")
    options = p.parse_args()
    size = make(options.out, commit=options.commit)
    say(f"{options.out}: {size / 1e6:.1f} MB of {LIMIT / 1e6:.0f}")


if __name__ == "__main__":
    run(main)
