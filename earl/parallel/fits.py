"""Whether what a stage needs finds room, with a margin, said in words."""

from dataclasses import dataclass

MARGIN = 0.03
"""Of the room, left free: predictions may be short by so much, as `earl bench footprint` shows."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one stage on one device.

    Example:
        fits(83 << 30, 80 << 30).words   # 83.0 GiB needed, 77.6 GiB of 80.0 GiB may be used: 5.4 GiB too much
    """

    needed_bytes: int
    room_bytes: int
    margin: float

    @property
    def usable_bytes(self) -> int:
        """The room without the margin."""
        return int(self.room_bytes * (1 - self.margin))

    @property
    def spare_bytes(self) -> int:
        """What is left; below zero: what is missing."""
        return self.usable_bytes - self.needed_bytes

    @property
    def ok(self) -> bool:
        """Whether it fits."""
        return self.spare_bytes >= 0

    @property
    def words(self) -> str:
        """The same for people."""
        needed, usable, room = (
            f"{size / GIB:.1f} GiB" for size in (self.needed_bytes, self.usable_bytes, self.room_bytes)
        )
        left = f"{abs(self.spare_bytes) / GIB:.1f} GiB {'to spare' if self.ok else 'too much'}"
        return f"{needed} needed, {usable} of {room} may be used: {left}"


def fits(needed_bytes: int, room_bytes: int, margin: float = MARGIN) -> Verdict:
    """Whether `needed_bytes`, such as a peak with the longest episode expected, fit into a device's memory."""
    return Verdict(needed_bytes, room_bytes, margin)
