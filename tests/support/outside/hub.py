"""A stand-in for a Hub: the requests that huggingface_hub makes to upload files, over HTTP.

It keeps repositories in memory, and refuses what the real one refuses: another token, a repository
that does not exist, an LFS object whose bytes are not what their name says.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_standInTokenOfATest"
_LFS_FROM = 1024
"""Bytes: larger files go through LFS."""


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """What the stand-in has been sent.

    Attributes:
        requests: method and path of each, in order.
        refuse: answered to commits instead of making them.
    """

    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    refuse: str = ""


@contextmanager
def running_hub() -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_GET

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        if path.startswith("/objects/"):  # a signed URL: it needs no token, and gets none
            self._put_object(path.rpartition("/")[2], body)
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
        else:
            for pattern, method in _ROUTES:
                if found := re.fullmatch(pattern, f"{self.command} {path}"):
                    method(self, body, *found.groups())
                    return
            self._answer(404, {"error": f"the stand-in knows no {self.command} {path}"})

    def _answer(self, status: int, value: Any, code: str = "") -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(data)

    def _repository(self, name: str) -> Repository | None:
        if (found := self.hub.repositories.get(name)) is None:
            self._answer(404, {"error": "Repository not found"}, "RepoNotFound")
        return found

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] == "somebody-else":
            self._answer(403, {"error": "You don't have the rights to create a model there"})
            return
        url = f"{self.hub.url}/{name}"
        if name in self.hub.repositories:
            self._answer(409, {"error": "You already created this model repo", "url": url})
            return
        private = asked.get("visibility") == "private" or asked.get("private", False)
        self.hub.repositories[name] = Repository(private)
        self._answer(200, {"url": url})

    def information(self, body: bytes, name: str) -> None:
        if (found := self._repository(name)) is not None:
            siblings = [{"rfilename": file} for file in found.files]
            self._answer(200, {"id": name, "private": found.private, "siblings": siblings})

    def validate(self, body: bytes) -> None:
        self._answer(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        if self._repository(name) is not None:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["size"] > _LFS_FROM else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})

    def batch(self, body: bytes, name: str) -> None:
        objects = []
        for wanted in json.loads(body)["objects"]:
            upload = {"href": f"{self.hub.url}/objects/{wanted['oid']}"}
            known = wanted["oid"] in self.hub.objects
            objects.append(wanted if known else {**wanted, "actions": {"upload": upload}})
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _put_object(self, oid: str, body: bytes) -> None:
        if self.headers.get("Authorization") or hashlib.sha256(body).hexdigest() != oid:
            self._answer(403, {"error": "SignatureDoesNotMatch"})
            return
        self.hub.objects[oid] = body
        self._answer(200, {})

    def commit(self, body: bytes, name: str, revision: str) -> None:
        if (found := self._repository(name)) is None:
            return
        if self.hub.refuse:
            self._answer(403, {"error": self.hub.refuse})
            return
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                found.messages.append(value["summary"])
            elif line["key"] == "file":
                found.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                found.files[value["path"]] = self.hub.objects[value["oid"]]
        oid = f"{len(found.messages):040x}"
        url = f"{self.hub.url}/{name}/commit/{oid}"
        self._answer(200, {"success": True, "commitOid": oid, "commitUrl": url})


_ROUTES = (
    ("POST /api/repos/create", _Handler.create),
    ("POST /api/validate-yaml", _Handler.validate),
    (r"GET /api/models/([^/]+/[^/]+)", _Handler.information),
    (r"POST /api/models/([^/]+/[^/]+)/preupload/([^/]+)", _Handler.preupload),
    (r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch", _Handler.batch),
    (r"POST /api/models/([^/]+/[^/]+)/commit/([^/]+)", _Handler.commit),
)
