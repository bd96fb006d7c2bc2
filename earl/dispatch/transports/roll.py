"""Who is there: every process answers at a door of its own, so that a fault is blamed on the one that has it.

A connection of the process group that breaks or stays silent only says that something is wrong somewhere: a neighbour
may be waiting for somebody else, or has given up for the same reason. So whoever is stuck asks at all doors, follows
those that wait for others to the one that they wait for, and tells all what it found before it gives up.
"""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from earl.dispatch.spread import Numbers
from earl.dispatch.transports.base import Late, Lost
from earl.errors import EarlError

NOBODY = -1
GONE, SILENT = -2, -3
"""What comes in place of an answer: it has ended or cannot be reached; it is there and says nothing."""
_KINDS: dict[str, type[EarlError]] = {"Lost": Lost, "Late": Late}
_LINE_BYTES = 4096


class Register(Protocol):
    """Where processes find each other's addresses: a store of torch.distributed."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read; waits until it is written."""


class Roll:
    """One process among all others."""

    def __init__(self, register: Register, process: int, hosts: Numbers, address: str, seconds: float) -> None:
        """Open the door. `address` is this process's own, `seconds` how long an answer may take.

        Raises:
            Late: when another has not opened its own within the register's time.
        """
        self.waits_for = NOBODY
        """Who has to do something before this process goes on."""
        self._process, self._hosts, self._seconds = process, hosts, seconds
        self._told: EarlError | None = None
        self._door = socket.create_server((address, 0), backlog=len(hosts))
        register.set(f"door-{process}", json.dumps(self._door.getsockname()[:2]))
        self._doors = [self._door_of(register, other) for other in range(len(hosts))]
        threading.Thread(target=self._answer, daemon=True).start()

    def close(self) -> None:
        """Shut the door."""
        self._door.close()

    def _door_of(self, register: Register, other: int) -> tuple[str, int]:
        try:
            address, port = json.loads(register.get(f"door-{other}"))
        except RuntimeError as error:
            raise Late(f"{self._names([other])} has not come: it did not start, or cannot reach the others") from error
        return address, port

    def blame(self, other: int, waited_seconds: float) -> EarlError:
        """What is wrong, when a message from or to another process did not get through. All others are told."""
        if self._told is None:
            with ThreadPoolExecutor(min(32, len(self._hosts))) as pool:
                answers = dict(enumerate(pool.map(self._ask, range(len(self._hosts)))))
            found = self._found(answers, other, waited_seconds)
            self._told = self._told or found
            line = json.dumps([type(self._told).__name__, str(self._told)])
            with ThreadPoolExecutor(min(32, len(self._hosts))) as pool:
                list(pool.map(lambda process: self._ask(process, line), range(len(self._hosts))))
        return self._told

    def _found(self, answers: dict[int, int], other: int, waited_seconds: float) -> EarlError:
        gone = [process for process, answer in answers.items() if answer == GONE]
        silent = [process for process, answer in answers.items() if answer == SILENT]
        if gone:
            return Lost(f"{self._names(gone)} ended or cannot be reached; what was exchanged is thrown away: repeat it")
        if silent:
            return Late(
                f"{self._names(silent)} did not do its part within {waited_seconds:g} s and does not answer: it is "
                "stopped, or its host is; end it and repeat the exchange"
            )
        late = self._names([_last(answers, other)])
        return Late(
            f"{late} did not do its part within {waited_seconds:g} s; it answers, so that its link is slow or it is "
            "busy: wait longer, or see what it does"
        )

    def _names(self, processes: list[int]) -> str:
        return ", ".join(f"process {process} (host {self._hosts[process]})" for process in processes)

    def _ask(self, other: int, line: str = "") -> int:
        """Whom another process waits for; `line` is what it is told."""
        try:
            with socket.create_connection(self._doors[other], self._seconds) as connection:
                connection.sendall(line.encode()[: _LINE_BYTES - 1] + b"\n")
                try:
                    return int(connection.makefile().readline() or GONE)
                except TimeoutError:
                    return SILENT
        except OSError:
            return GONE

    def _answer(self) -> None:
        """Open to whoever comes, until the door is shut."""
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(self._seconds)
                    said = connection.makefile().readline(_LINE_BYTES).strip()
                    connection.sendall(f"{self.waits_for}\n".encode())
                except OSError:
                    continue  # it has gone
            if said and self._told is None:
                kind, message = json.loads(said)
                self._told = _KINDS[kind](message)


def _last(answers: dict[int, int], first: int) -> int:
    """The one at the end of a line of processes that wait for each other; the first when they wait in a circle."""
    seen, last = {first}, first
    while answers[last] != NOBODY:
        last = answers[last]
        if last in seen:
            return first
        seen.add(last)
    return last
