"""What a benchmark message carries, in the 32 bytes of the paper's payload (ILDM §6.1).

    offset  0       4        8           16        20        24         32
            │ magic │ client │ t_send_ns │ message │ reserved│ run tag  │ padding to payload_bytes

Little-endian, because the load tool reads whole arrays of them with NumPy.  The tag tells messages
of one run from what is left over of another; so a delivery is complete by itself.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

__all__ = ["LAYOUT", "MAGIC", "NUMPY_FIELDS", "SIZE", "run_tag"]

MAGIC: Final = 0x31484D49  # "IMH1"
LAYOUT: Final = struct.Struct("<IIqIIQ")
"""magic, publisher, t_send_ns, message, reserved (0), run tag."""
SIZE: Final = LAYOUT.size
NUMPY_FIELDS: Final = [
    ("magic", "<u4"),
    ("publisher", "<u4"),
    ("t_send_ns", "<i8"),
    ("message", "<u4"),
    ("reserved", "<u4"),
    ("tag", "<u8"),
]
"""The same layout as a NumPy structured type."""


def run_tag(run: str) -> int:
    """64 bits that tell the messages of `run` from those of any other."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "little")
