"""A non-blocking TLS connection that sends and receives frames.

The send buffer is bounded, and nothing is read while it is not empty: a peer that does not read its answers is not
served.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final

from cotenant.errors import PeerError
from cotenant.node.wire import Frames
from cotenant.runner.live_loop import READ, WRITE, IoLoop

UNSENT_LIMIT_BYTES: Final = 32 << 20
"""More than the orders for as many jobs as a node has GPUs: what never got through would be said again for ever."""
_RECORD_BYTES: Final = 16 << 10
"""The most that TLS puts into one piece. OpenSSL wants a piece that did not fit offered again just as it was."""
_READ_BYTES: Final = 64 << 10


class Channel:
    """Begins with the handshake; calls `opened` after it, `heard` for each frame, and `lost` at the end."""

    def __init__(
        self,
        loop: IoLoop,
        connection: ssl.SSLSocket,
        opened: Callable[[], Frames],
        heard: Callable[[bytes], None],
        lost: Callable[[OSError | PeerError], None],
        blame: Callable[[PeerError], bytes] | None = None,
    ) -> None:
        """Take over a socket that does not block; `opened` may look at the certificate, and says how frames are cut.

        If `heard` raises, the peer broke the protocol and receives the frame that `blame` makes.
        """
        self._loop = loop
        self.socket = connection
        self._opened, self._heard, self._lost, self._blame = opened, heard, lost, blame
        self._frames: Frames | None = None  # none until the handshake is done
        self._waiting: deque[bytes] = deque()  # frames that came while answers were unsent
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_closed = False
        self._is_ending = False  # nothing more is heard; it closes when all is sent and the other end has read it
        self._is_said = False  # whether the other end can see that nothing more comes
        self._needs_write = not connection.server_side  # TLS itself has something to say: who connects speaks first
        self._interest = 0
        self._watch()

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the end has not come."""
        return self._frames is not None and not self._is_closed and not self._is_ending

    def send(self, frame: bytes) -> None:
        """Send it, now or when there is room; too much that is not read ends the connection."""
        if self._is_closed or self._is_ending:
            return
        self._unsent.append(memoryview(frame))
        self._unsent_bytes += len(frame)
        if self._unsent_bytes > UNSENT_LIMIT_BYTES:
            self._end(PeerError("too much was not read"))
            return
        self._flush()

    def finish(self, frame: bytes) -> None:
        """Say a last thing and close once it is read: closing at once could take it back on its way."""
        if self._is_closed or self._is_ending:
            return
        self._unsent.append(memoryview(frame))
        self._unsent_bytes += len(frame)
        self._is_ending = True
        self._waiting.clear()
        self._flush()

    def close(self) -> None:
        """Close without a word, and without telling of it."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._interest:
            self._loop.forget(self.socket.fileno())
        self.socket.close()

    def _ready(self, mask: int) -> None:
        del mask  # TLS may have to read in order to write, so that either is tried
        if self._frames is None and not self._shake():
            return
        self._flush()
        self._deliver()  # what came while answers waited
        if not self._is_closed and not self._unsent:
            self._receive()

    def _shake(self) -> bool:
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self._need(write=False)
            return False
        except ssl.SSLWantWriteError:
            self._need(write=True)
            return False
        except OSError as error:
            self._end(error)
            return False
        self._need(write=False)
        try:
            self._frames = self._opened()
        except PeerError as error:
            self._frames = Frames()
            self._break_off(error)
        return not self._is_closed

    def _receive(self) -> None:
        try:
            data = self.socket.recv(_READ_BYTES)
        except ssl.SSLWantReadError:
            self._need(write=False)
            return
        except ssl.SSLWantWriteError:
            self._need(write=True)
            return
        except OSError as error:
            self._end(error)
            return
        if not data:
            self._end(ConnectionResetError(104, "the other end closed the connection"))
            return
        if self._is_ending:
            return
        assert self._frames is not None
        try:
            self._waiting.extend(self._frames.feed(data))
        except PeerError as error:
            self._break_off(error)
            return
        self._deliver()

    def _deliver(self) -> None:
        """One by one: a frame may end the connection, or have an answer that does not fit at once.

        Never from within `send`: a frame would then be heard in the midst of what another one led to.
        """
        while self._waiting and not self._unsent and not self._is_closed and not self._is_ending:
            try:
                self._heard(self._waiting.popleft())
            except PeerError as error:
                self._break_off(error)

    def _flush(self) -> None:
        if self._frames is None or self._is_closed:
            return
        try:
            while self._unsent:
                first = self._unsent[0]
                sent = self.socket.send(first[:_RECORD_BYTES])
                self._unsent_bytes -= sent
                if sent < len(first):
                    self._unsent[0] = first[sent:]
                else:
                    self._unsent.popleft()
        except ssl.SSLWantReadError:
            self._watch(READ)
            return
        except ssl.SSLWantWriteError:
            self._watch()
            return
        except OSError as error:
            self._end(error)
            return
        self._watch()
        if self._is_ending:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """No more from us; the other end reads to here, and closes."""
        if self._is_said:
            return
        self._is_said = True
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._end(error)

    def _break_off(self, error: PeerError) -> None:
        if self._blame is None:
            self._end(error)
        else:
            self.finish(self._blame(error))

    def _need(self, *, write: bool) -> None:
        self._needs_write = write
        self._watch()

    def _watch(self, interest: int = 0) -> None:
        if self._is_closed:
            return
        # While answers wait, what comes is left in the socket's own buffer, which pushes back; but TLS may need it.
        interest = interest or (WRITE if self._needs_write or self._unsent else READ)
        if interest != self._interest:
            self._interest = interest
            self._loop.watch(self.socket.fileno(), interest, self._ready)

    def _end(self, error: OSError | PeerError) -> None:
        if not self._is_closed:
            self.close()
            self._lost(error)
