"""Server-sent events, from byte templates made once per request; only the text is encoded anew."""

from __future__ import annotations

import msgspec

from outrider.gateway.generation import Delta
from outrider.gateway.prepare import Job
from outrider.gateway.replies import Header, Output, speculation
from outrider.serving import Failure

__all__ = ["DONE", "Frames", "error_frame", "json_text"]

DONE = b"data: [DONE]\n\n"

_BREAKS = (
    ("\x85".encode(), b"\\u0085"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)

_encode = msgspec.json.encode


class Frames:
    """Makes the frames of one stream.

    A chat's role comes with the first delta of its choice. With `include_usage` a last chunk
    without choices carries the usage. The last chunk before `[DONE]` carries `speculation`.

    Args:
        job: the request.
        start: identity of the response.
        output: what was said so far; the frames count what they are given into it.
    """

    def __init__(self, job: Job, start: Header, output: Output) -> None:
        self._job = job
        self._output = output
        self._unfinished = len(job.choices)
        self._begun: set[int] = set()
        self._open = b"data: " + _encode(start)[:-1] + b',"choices":['
        before, after = (b',"delta":{', b"}") if job.chat else (b",", b"")
        self._before_text = [
            self._open + b'{"index":%d' % index + before for index in range(len(job.choices))
        ]
        self._after_text = after + b',"logprobs":null,"finish_reason":'
        self._before_logprobs = after + b',"logprobs":'
        null_usage = job.include_usage and not job.continuous_usage
        self._no_usage = b',"usage":null' if null_usage else b""

    def frame(self, delta: Delta) -> bytes:
        """The bytes of one delta; none if it adds nothing that the client could see."""
        job = self._job
        self._output.add(delta)
        first = delta.index not in self._begun
        ids = job.return_token_ids and bool(delta.token_ids)
        if not (delta.text or first or ids or delta.logprobs or delta.finish_reason):
            return b""
        self._begun.add(delta.index)
        parts = [self._before_text[delta.index]]
        if job.chat:
            parts.append(b'"role":"assistant","content":' if first else b'"content":')
        else:
            parts.append(b'"text":')
        parts.append(json_text(delta.text))
        if job.logprobs is not None and delta.logprobs:
            logprobs = job.logprobs.write(delta.logprobs, delta.offsets)
            parts += (self._before_logprobs, _one_line(_encode(logprobs)), b',"finish_reason":')
        else:
            parts.append(self._after_text)
        reason = delta.finish_reason
        parts.append(b"null" if reason is None else b'"%b"' % reason.encode())
        if job.return_token_ids:
            parts.append(b',"token_ids":' + _encode(delta.token_ids))
            if first and not job.chat:
                parts.append(b',"prompt_token_ids":' + _encode(job.prompt_of(delta.index)))
        parts.append(b"}]")
        if first and job.chat and job.return_token_ids and len(self._begun) == 1:
            parts.append(b',"prompt_token_ids":' + _encode(job.prompts[0]))
        parts.append(self._usage() if job.continuous_usage else self._no_usage)
        if reason is not None:
            self._unfinished -= 1
            if self._unfinished == 0 and not job.include_usage:
                parts.append(self._speculation())
        parts.append(b"}\n\n")
        return b"".join(parts)

    def end(self) -> bytes:
        """What follows the last delta."""
        if not self._job.include_usage:
            return DONE
        return b"".join((self._open, b"]", self._usage(), self._speculation(), b"}\n\n", DONE))

    def _usage(self) -> bytes:
        return b',"usage":' + _encode(self._output.usage)

    def _speculation(self) -> bytes:
        return b',"speculation":' + _encode(speculation(self._job, self._output))


def error_frame(failure: Failure) -> bytes:
    """The event that ends a stream which failed after its headers were sent."""
    return b"data: " + failure.body() + b"\n\n"


def json_text(text: str) -> bytes:
    """A text as JSON that also clients which split lines at Unicode's line breaks read whole."""
    return _one_line(_encode(text))


def _one_line(encoded: bytes) -> bytes:
    if not encoded.isascii():
        for raw, escaped in _BREAKS:
            encoded = encoded.replace(raw, escaped)
    return encoded
