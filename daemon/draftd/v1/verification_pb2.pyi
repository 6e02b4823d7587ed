from draftd.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("hello", "open", "step", "close", "ping")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    open: OpenSequence
    step: ProposeStep
    close: CloseSequence
    ping: Ping
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., open: _Optional[_Union[OpenSequence, _Mapping]] = ..., step: _Optional[_Union[ProposeStep, _Mapping]] = ..., close: _Optional[_Union[CloseSequence, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("welcome", "opened", "verdict", "closed", "pong")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    opened: SequenceOpened
    verdict: StepVerdict
    closed: SequenceClosed
    pong: Ping
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., opened: _Optional[_Union[SequenceOpened, _Mapping]] = ..., verdict: _Optional[_Union[StepVerdict, _Mapping]] = ..., closed: _Optional[_Union[SequenceClosed, _Mapping]] = ..., pong: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "edge", "tokenizer")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    edge: str
    tokenizer: str
    def __init__(self, protocol: _Optional[int] = ..., edge: _Optional[str] = ..., tokenizer: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "model", "model_fingerprint", "tokenizer", "context_length", "vocab_size", "max_draft_tokens", "quality", "step_seconds", "prefill_seconds", "max_sequences", "drafts")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    model: str
    model_fingerprint: str
    tokenizer: str
    context_length: int
    vocab_size: int
    max_draft_tokens: int
    quality: str
    step_seconds: float
    prefill_seconds: float
    max_sequences: int
    drafts: bool
    def __init__(self, protocol: _Optional[int] = ..., model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., tokenizer: _Optional[str] = ..., context_length: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., quality: _Optional[str] = ..., step_seconds: _Optional[float] = ..., prefill_seconds: _Optional[float] = ..., max_sequences: _Optional[int] = ..., drafts: _Optional[bool] = ...) -> None: ...

class OpenSequence(_message.Message):
    __slots__ = ("sequence", "tokens", "prompt_tokens", "sampling", "max_tokens", "min_tokens", "end_tokens", "logprobs", "grammar", "model_fingerprint", "traceparent", "skip_prefix_cache")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    SKIP_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    prompt_tokens: int
    sampling: _inference_pb2.SamplingParams
    max_tokens: int
    min_tokens: int
    end_tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: int
    grammar: str
    model_fingerprint: str
    traceparent: str
    skip_prefix_cache: bool
    def __init__(self, sequence: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_inference_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., end_tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[int] = ..., grammar: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., traceparent: _Optional[str] = ..., skip_prefix_cache: _Optional[bool] = ...) -> None: ...

class SequenceOpened(_message.Message):
    __slots__ = ("sequence", "cached_tokens")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    cached_tokens: int
    def __init__(self, sequence: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class ProposeStep(_message.Message):
    __slots__ = ("sequence", "known", "last", "proposed", "run")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    known: int
    last: int
    proposed: _containers.RepeatedScalarFieldContainer[int]
    run: int
    def __init__(self, sequence: _Optional[int] = ..., known: _Optional[int] = ..., last: _Optional[int] = ..., proposed: _Optional[_Iterable[int]] = ..., run: _Optional[int] = ...) -> None: ...

class StepVerdict(_message.Message):
    __slots__ = ("sequence", "known", "tokens", "accepted", "drafted", "finished", "queue_micros", "verify_micros", "share_micros", "load_percent", "logprobs", "own_drafted")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MICROS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MICROS_FIELD_NUMBER: _ClassVar[int]
    SHARE_MICROS_FIELD_NUMBER: _ClassVar[int]
    LOAD_PERCENT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    OWN_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    known: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    accepted: int
    drafted: int
    finished: _inference_pb2.FinishReason
    queue_micros: int
    verify_micros: int
    share_micros: int
    load_percent: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_inference_pb2.TokenLogprobs]
    own_drafted: int
    def __init__(self, sequence: _Optional[int] = ..., known: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., accepted: _Optional[int] = ..., drafted: _Optional[int] = ..., finished: _Optional[_Union[_inference_pb2.FinishReason, str]] = ..., queue_micros: _Optional[int] = ..., verify_micros: _Optional[int] = ..., share_micros: _Optional[int] = ..., load_percent: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_inference_pb2.TokenLogprobs, _Mapping]]] = ..., own_drafted: _Optional[int] = ...) -> None: ...

class CloseSequence(_message.Message):
    __slots__ = ("sequence", "known")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    known: int
    def __init__(self, sequence: _Optional[int] = ..., known: _Optional[int] = ...) -> None: ...

class SequenceClosed(_message.Message):
    __slots__ = ("sequence", "error", "retry_after_seconds")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    error: str
    retry_after_seconds: float
    def __init__(self, sequence: _Optional[int] = ..., error: _Optional[str] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class GetVocabularyRequest(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class GetVocabularyResponse(_message.Message):
    __slots__ = ("fingerprint", "size", "tokens")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    size: int
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, fingerprint: _Optional[str] = ..., size: _Optional[int] = ..., tokens: _Optional[_Iterable[bytes]] = ...) -> None: ...
