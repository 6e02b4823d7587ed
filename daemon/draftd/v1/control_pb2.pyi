import datetime

from draftd.v1 import inference_pb2 as _inference_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DaemonState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DAEMON_STATE_UNSPECIFIED: _ClassVar[DaemonState]
    DAEMON_STATE_LOADING: _ClassVar[DaemonState]
    DAEMON_STATE_SERVING: _ClassVar[DaemonState]
    DAEMON_STATE_DRAINING: _ClassVar[DaemonState]
    DAEMON_STATE_FAILED: _ClassVar[DaemonState]
DAEMON_STATE_UNSPECIFIED: DaemonState
DAEMON_STATE_LOADING: DaemonState
DAEMON_STATE_SERVING: DaemonState
DAEMON_STATE_DRAINING: DaemonState
DAEMON_STATE_FAILED: DaemonState

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "state", "uptime", "model", "active_requests", "queued_requests", "queue_capacity", "kv_cache_bytes", "weight_bytes", "finished_requests", "counts", "output_tokens", "flag_variant", "level", "telemetry_exporting", "backend", "refused_requests", "drafter_errors")
    class FinishedRequestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FLAG_VARIANT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_EXPORTING_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_ERRORS_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: DaemonState
    uptime: _duration_pb2.Duration
    model: _inference_pb2.GetModelResponse
    active_requests: int
    queued_requests: int
    queue_capacity: int
    kv_cache_bytes: int
    weight_bytes: int
    finished_requests: _containers.ScalarMap[str, int]
    counts: _inference_pb2.DraftCounts
    output_tokens: int
    flag_variant: str
    level: str
    telemetry_exporting: bool
    backend: str
    refused_requests: int
    drafter_errors: int
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[DaemonState, str]] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., model: _Optional[_Union[_inference_pb2.GetModelResponse, _Mapping]] = ..., active_requests: _Optional[int] = ..., queued_requests: _Optional[int] = ..., queue_capacity: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., finished_requests: _Optional[_Mapping[str, int]] = ..., counts: _Optional[_Union[_inference_pb2.DraftCounts, _Mapping]] = ..., output_tokens: _Optional[int] = ..., flag_variant: _Optional[str] = ..., level: _Optional[str] = ..., telemetry_exporting: _Optional[bool] = ..., backend: _Optional[str] = ..., refused_requests: _Optional[int] = ..., drafter_errors: _Optional[int] = ...) -> None: ...

class FlagState(_message.Message):
    __slots__ = ("key", "default_variant", "variants", "provider", "writable", "source")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VARIANT_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    key: str
    default_variant: str
    variants: _containers.RepeatedScalarFieldContainer[str]
    provider: str
    writable: bool
    source: str
    def __init__(self, key: _Optional[str] = ..., default_variant: _Optional[str] = ..., variants: _Optional[_Iterable[str]] = ..., provider: _Optional[str] = ..., writable: _Optional[bool] = ..., source: _Optional[str] = ...) -> None: ...

class FlagEvaluation(_message.Message):
    __slots__ = ("variant", "value", "reason")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    variant: str
    value: bool
    reason: str
    def __init__(self, variant: _Optional[str] = ..., value: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class GetFlagRequest(_message.Message):
    __slots__ = ("workload", "caller")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    workload: _inference_pb2.WorkloadClass
    caller: str
    def __init__(self, workload: _Optional[_Union[_inference_pb2.WorkloadClass, str]] = ..., caller: _Optional[str] = ...) -> None: ...

class GetFlagResponse(_message.Message):
    __slots__ = ("flag", "evaluation")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    flag: FlagState
    evaluation: FlagEvaluation
    def __init__(self, flag: _Optional[_Union[FlagState, _Mapping]] = ..., evaluation: _Optional[_Union[FlagEvaluation, _Mapping]] = ...) -> None: ...

class SetFlagRequest(_message.Message):
    __slots__ = ("variant",)
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    variant: str
    def __init__(self, variant: _Optional[str] = ...) -> None: ...

class SetFlagResponse(_message.Message):
    __slots__ = ("flag", "previous_variant")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VARIANT_FIELD_NUMBER: _ClassVar[int]
    flag: FlagState
    previous_variant: str
    def __init__(self, flag: _Optional[_Union[FlagState, _Mapping]] = ..., previous_variant: _Optional[str] = ...) -> None: ...
