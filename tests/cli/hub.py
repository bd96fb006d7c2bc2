"""A hub on loopback: the parts of Hugging Face's protocol by which a model is found and downloaded."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = hashlib.sha1(b"the only commit").hexdigest()
INFO = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/[^/?]+")
TREE = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/[^/?]+")
FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>[^?]+)")


class Hub:
    """Serves folders as models. `private` ones ask for a token; the first download of the file `cut` ends early."""

    def __init__(self, models: dict[str, Path], private: tuple[str, ...] = (), cut: str = "") -> None:
        self.models, self.private, self.cut = models, private, cut
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Hub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        self.asked.append(f"{request.command} {request.path}")
        for pattern, give in ((INFO, self._info), (TREE, self._tree), (FILE, self._file)):
            if found := pattern.fullmatch(request.path.partition("?")[0]):
                return self._of_model(request, found, give, body)
        return _say(request, 404, b"{}", body)

    def _of_model(self, request, found, give, body: bool) -> None:
        if found["repo"] in self.private:
            return _say(
                request, 401, b"{}", body, {"X-Error-Code": "GatedRepo", "X-Error-Message": "a token is needed"}
            )
        if found["repo"] not in self.models:
            return _say(request, 404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        return give(request, found, body)

    def _names(self, repo: str) -> list[str]:
        return sorted(path.name for path in self.models[repo].iterdir())

    def _info(self, request, found, body: bool) -> None:
        told = {"id": found["repo"], "modelId": found["repo"], "sha": COMMIT, "private": False, "tags": []}
        told["siblings"] = [{"rfilename": name} for name in self._names(found["repo"])]
        _say(request, 200, json.dumps(told).encode(), body)

    def _tree(self, request, found, body: bool) -> None:
        sizes = {name: (self.models[found["repo"]] / name).stat().st_size for name in self._names(found["repo"])}
        told = [{"type": "file", "path": name, "size": size, "oid": COMMIT} for name, size in sizes.items()]
        _say(request, 200, json.dumps(told).encode(), body)

    def _file(self, request, found, body: bool) -> None:
        path = self.models[found["repo"]] / found["file"]
        if not path.is_file():
            return _say(request, 404, b"", body, {"X-Error-Code": "EntryNotFound"})
        data = path.read_bytes()
        marks = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if body and self.cut == found["file"]:
            self.cut = ""
            return _say(request, 200, data, body, marks, part=len(data) // 2)
        if body and (asked := re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))):
            start = int(asked[1])
            marks["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            return _say(request, 206, data[start:], body, marks)
        return _say(request, 200, data, body, marks)


def _say(request, code, data, body, headers=None, part=None) -> None:
    request.send_response(code)
    for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    if body:
        request.wfile.write(data[:part])
    request.close_connection = part is not None
