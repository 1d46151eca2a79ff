"""How much memory a command takes."""

import os
import subprocess
import threading


def peak_bytes(*command):
    """Runs it to its end: the most memory that it had, and what it printed. A failure raises."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    errors = []
    with process.stdout, process.stderr:
        drain = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        drain.start()
        text = process.stdout.read()
        drain.join()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command}: exit code {process.returncode}: {text}{errors}")
    return usage.ru_maxrss * 1024, text


def resident_bytes(pid):
    """Now, without pages of files; None once the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon:")), None)
    except (FileNotFoundError, ProcessLookupError):
        return None
