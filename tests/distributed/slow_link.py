"""A slow and lossy link between two network namespaces: carries their packets by hand, since not every kernel has netem.

usage: slow_link.py PID_A ADDRESS_A PID_B ADDRESS_B --delay MS --loss SHARE --mbit RATE
The namespaces are those of two processes.
Prints "ready" once both ends are up; ends with its input."""

import argparse
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
QUEUE_BYTES = 256 << 10  # of each direction; more is dropped, as a router would


def tunnel(name, pid, address, peer):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    within = f"nsenter --net=/proc/{pid}/ns/net"
    for command in (
        f"ip link set {name} netns {pid}", f"{within} ip addr add {address} peer {peer} dev {name}", f"{within} ip link set {name} mtu 1400 up",
    ):  # fmt: skip
        subprocess.run(command.split(), check=True)
    return fd


class Direction:
    def __init__(self, to, delay, loss, bytes_per_second, seed):
        self.to, self.delay, self.loss, self.rate = to, delay, loss, bytes_per_second
        self.draw, self.free_at, self.queued, self.waiting, self.count = random.Random(seed), 0.0, 0, [], 0

    def take(self, packet, now):
        if self.draw.random() < self.loss or self.queued + len(packet) > QUEUE_BYTES:
            return
        self.free_at = max(self.free_at, now) + len(packet) / self.rate
        self.count += 1
        self.queued += len(packet)
        heapq.heappush(self.waiting, (self.free_at + self.delay, self.count, packet))

    def deliver(self, now):
        while self.waiting and self.waiting[0][0] <= now:
            packet = heapq.heappop(self.waiting)[2]
            self.queued -= len(packet)
            try:
                os.write(self.to, packet)
            except OSError:
                pass  # an end that is down loses its packets

    def next(self):
        return self.waiting[0][0] if self.waiting else float("inf")


def main():
    parser = argparse.ArgumentParser()
    for name in ("pid_a", "address_a", "pid_b", "address_b"):
        parser.add_argument(name)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--loss", type=float, default=0)
    parser.add_argument("--mbit", type=float, default=1000)
    o = parser.parse_args()
    stem = f"slow{os.getpid() % 1000000}"
    a = tunnel(stem + "a", o.pid_a, o.address_a, o.address_b)
    b = tunnel(stem + "b", o.pid_b, o.address_b, o.address_a)
    rate = o.mbit * 1e6 / 8
    ways = {a: Direction(b, o.delay / 1000, o.loss, rate, 1), b: Direction(a, o.delay / 1000, o.loss, rate, 2)}
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        wait = max(0.0, min(way.next() for way in ways.values()) - now)
        ready = select.select([a, b, sys.stdin], [], [], min(wait, 1.0))[0]
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
            return
        now = time.monotonic()
        for fd in ready:
            if fd in ways:
                for _ in range(64):
                    try:
                        ways[fd].take(os.read(fd, 65536), now)
                    except (BlockingIOError, OSError):
                        break
        for way in ways.values():
            way.deliver(time.monotonic())


if __name__ == "__main__":
    main()
