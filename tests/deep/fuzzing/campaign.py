"""One RPC, asked again and again for what it should refuse and for what it should not."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from tests.deep.fuzzing.calling import Answer, call
from tests.deep.fuzzing.copy_streams import COPY, copy_streams
from tests.deep.fuzzing.database_digest import changed_parts
from tests.deep.fuzzing.faults import spoilt
from tests.deep.fuzzing.rules import require_sound_answer
from tests.deep.fuzzing.sound_requests import sound_requests
from tests.deep.fuzzing.world import World

_FAULTS = st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2, 6])
_LONGEST_SHOWN = 4_000
_BEYOND_VALIDATION = {
    grpc.StatusCode.OK,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
}


@dataclass(frozen=True)
class Target:
    """A running service, and a view of what it keeps.

    Attributes:
        make_world: returns a world of its own for each text.
        digest: returns a digest of each part of what the service keeps.
        is_ready: whether the service still serves.
        streams_are_atomic: whether a refused stream changes nothing either.
    """

    channel: grpc.Channel
    make_world: Callable[[str], World]
    digest: Callable[[], Mapping[str, object]]
    is_ready: Callable[[], bool]
    streams_are_atomic: bool = True


@dataclass(frozen=True)
class Asked:
    """The messages of one call; shown in part where they are long."""

    requests: Sequence[Message]

    def __repr__(self) -> str:
        shown = "\n".join(f"{type(each).__name__} {{\n{each}}}" for each in self.requests)
        return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


@dataclass
class Tally:
    """How the calls of one RPC ended."""

    codes: Counter[grpc.StatusCode] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.codes.total()

    @property
    def is_served(self) -> bool:
        """Return whether a sound call is: one that is not sound may be refused first."""
        unserved = self.codes[grpc.StatusCode.UNIMPLEMENTED]
        return not unserved or unserved + self.codes[grpc.StatusCode.INVALID_ARGUMENT] < self.calls

    @property
    def share_beyond_validation(self) -> float:
        """Of the calls, those that were judged by what is stored."""
        return sum(self.codes[code] for code in _BEYOND_VALIDATION) / max(self.calls, 1)

    @property
    def share_ok(self) -> float:
        return self.codes[grpc.StatusCode.OK] / max(self.calls, 1)

    def __str__(self) -> str:
        codes = ", ".join(f"{count} {code.name}" for code, count in self.codes.most_common())
        return f"{self.share_beyond_validation:.0%} beyond validation of {self.calls}: {codes}"


def fuzz(
    target: Target,
    method: MethodDescriptor,
    seed_: int,
    examples: int,
    tally: Tally | None = None,
) -> Tally:
    """Ask for `examples` things about a world of this seed's own.

    Args:
        tally: counts the calls while they are made, with those before; None for a new one.

    Raises:
        AssertionError: an answer was not what it should be; hypothesis shows the smallest request
            that it found.
    """
    world = target.make_world(f"{method.name} {seed_}")
    tally = Tally() if tally is None else tally
    codes = tally.codes

    @seed(seed_)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_requests(method, world))
    def ask(asked: Asked) -> None:
        answer = _ask(target, method, asked.requests)
        codes[answer.code] += 1
        _require_next_page(target, method, asked.requests, answer)

    ask()
    return tally


def _requests(method: MethodDescriptor, world: World) -> st.SearchStrategy[Asked]:
    @st.composite
    def request(draw: st.DrawFn) -> Message:
        made = draw(sound_requests(method.input_type, world))
        if not method.input_type.fields:
            return made  # There is nothing to spoil.
        for _ in range(draw(_FAULTS)):
            made = draw(spoilt(made, world))
        return made

    if method.input_type is COPY:
        return copy_streams(world).map(Asked)
    most = 3 if method.client_streaming else 1
    return st.lists(request(), min_size=1, max_size=most).map(Asked)


def _ask(target: Target, method: MethodDescriptor, requests: Sequence[Message]) -> Answer:
    before = target.digest()
    answer = call(target.channel, method, requests)
    note(f"{method.name} answered {answer.code.name} {answer.said}")
    require_sound_answer(requests, answer)
    if not answer.is_ok and (len(requests) == 1 or target.streams_are_atomic):
        changed = changed_parts(before, target.digest())
        assert not changed, f"{answer.code.name}, and yet there are changes in {changed}"
    return answer


def _require_next_page(
    target: Target, method: MethodDescriptor, requests: Sequence[Message], answer: Answer
) -> None:
    """A page leads to the next one."""
    token = "".join(getattr(each, "next_page_token", "") for each in answer.responses)
    if token:
        following: Any = type(requests[0])()
        following.CopyFrom(requests[0])
        following.page_token = token
        assert call(target.channel, method, [following]).is_ok, "its own token was refused"
