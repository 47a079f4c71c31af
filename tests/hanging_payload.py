"""A standing payload that answers some questions and not others."""

from __future__ import annotations

import os
import socket
import sys
import time

from worker.sandbox import wire


def main() -> None:
    """Answer `echo` with its process; end, hang, eat memory or talk nonsense when asked to."""
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        while (frame := wire.receive(sock)) is not None:
            match frame.op:
                case "end":
                    os._exit(3)
                case "hang":
                    time.sleep(600)
                case "memory":
                    held = [b"x" * (1 << 24) for _ in range(1 << 12)]
                    del held
                case "nonsense":
                    sock.sendall(b"\xff" * 64)
            wire.send(sock, {"op": "answer", "answer": {"process": os.getpid()}})


if __name__ == "__main__":
    main()
