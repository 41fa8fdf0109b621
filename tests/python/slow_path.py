"""A path to a server that is slow, or loses what it answers."""

import contextlib
import socket
import threading
import time


class SlowPath:
    """Listens on a port of its own and brings what comes to the server's:
    rate bytes a second (None: as fast as they come); with lossy the server
    hears everything and its answers are lost."""

    def __init__(self, port):
        self.to = port
        self.rate = None
        self.lossy = False
        self.lost = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.over = False
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.over = True
        self.listener.close()

    def _listen(self):
        while not self.over:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                continue
            for a, b, up in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._bring, args=(a, b, up), daemon=True
                ).start()

    def _bring(self, a, b, up):
        with contextlib.suppress(OSError):
            while some := a.recv(1000 if self.rate else 65536):
                if up and self.rate:
                    time.sleep(len(some) / self.rate)
                if not up and self.lossy:
                    self.lost += 1
                    break
                b.sendall(some)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
