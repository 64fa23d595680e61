"""The messages between a server and its clients, and the only function that reads received bytes.

All data from a network is checked against its form here, before other code sees it. The fields of a method's own
messages are trees of tensors and small values; `engines.transport.Validator` checks their forms in a round.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from fedkin import codec
from fedkin.errors import FedkinError, MethodError
from fedkin.untrusted import error_text, escaped

_PHASES = 200  # most phases, and fields in each, that a client may report
_LARGEST = 10**12  # most samples, rounds, releases

Count = Annotated[StrictInt, Field(ge=0, le=_LARGEST)]
Text = Annotated[StrictStr, Field(max_length=1 << 20)]


def _as_list(value: Any) -> Any:
    """Refuse tensors and texts, which can look like lists."""
    if not isinstance(value, (list, tuple)):
        raise ValueError("expected a list")
    return value


# Marks a field as a list.
listed = BeforeValidator(_as_list)
_Word = Annotated[StrictStr, Field(max_length=300)]
Id = Annotated[StrictStr, Field(pattern="^[0-9a-z]{1,32}$")]
Digest = Annotated[StrictStr, Field(pattern="^[0-9a-f]{0,32}$")]
_Name = Annotated[StrictStr, Field(pattern="^[A-Za-z_][A-Za-z0-9_]{0,99}$")]


class WireMessage(BaseModel):
    """A message of this module: exact types, no further fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


S = TypeVar("S", bound=WireMessage)


def read(form: type[S], data: bytes) -> S:
    """Return the message in these bytes; raises MethodError, in one line, for bytes that are not of this form."""
    try:
        return form.model_validate(codec.decode(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        words = f"{where}: {first['msg']}" if where else first["msg"]
    except FedkinError as error:
        words = error_text(error)
    except Exception as error:  # received bytes must never end a run
        words = f"{type(error).__name__}: {error_text(error)}"
    raise MethodError(f"{form.__name__.lower()} is not readable ({escaped(words, 200)})")


def tree_of(message: WireMessage) -> dict[str, Any]:
    """Return a message as a tree of the fields that were set."""
    return message.model_dump(exclude_unset=True)


def encode(message: WireMessage) -> bytes:
    """Return the bytes of a message."""
    return codec.encode(tree_of(message))


class Pointer(WireMessage):
    """The number of a client's newest order. epoch: id of the server's process. left: whether the client has left.

    withdrawn: the process of the client that must end, since the client leaves, or has left, at its own request.
    """

    epoch: Id
    number: Count
    left: StrictBool = False
    withdrawn: Annotated[StrictStr, Field(pattern="^[0-9a-z]{0,32}$")] = ""


class Order(WireMessage):
    """What a server asks of one client.

    what: to answer a phase, to score its model (`scores`), or to end. begun: the round after which the server process
    started. undone: rounds that the server has undone. last: the last round in which this client answered a phase.
    since: the round in which the client joined or came back; earlier states do not count. samples: the hash of the
    samples that count, if they may change. drifted: whether a test found the client's samples unlike those of its
    group. message: the fields of the request, or of the server's offer.
    """

    what: Literal["ask", "scores", "end"]
    round: Count = 0
    begun: Count = 0
    undone: list[Count] = Field([], max_length=100_000)
    last: Count = 0
    since: Count = 0
    samples: Digest = ""
    drifted: StrictBool = False
    phase: _Word = "evaluate"
    message: dict[str, Any] = Field(default_factory=dict)


class WorkReport(WireMessage):
    """What a client has computed in this round: samples in training and in inference, floating-point operations."""

    samples: Count = 0
    inferred: Count = 0
    flops: Annotated[StrictFloat, Field(ge=0, lt=1e30)] = 0.0


class Failed(WireMessage):
    """Why a client sends nothing: its own part failed, its budget is spent, or its reply does not fit the form."""

    words: _Word
    injected: StrictBool = False
    kind: Literal["failed", "spent", "refused"] = "failed"


class Trained(WireMessage):
    """A client's private training in this run: numbers of fits and steps, and sampling rate and noise of a step."""

    fits: Count
    steps: Count
    rate: float = Field(gt=0, le=1)
    noise: float = Field(gt=1e-6, lt=1e9)


class ReleaseReport(WireMessage):
    """What a client has released under `[privacy]`.

    signed: the share of a signature. open: fields sent without protection, by phase. trained: its private training.
    """

    releases: Count
    signed: float = Field(0.0, ge=0, le=1)
    open: dict[_Name, Annotated[list[_Name], Field(max_length=_PHASES)]] = Field({}, max_length=_PHASES)
    trained: Trained | None = None


Number = StrictFloat | StrictInt
Figures = Annotated[list[Number | None], listed, Field(max_length=10_000)]


class Scored(WireMessage):
    """The score of a client's model on its test samples: the fields of `Score` that may leave the client.

    model: the hash of the model, if the client keeps it.
    """

    n: Count
    loss: StrictFloat
    right: Count
    figures: Figures = []
    digest: Annotated[list[Figures], listed, Field(max_length=10)] = []
    further: Figures = []
    model: Digest = ""


class Answer(WireMessage):
    """A client's answer to an order: the fields of its reply, its score, or why there is neither.

    error: why the order was not carried out. number: number of the order.
    """

    number: Count
    error: StrictStr | None = None
    reply: dict[str, Any] | None = None
    score: Scored | None = None
    work: WorkReport | None = None
    failed: Failed | None = None
    spent: ReleaseReport | None = None
