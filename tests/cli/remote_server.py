"""An HTTP server that keeps what is put below /cache, and misbehaves as it is told. Of the standard library alone."""

import http.server
import itertools
import pathlib
import socket
import ssl
import threading
import time


class RemoteServer:
    """with RemoteServer(folder) as server: server.address is "http://127.0.0.1:PORT/cache".

    With `tls`, a file that has a certificate and its key, the address is of https.
    server.manner, called with the handler and its method, answers in place of the server where it returns True."""

    def __init__(self, folder, tls=None):
        self.folder = pathlib.Path(folder)
        self.tls = tls
        self.manner = None
        self.clock_ahead = 0  # of the true time, in seconds
        self.requests = []  # (method, path)
        self.headers = []

    def __enter__(self):
        remote = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 120

            def log_message(self, *_):
                pass

            def date_time_string(self, timestamp=None):
                return super().date_time_string((time.time() if timestamp is None else timestamp) + remote.clock_ahead)

            def answer(self, status, body=b"", length=None):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def serve(self):
                length = int(self.headers.get("Content-Length", 0))
                self.body = self.rfile.read(length)
                remote.requests.append((self.command, self.path))
                remote.headers.append(dict(self.headers))
                try:
                    if remote.manner and remote.manner(self):
                        return
                    self.keep()
                except OSError:
                    self.close_connection = True  # the client has had enough

            def keep(self):
                file = remote.folder / self.path.lstrip("/")
                if self.command == "PUT":
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(self.body)
                    self.answer(201)
                elif file.is_file():
                    self.answer(200, file.read_bytes())
                else:
                    self.answer(404)

            do_GET = do_HEAD = do_PUT = serve

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.server.server_address[1]}/cache"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def files(self, kind):
        """Paths of what was put below /cache/KIND."""
        return sorted((self.folder / "cache" / kind).glob("*"))


# Manners: what a server may do to its clients.


def answers(status):
    def manner(handler):
        handler.answer(status, b"<html>an error page</html>")
        return True
    return manner


def redirects_to(address):
    def manner(handler):
        handler.send_response(302)
        handler.send_header("Location", address + handler.path)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True
    return manner


def hangs(handler):
    time.sleep(60)
    handler.close_connection = True
    return True


def lets_nobody_write(handler):
    if handler.command != "PUT":
        return False
    handler.answer(403)
    return True


def drips(handler):
    """A byte a second."""
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    for _ in range(60):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(1)
    handler.close_connection = True
    return True


def closes(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True
    return True


def promises_ten_gigabytes(handler):
    handler.answer(200, b"x" * 1000, length=10 << 30)
    handler.close_connection = True
    return True


def sends_without_end(handler):
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for _ in range(10 << 14):
        handler.wfile.write(piece)
    return True


def late(seconds, manner=None):
    """Answers after so many seconds, as it would without a manner or with this one."""
    def manner_of_late(handler):
        time.sleep(seconds)
        return bool(manner and manner(handler))
    return manner_of_late


def after(requests, manner):
    """As if it had no manner for so many requests, and then this one."""
    counted = itertools.count()

    def manner_of_after(handler):
        return next(counted) >= requests and manner(handler)
    return manner_of_after


def every(nth, manner):
    """This manner in every nth request, and none in the others."""
    counted = itertools.count(1)

    def manner_of_every(handler):
        return next(counted) % nth == 0 and manner(handler)
    return manner_of_every


def earns_and_then(requests, manner, pause=5):
    """To each process (its X-Process header) as if it had no manner for so many requests, and then this one, until the process
    leaves it alone for `pause` seconds."""
    lock = threading.Lock()
    seen = {}  # process: (requests, when the last one came)

    def manner_of_earning(handler):
        process, now = handler.headers.get("X-Process"), time.monotonic()
        with lock:
            count, last = seen.get(process, (0, now))
            count = 1 if now - last > pause else count + 1
            seen[process] = count, now
        return count > requests and manner(handler)
    return manner_of_earning


def truncates(remote):
    def manner(handler):
        file = remote.folder / handler.path.lstrip("/")
        if handler.command != "GET" or not file.is_file():
            return False
        body = file.read_bytes()
        handler.answer(200, body[:-7], length=len(body))
        handler.close_connection = True
        return True
    return manner


def changes_a_byte(remote):
    def manner(handler):
        file = remote.folder / handler.path.lstrip("/")
        if handler.command != "GET" or "/cas/" not in handler.path or not file.is_file():
            return False
        body = bytearray(file.read_bytes())
        body[len(body) // 2] ^= 1
        handler.answer(200, bytes(body))
        return True
    return manner
