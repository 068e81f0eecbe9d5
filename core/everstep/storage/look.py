"""What an agent starts to see what is in storage: as `checkpoint.tier`, but at once, without torch.

Run as `python -m everstep.storage.look FD`.
"""

from __future__ import annotations

import argparse
import socket
from dataclasses import asdict

from everstep.storage import parcel
from everstep.storage.folder import JobFolder


def main() -> None:
    """Answer the agent at the other end of a descriptor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fd", type=int, help="one end of a pair of SEQPACKET sockets")
    sock = socket.socket(fileno=parser.parse_args().fd)
    order = parcel.receive(sock)
    if order is None:
        return
    try:
        report = JobFolder(order[0]["folder"], order[0]["job"]).look("")
    except Exception as error:  # noqa: BLE001 - filesystems raise whatever they like
        parcel.send(sock, {"failed": str(error) or repr(error), "number": None})
        return
    # A packet each, as there is no limit to how many there are.
    for one in report.checkpoints:
        parcel.send(sock, {"item": {"checkpoint": asdict(one)}})
    for name, reason in report.unusable:
        parcel.send(sock, {"item": {"name": name, "reason": reason}})
    parcel.send(sock, {"done": {}})


if __name__ == "__main__":
    main()
