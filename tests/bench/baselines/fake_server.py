"""A server that says the prompt backwards, two tokens at a time.

python fake_server.py PORT [no-start | add-bos | refuse-odd | die-odd | silent]

A prompt whose first token is odd can be made to be refused, or to end the server.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

WAYS = sys.argv[2:]
PAUSE_S = 0.01


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._whole(200, {"data": [{"id": "fake"}]})
        else:
            self._whole(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["prompt"]
        if asked.get("temperature") != 0 or "unknown" in asked:
            self._whole(400, {"error": "not greedy, or a field unknown"})
            return
        if prompt[0] % 2 and "refuse-odd" in WAYS:
            self._whole(400, {"error": "an odd\nprompt"})
            return
        if prompt[0] % 2 and "die-odd" in WAYS:
            print("a fatal fault", file=sys.stderr, flush=True)
            os._exit(3)
        if "silent" in WAYS:
            time.sleep(60)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        openai = self.path == "/v1/completions"
        limit = asked["max_tokens" if openai else "n_predict"]
        said = prompt[::-1][:limit]
        for start in range(0, len(said), 2):
            time.sleep(PAUSE_S)
            new = said[start : start + 2]
            if openai:
                self._event({"choices": [{"text": "", "token_ids": new}]})
            else:
                done = start + len(new)
                self._event(
                    {"tokens": new, "tokens_predicted": done, "tokens_evaluated": len(prompt)}
                )
        if openai:
            read = len(prompt) + ("add-bos" in WAYS)
            usage = {"prompt_tokens": read, "completion_tokens": len(said)}
            self._event({"choices": [], "usage": usage})
            self._write(b"data: [DONE]\n\n")
        else:
            self._event({"stop": True, "tokens": [], "tokens_predicted": len(said)})
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: dict[str, Any]) -> None:
        self._write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _write(self, block: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))
        self.wfile.flush()

    def _whole(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    if "no-start" in WAYS:
        print("this processor will not do", file=sys.stderr)
        sys.exit(1)
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
