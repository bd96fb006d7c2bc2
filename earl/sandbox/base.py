"""How a command in a sandbox ended, and the command whose interpreter stays."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended.

    Example:
        ExecResult("exit", 0, b"4\\n", b"", 0, 0.004) of ["python", "-c", "print(2+2)"]
    """

    how: str
    """`exit` or `signal`, both with a `code`; `timeout`, `memory` or `output`: ended at that limit; `lost`: with its
    sandbox."""
    code: int
    stdout: bytes
    stderr: bytes
    cut: int  # bytes of output that were not kept
    seconds: float

    @property
    def ok(self) -> bool:
        return self.how == "exit" and self.code == 0

    @property
    def text(self) -> str:
        """Output as text, and how the command ended unless by exit 0."""
        said = (self.stdout + self.stderr).decode("utf-8", "backslashreplace").rstrip("\n")
        ends = {"exit": f"exit code {self.code}" if self.code else "", "signal": f"ended by signal {self.code}"}
        ended = ends.get(self.how, f"ended: {ENDS.get(self.how)}")
        notes = filter(None, (f"{self.cut} bytes of output were cut" if self.cut else "", ended))
        return "\n".join(filter(None, (said, *(f"[{note}]" for note in notes))))


ENDS = {
    "timeout": "it took too long",
    "memory": "it took too much memory",
    "output": "it wrote too much",
    "lost": "its sandbox ended",
}


SESSION = ("python", "-i")
"""The command whose interpreter stays, with its variables, for the next one; it runs the program that it is given."""
