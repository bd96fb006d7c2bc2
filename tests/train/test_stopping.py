"""A stop requested by a signal, in this process."""

import os
import signal
import threading

from earl.stopping import stopping_on_signals


class Prints:
    """An observer that writes to the stream that the main thread writes to as well."""

    def __init__(self, descriptor: int) -> None:
        self.stream = os.fdopen(descriptor, "wb")

    def step(self, *_: object) -> None:
        pass

    def event(self, *_: object) -> None:
        pass

    def stopping(self) -> None:
        self.stream.write(b"stopping")
        self.stream.flush()


def test_a_signal_that_interrupts_a_print_is_no_fault() -> None:
    reading, writing = os.pipe()
    observer, read = Prints(writing), bytearray()

    def signal_and_read() -> None:
        while len(read) < 10:  # the pipe is full long before: the main thread waits in its write
            read.extend(os.read(reading, 10))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        while not read.endswith(b"stopping"):
            read.extend(os.read(reading, 1 << 16))

    reader = threading.Thread(target=signal_and_read)
    with stopping_on_signals(observer) as stop:
        reader.start()
        observer.stream.write(b"." * (1 << 20))
        observer.stream.flush()
        reader.join(60)
    assert stop.raised
    assert not reader.is_alive()
    observer.stream.close()
    os.close(reading)
