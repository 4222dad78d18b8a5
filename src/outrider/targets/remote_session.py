"""What a gateway keeps of a session at a target server: the opening, and rounds not yet ended.

Whatever a server says of a session is checked here, before anybody believes it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.errors import OutriderError, StaleRound, TargetFailed
from outrider.rpc import target_inference_pb2 as pb
from outrider.targets.base import Opened, OpenRequest
from outrider.targets.wire import decode_error, decode_verification, encode_advance
from outrider.types import Draft, FinishReason, TargetInfo, Verification

__all__ = ["RemoteRound", "RemoteSession"]


class RemoteRound:
    """One `Advance`, and its answers in order. No more of them are kept than were asked for.

    Args:
        request: what the session was opened with.
        info: of the target.
        message: what is asked.
        most_drafted: longest draft that the first answer may judge.
    """

    def __init__(
        self, request: OpenRequest, info: TargetInfo, message: pb.Advance, most_drafted: int
    ) -> None:
        self.message = message
        self.over = False
        self._request = request
        self._vocab_size = info.vocab_size
        self._position = message.position
        near = request.near_draft
        alone = 0 if near is None else min(near.max_lookahead, info.capabilities.max_draft_tokens)
        # A draft beside the target may be judged in any step, but not beyond what was asked for.
        self._most_drafted = max(most_drafted, alone)
        self._most_drafted_alone = alone
        self._tokens_left = most_drafted + 1 + message.run
        self._answers_left = message.run + 1
        self._queue: asyncio.Queue[Verification | OutriderError | None] = asyncio.Queue()

    async def get(self) -> Verification | None:
        """The next answer; None behind the last one.

        Raises:
            OutriderError: what the server told instead.
        """
        answer = await self._queue.get()
        if isinstance(answer, OutriderError):
            raise answer
        return answer

    def take(self, message: pb.Verified) -> None:
        """Queue an answer. One that was queued before, since it was asked for again, is dropped.

        Raises:
            TargetFailed: no target answers so.
        """
        count = len(message.token_ids)
        if self.over or 0 < message.position + count <= self._position:
            return
        self._check(message, count)
        answer = decode_verification(message)
        self._check_finish(answer)
        self._position += count
        self._tokens_left -= count
        self._answers_left -= 1
        self._most_drafted = self._most_drafted_alone
        self._queue.put_nowait(answer)
        alone = self._request.near_draft is None
        if answer.finish_reason or not self._tokens_left or (alone and not self._answers_left):
            # What still tells the end need not be waited for.
            self.end(None)

    def end(self, error: OutriderError | None) -> None:
        """Nothing more comes. Doing so again changes nothing."""
        if not self.over:
            self.over = True
            self._queue.put_nowait(error)

    def _check(self, message: pb.Verified, count: int) -> None:
        if message.position != self._position:
            raise TargetFailed(
                f"the target server answered behind {message.position} output tokens; "
                f"{self._position} are known"
            )
        drafted, accepted = message.drafted, message.accepted
        if not (1 <= count <= accepted + 1 <= drafted + 1 <= self._most_drafted + 1):
            raise TargetFailed(
                f"the target server answered with {count} tokens, {accepted} of {drafted} drafted "
                f"ones accepted, where at most {self._most_drafted} were drafted"
            )
        if count > self._tokens_left:
            raise TargetFailed(
                f"the target server answered with {count} tokens where {self._tokens_left} were "
                "left to answer"
            )
        if (highest := max(message.token_ids)) >= self._vocab_size:
            raise TargetFailed(
                f"the target server answered with token id {highest}; ids of its model lie in "
                f"0..{self._vocab_size - 1}"
            )

    def _check_finish(self, answer: Verification) -> None:
        sampling = self._request.sampling
        left = sampling.max_tokens - answer.position - len(answer.token_ids)
        finish = answer.finish_reason
        if left < 0 or (left == 0 and finish is None) or (left and finish is FinishReason.LENGTH):
            raise TargetFailed(
                f"the target server answered with {len(answer.token_ids)} tokens behind "
                f"{answer.position} and finish reason {finish}; max_tokens is {sampling.max_tokens}"
            )
        entries = () if answer.logprobs is None else answer.logprobs
        if len(entries) != (0 if sampling.logprobs is None else len(answer.token_ids)):
            raise TargetFailed(
                f"the target server told {len(entries)} log probabilities of "
                f"{len(answer.token_ids)} tokens, where {sampling.logprobs} alternatives were "
                "asked for"
            )
        for entry, token_id in zip(entries, answer.token_ids, strict=False):
            known = all(other < self._vocab_size for other, _ in entry.top)
            named = entry.token_id == token_id and len(entry.top) <= (sampling.logprobs or 0)
            if not known or not named or math.isnan(entry.logprob):
                raise TargetFailed(f"the target server told log probabilities of {entry!r:.200}")


@dataclass(slots=True, eq=False)
class RemoteSession:
    """One session from its opening to its release.

    Attributes:
        request: what is opened.
        unopened: the action that opens it; None once the server holds it.
        number: its name on the wire; another one with every opening, so that nothing which is still
            on its way to an earlier one can be mistaken.
        info: of the target.
        post: sends an action, or drops it while there is no stream.
        opening: what the server says of it.
        rounds: those whose end the server has not told, the latest last. Earlier ones have the same
            number: what comes for an abandoned one must not be taken for what was asked again.
        latest: number of the latest round.
    """

    request: OpenRequest
    unopened: pb.Action | None
    number: int
    info: TargetInfo
    post: Callable[[pb.Action], None]
    opening: asyncio.Future[Opened]
    rounds: list[RemoteRound] = field(default_factory=list)
    latest: int = -1

    def ask(self, round_id: int, position: int, draft: Draft, run: int) -> RemoteRound:
        """Begin a round; an earlier one that still runs is stopped by the server.

        Raises:
            StaleRound: a later one was asked for already.
        """
        if round_id < self.latest:
            raise StaleRound(f"round {round_id} was asked for behind round {self.latest}")
        most = len(draft)
        if round_id == self.latest:
            # Recorded answers may judge the draft that was sent the first time.
            most = self.info.capabilities.max_draft_tokens
        else:
            for earlier in self.rounds:
                earlier.end(StaleRound(f"round {round_id} of the session was asked for"))
            self.rounds.clear()
            self.latest = round_id
        message = encode_advance(self.request.epoch, round_id, position, draft, run)
        asked = RemoteRound(self.request, self.info, message, most)
        self.rounds.append(asked)
        self.post(pb.Action(session=self.number, advance=message))
        return asked

    def ask_again(self) -> None:
        """Over another stream: what is not answered yet."""
        if self.unopened is not None and not self.opening.done():
            self.post(self.unopened)
        # The server tells the end of each asking once, and those on the old stream are gone.
        self.rounds = [asked for asked in self.rounds[-1:] if not asked.over]
        for asked in self.rounds:
            self.post(pb.Action(session=self.number, advance=asked.message))

    def abandon(self, asked: RemoteRound, error: OutriderError | None = None) -> None:
        """Stop a round: nobody waits for it any more, or what came of it is no answer."""
        if not asked.over:
            asked.end(error)
            cancel = pb.Cancel(round_id=asked.message.round_id)
            self.post(pb.Action(session=self.number, cancel=cancel))

    def opened(self, message: pb.Opened) -> None:
        if self.opening.done():
            return
        prompt = len(self.request.prompt_ids)
        if message.epoch != self.request.epoch or message.cached_tokens > prompt:
            self.fail(
                TargetFailed(
                    f"the target server opened epoch {message.epoch} with {message.cached_tokens} "
                    f"tokens cached; asked for was epoch {self.request.epoch}, with {prompt} tokens"
                )
            )
            return
        self.unopened = None
        self.opening.set_result(Opened(cached_tokens=message.cached_tokens))

    def verified(self, message: pb.Verified) -> None:
        for asked in self.rounds:
            if asked.message.round_id == message.round_id:
                try:
                    asked.take(message)
                except OutriderError as error:
                    self.abandon(asked, error)
                return

    def ended(self, round_id: int, error: OutriderError | None = None) -> None:
        """The server tells no more of the first asking of this round."""
        for index, asked in enumerate(self.rounds):
            if asked.message.round_id == round_id:
                asked.end(error)
                del self.rounds[index]
                return

    def failed(self, message: pb.Failed) -> None:
        if message.HasField("round_id"):
            self.ended(message.round_id, decode_error(message))
        elif not self.opening.done():
            self.fail(decode_error(message))

    def fail(self, error: OutriderError) -> None:
        """All that is waited for fails."""
        if not self.opening.done():
            self.opening.set_exception(error)
            # Whoever waited may be gone, and is not told then.
            self.opening.exception()
        for asked in self.rounds:
            asked.end(error)
