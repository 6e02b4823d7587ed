import datetime

from draftd.v1 import inference_pb2 as _inference_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
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

class MemoryPressure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_PRESSURE_UNSPECIFIED: _ClassVar[MemoryPressure]
    MEMORY_PRESSURE_NORMAL: _ClassVar[MemoryPressure]
    MEMORY_PRESSURE_WARN: _ClassVar[MemoryPressure]
    MEMORY_PRESSURE_CRITICAL: _ClassVar[MemoryPressure]

class ThermalLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THERMAL_LEVEL_UNSPECIFIED: _ClassVar[ThermalLevel]
    THERMAL_LEVEL_NOMINAL: _ClassVar[ThermalLevel]
    THERMAL_LEVEL_MODERATE: _ClassVar[ThermalLevel]
    THERMAL_LEVEL_HEAVY: _ClassVar[ThermalLevel]
    THERMAL_LEVEL_TRAPPING: _ClassVar[ThermalLevel]
    THERMAL_LEVEL_SLEEPING: _ClassVar[ThermalLevel]
DAEMON_STATE_UNSPECIFIED: DaemonState
DAEMON_STATE_LOADING: DaemonState
DAEMON_STATE_SERVING: DaemonState
DAEMON_STATE_DRAINING: DaemonState
DAEMON_STATE_FAILED: DaemonState
MEMORY_PRESSURE_UNSPECIFIED: MemoryPressure
MEMORY_PRESSURE_NORMAL: MemoryPressure
MEMORY_PRESSURE_WARN: MemoryPressure
MEMORY_PRESSURE_CRITICAL: MemoryPressure
THERMAL_LEVEL_UNSPECIFIED: ThermalLevel
THERMAL_LEVEL_NOMINAL: ThermalLevel
THERMAL_LEVEL_MODERATE: ThermalLevel
THERMAL_LEVEL_HEAVY: ThermalLevel
THERMAL_LEVEL_TRAPPING: ThermalLevel
THERMAL_LEVEL_SLEEPING: ThermalLevel

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "state", "uptime", "model", "active_requests", "queued_requests", "queue_capacity", "kv_cache_bytes", "weight_bytes", "finished_requests", "counts", "output_tokens", "flag_variant", "level", "telemetry_exporting", "backend", "refused_requests", "drafter_errors", "hardware", "transitions", "max_draft_tokens", "level_cause", "flag", "started", "verifier_errors", "fallback", "prefix_cache", "unloaded", "kv_cache_limit_bytes", "remote", "verification", "group", "progress", "prompts", "prefilled_tokens", "draft_warning", "exactness")
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
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_CAUSE_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_ERRORS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    UNLOADED_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WARNING_FIELD_NUMBER: _ClassVar[int]
    EXACTNESS_FIELD_NUMBER: _ClassVar[int]
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
    hardware: Hardware
    transitions: _containers.RepeatedCompositeFieldContainer[Transition]
    max_draft_tokens: int
    level_cause: str
    flag: FlagState
    started: _timestamp_pb2.Timestamp
    verifier_errors: int
    fallback: FallbackState
    prefix_cache: PrefixCache
    unloaded: bool
    kv_cache_limit_bytes: int
    remote: RemoteStatus
    verification: VerificationStatus
    group: GroupStatus
    progress: str
    prompts: _containers.RepeatedCompositeFieldContainer[_inference_pb2.PromptProgress]
    prefilled_tokens: int
    draft_warning: str
    exactness: Exactness
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[DaemonState, str]] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., model: _Optional[_Union[_inference_pb2.GetModelResponse, _Mapping]] = ..., active_requests: _Optional[int] = ..., queued_requests: _Optional[int] = ..., queue_capacity: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., finished_requests: _Optional[_Mapping[str, int]] = ..., counts: _Optional[_Union[_inference_pb2.DraftCounts, _Mapping]] = ..., output_tokens: _Optional[int] = ..., flag_variant: _Optional[str] = ..., level: _Optional[str] = ..., telemetry_exporting: _Optional[bool] = ..., backend: _Optional[str] = ..., refused_requests: _Optional[int] = ..., drafter_errors: _Optional[int] = ..., hardware: _Optional[_Union[Hardware, _Mapping]] = ..., transitions: _Optional[_Iterable[_Union[Transition, _Mapping]]] = ..., max_draft_tokens: _Optional[int] = ..., level_cause: _Optional[str] = ..., flag: _Optional[_Union[FlagState, _Mapping]] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., verifier_errors: _Optional[int] = ..., fallback: _Optional[_Union[FallbackState, _Mapping]] = ..., prefix_cache: _Optional[_Union[PrefixCache, _Mapping]] = ..., unloaded: _Optional[bool] = ..., kv_cache_limit_bytes: _Optional[int] = ..., remote: _Optional[_Union[RemoteStatus, _Mapping]] = ..., verification: _Optional[_Union[VerificationStatus, _Mapping]] = ..., group: _Optional[_Union[GroupStatus, _Mapping]] = ..., progress: _Optional[str] = ..., prompts: _Optional[_Iterable[_Union[_inference_pb2.PromptProgress, _Mapping]]] = ..., prefilled_tokens: _Optional[int] = ..., draft_warning: _Optional[str] = ..., exactness: _Optional[_Union[Exactness, _Mapping]] = ...) -> None: ...

class Exactness(_message.Message):
    __slots__ = ("exact", "by_token", "differs", "forward", "operations", "measured", "flips", "positions", "duration")
    EXACT_FIELD_NUMBER: _ClassVar[int]
    BY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIFFERS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    FLIPS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    exact: bool
    by_token: bool
    differs: bool
    forward: OperationExactness
    operations: _containers.RepeatedCompositeFieldContainer[OperationExactness]
    measured: int
    flips: float
    positions: int
    duration: _duration_pb2.Duration
    def __init__(self, exact: _Optional[bool] = ..., by_token: _Optional[bool] = ..., differs: _Optional[bool] = ..., forward: _Optional[_Union[OperationExactness, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[OperationExactness, _Mapping]]] = ..., measured: _Optional[int] = ..., flips: _Optional[float] = ..., positions: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class OperationExactness(_message.Message):
    __slots__ = ("name", "kind", "width", "batch", "padding", "slice_width", "difference")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    SLICE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    width: int
    batch: int
    padding: bool
    slice_width: int
    difference: float
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., width: _Optional[int] = ..., batch: _Optional[int] = ..., padding: _Optional[bool] = ..., slice_width: _Optional[int] = ..., difference: _Optional[float] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("id", "state", "backend", "parallel", "ranks", "losses", "reason", "restart", "records", "record_bytes", "starts")
    class LossesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    backend: str
    parallel: str
    ranks: _containers.RepeatedCompositeFieldContainer[RankStatus]
    losses: _containers.ScalarMap[str, int]
    reason: str
    restart: _duration_pb2.Duration
    records: int
    record_bytes: int
    starts: int
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., backend: _Optional[str] = ..., parallel: _Optional[str] = ..., ranks: _Optional[_Iterable[_Union[RankStatus, _Mapping]]] = ..., losses: _Optional[_Mapping[str, int]] = ..., reason: _Optional[str] = ..., restart: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., records: _Optional[int] = ..., record_bytes: _Optional[int] = ..., starts: _Optional[int] = ...) -> None: ...

class RankStatus(_message.Message):
    __slots__ = ("rank", "host", "memory_bytes", "limit_bytes", "records", "lag", "collective", "silent")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    memory_bytes: int
    limit_bytes: int
    records: int
    lag: int
    collective: _duration_pb2.Duration
    silent: _duration_pb2.Duration
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., records: _Optional[int] = ..., lag: _Optional[int] = ..., collective: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., silent: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RemoteStatus(_message.Message):
    __slots__ = ("up", "why", "target", "model", "quality", "round_trip", "load", "open_sequences", "steps_in_flight", "bytes_sent", "bytes_received", "connections", "errors", "counts", "failed_over", "break_even", "speedup", "level", "retry_after", "reason", "failures")
    class FailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    UP_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    OPEN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_OVER_FIELD_NUMBER: _ClassVar[int]
    BREAK_EVEN_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    up: bool
    why: str
    target: str
    model: str
    quality: _inference_pb2.QualityClass
    round_trip: _duration_pb2.Duration
    load: float
    open_sequences: int
    steps_in_flight: int
    bytes_sent: int
    bytes_received: int
    connections: int
    errors: int
    counts: _inference_pb2.RemoteCounts
    failed_over: int
    break_even: _duration_pb2.Duration
    speedup: float
    level: str
    retry_after: _duration_pb2.Duration
    reason: str
    failures: _containers.ScalarMap[str, int]
    def __init__(self, up: _Optional[bool] = ..., why: _Optional[str] = ..., target: _Optional[str] = ..., model: _Optional[str] = ..., quality: _Optional[_Union[_inference_pb2.QualityClass, str]] = ..., round_trip: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., load: _Optional[float] = ..., open_sequences: _Optional[int] = ..., steps_in_flight: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., connections: _Optional[int] = ..., errors: _Optional[int] = ..., counts: _Optional[_Union[_inference_pb2.RemoteCounts, _Mapping]] = ..., failed_over: _Optional[int] = ..., break_even: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., speedup: _Optional[float] = ..., level: _Optional[str] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ..., failures: _Optional[_Mapping[str, int]] = ...) -> None: ...

class VerificationStatus(_message.Message):
    __slots__ = ("peers", "total", "open_sequences", "refusals")
    class RefusalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PEERS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    OPEN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    total: PeerCounts
    open_sequences: int
    refusals: _containers.ScalarMap[str, int]
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., total: _Optional[_Union[PeerCounts, _Mapping]] = ..., open_sequences: _Optional[int] = ..., refusals: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("address", "counts")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    address: str
    counts: PeerCounts
    def __init__(self, address: _Optional[str] = ..., counts: _Optional[_Union[PeerCounts, _Mapping]] = ...) -> None: ...

class PeerCounts(_message.Message):
    __slots__ = ("connections", "opened", "refused", "steps", "stale", "verdicts", "drafted_tokens", "accepted_tokens", "tokens", "discarded_tokens", "wasted_tokens", "bytes_received", "bytes_sent", "queue_time", "target_time")
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WASTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    TARGET_TIME_FIELD_NUMBER: _ClassVar[int]
    connections: int
    opened: int
    refused: int
    steps: int
    stale: int
    verdicts: int
    drafted_tokens: int
    accepted_tokens: int
    tokens: int
    discarded_tokens: int
    wasted_tokens: int
    bytes_received: int
    bytes_sent: int
    queue_time: _duration_pb2.Duration
    target_time: _duration_pb2.Duration
    def __init__(self, connections: _Optional[int] = ..., opened: _Optional[int] = ..., refused: _Optional[int] = ..., steps: _Optional[int] = ..., stale: _Optional[int] = ..., verdicts: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., tokens: _Optional[int] = ..., discarded_tokens: _Optional[int] = ..., wasted_tokens: _Optional[int] = ..., bytes_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., queue_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., target_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PrefixCache(_message.Message):
    __slots__ = ("bytes", "limit_bytes", "entries", "lookups", "hits", "read_tokens", "disk_bytes", "disk_limit_bytes", "disk_files", "pins", "pinned_bytes", "limit_tokens", "unfit", "longest_unfit_tokens", "warning")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    READ_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FILES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    LONGEST_UNFIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    limit_bytes: int
    entries: int
    lookups: int
    hits: int
    read_tokens: int
    disk_bytes: int
    disk_limit_bytes: int
    disk_files: int
    pins: int
    pinned_bytes: int
    limit_tokens: int
    unfit: int
    longest_unfit_tokens: int
    warning: str
    def __init__(self, bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., entries: _Optional[int] = ..., lookups: _Optional[int] = ..., hits: _Optional[int] = ..., read_tokens: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., disk_limit_bytes: _Optional[int] = ..., disk_files: _Optional[int] = ..., pins: _Optional[int] = ..., pinned_bytes: _Optional[int] = ..., limit_tokens: _Optional[int] = ..., unfit: _Optional[int] = ..., longest_unfit_tokens: _Optional[int] = ..., warning: _Optional[str] = ...) -> None: ...

class GetManifestRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetManifestResponse(_message.Message):
    __slots__ = ("version", "packages", "python", "os", "device", "cores", "memory_bytes", "backend", "blas", "power_source", "low_power", "models", "settings", "load_time", "exactness")
    class PackagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ModelManifest
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ModelManifest, _Mapping]] = ...) -> None: ...
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    OS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BLAS_FIELD_NUMBER: _ClassVar[int]
    POWER_SOURCE_FIELD_NUMBER: _ClassVar[int]
    LOW_POWER_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    EXACTNESS_FIELD_NUMBER: _ClassVar[int]
    version: str
    packages: _containers.ScalarMap[str, str]
    python: str
    os: str
    device: str
    cores: int
    memory_bytes: int
    backend: str
    blas: str
    power_source: str
    low_power: bool
    models: _containers.MessageMap[str, ModelManifest]
    settings: _containers.ScalarMap[str, str]
    load_time: _duration_pb2.Duration
    exactness: Exactness
    def __init__(self, version: _Optional[str] = ..., packages: _Optional[_Mapping[str, str]] = ..., python: _Optional[str] = ..., os: _Optional[str] = ..., device: _Optional[str] = ..., cores: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., backend: _Optional[str] = ..., blas: _Optional[str] = ..., power_source: _Optional[str] = ..., low_power: _Optional[bool] = ..., models: _Optional[_Mapping[str, ModelManifest]] = ..., settings: _Optional[_Mapping[str, str]] = ..., load_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., exactness: _Optional[_Union[Exactness, _Mapping]] = ...) -> None: ...

class ModelManifest(_message.Message):
    __slots__ = ("name", "quantization", "weight_bytes", "files", "changed_since_load", "kind", "form")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_SINCE_LOAD_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    name: str
    quantization: str
    weight_bytes: int
    files: _containers.RepeatedCompositeFieldContainer[ModelFile]
    changed_since_load: bool
    kind: str
    form: str
    def __init__(self, name: _Optional[str] = ..., quantization: _Optional[str] = ..., weight_bytes: _Optional[int] = ..., files: _Optional[_Iterable[_Union[ModelFile, _Mapping]]] = ..., changed_since_load: _Optional[bool] = ..., kind: _Optional[str] = ..., form: _Optional[str] = ...) -> None: ...

class ModelFile(_message.Message):
    __slots__ = ("name", "kind", "bytes", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    bytes: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class Hardware(_message.Message):
    __slots__ = ("age", "memory_pressure", "memory_headroom_bytes", "memory_floor_bytes", "memory_available_bytes", "memory_limit_bytes", "critical_pressure", "swap_used_bytes", "swap_in_bytes", "process_resident_bytes", "mlx_active_bytes", "mlx_cache_bytes", "mlx_peak_bytes", "mlx_working_set_bytes", "gpu_memory_bytes", "gpu_utilization", "thermal_level", "throttles", "low_power", "on_mains", "temperatures", "fans", "power", "errors")
    class TemperaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class FansEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class PowerEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ErrorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    AGE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_HEADROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FLOOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRITICAL_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    SWAP_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MLX_ACTIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MLX_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MLX_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MLX_WORKING_SET_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    THERMAL_LEVEL_FIELD_NUMBER: _ClassVar[int]
    THROTTLES_FIELD_NUMBER: _ClassVar[int]
    LOW_POWER_FIELD_NUMBER: _ClassVar[int]
    ON_MAINS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURES_FIELD_NUMBER: _ClassVar[int]
    FANS_FIELD_NUMBER: _ClassVar[int]
    POWER_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    age: _duration_pb2.Duration
    memory_pressure: MemoryPressure
    memory_headroom_bytes: int
    memory_floor_bytes: int
    memory_available_bytes: int
    memory_limit_bytes: int
    critical_pressure: _duration_pb2.Duration
    swap_used_bytes: int
    swap_in_bytes: int
    process_resident_bytes: int
    mlx_active_bytes: int
    mlx_cache_bytes: int
    mlx_peak_bytes: int
    mlx_working_set_bytes: int
    gpu_memory_bytes: int
    gpu_utilization: float
    thermal_level: ThermalLevel
    throttles: int
    low_power: bool
    on_mains: bool
    temperatures: _containers.ScalarMap[str, float]
    fans: _containers.ScalarMap[str, float]
    power: _containers.ScalarMap[str, float]
    errors: _containers.ScalarMap[str, int]
    def __init__(self, age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., memory_pressure: _Optional[_Union[MemoryPressure, str]] = ..., memory_headroom_bytes: _Optional[int] = ..., memory_floor_bytes: _Optional[int] = ..., memory_available_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., critical_pressure: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., swap_used_bytes: _Optional[int] = ..., swap_in_bytes: _Optional[int] = ..., process_resident_bytes: _Optional[int] = ..., mlx_active_bytes: _Optional[int] = ..., mlx_cache_bytes: _Optional[int] = ..., mlx_peak_bytes: _Optional[int] = ..., mlx_working_set_bytes: _Optional[int] = ..., gpu_memory_bytes: _Optional[int] = ..., gpu_utilization: _Optional[float] = ..., thermal_level: _Optional[_Union[ThermalLevel, str]] = ..., throttles: _Optional[int] = ..., low_power: _Optional[bool] = ..., on_mains: _Optional[bool] = ..., temperatures: _Optional[_Mapping[str, float]] = ..., fans: _Optional[_Mapping[str, float]] = ..., power: _Optional[_Mapping[str, float]] = ..., errors: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Transition(_message.Message):
    __slots__ = ("at", "subject", "previous", "current", "cause", "evidence", "number")
    AT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    subject: str
    previous: str
    current: str
    cause: str
    evidence: str
    number: int
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., subject: _Optional[str] = ..., previous: _Optional[str] = ..., current: _Optional[str] = ..., cause: _Optional[str] = ..., evidence: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class FlagState(_message.Message):
    __slots__ = ("key", "default_variant", "variants", "provider", "writable", "source", "error", "shared")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VARIANT_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    key: str
    default_variant: str
    variants: _containers.RepeatedScalarFieldContainer[str]
    provider: str
    writable: bool
    source: str
    error: str
    shared: bool
    def __init__(self, key: _Optional[str] = ..., default_variant: _Optional[str] = ..., variants: _Optional[_Iterable[str]] = ..., provider: _Optional[str] = ..., writable: _Optional[bool] = ..., source: _Optional[str] = ..., error: _Optional[str] = ..., shared: _Optional[bool] = ...) -> None: ...

class FlagEvaluation(_message.Message):
    __slots__ = ("variant", "value", "reason", "strategy")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    variant: str
    value: bool
    reason: str
    strategy: str
    def __init__(self, variant: _Optional[str] = ..., value: _Optional[bool] = ..., reason: _Optional[str] = ..., strategy: _Optional[str] = ...) -> None: ...

class GetFlagRequest(_message.Message):
    __slots__ = ("workload", "caller", "key", "prompt_tokens")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    workload: _inference_pb2.WorkloadClass
    caller: str
    key: str
    prompt_tokens: int
    def __init__(self, workload: _Optional[_Union[_inference_pb2.WorkloadClass, str]] = ..., caller: _Optional[str] = ..., key: _Optional[str] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class GetFlagResponse(_message.Message):
    __slots__ = ("flag", "evaluation")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    flag: FlagState
    evaluation: FlagEvaluation
    def __init__(self, flag: _Optional[_Union[FlagState, _Mapping]] = ..., evaluation: _Optional[_Union[FlagEvaluation, _Mapping]] = ...) -> None: ...

class SetFlagRequest(_message.Message):
    __slots__ = ("variant", "key")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    variant: str
    key: str
    def __init__(self, variant: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class SetFlagResponse(_message.Message):
    __slots__ = ("flag", "previous_variant")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VARIANT_FIELD_NUMBER: _ClassVar[int]
    flag: FlagState
    previous_variant: str
    def __init__(self, flag: _Optional[_Union[FlagState, _Mapping]] = ..., previous_variant: _Optional[str] = ...) -> None: ...

class LadderLevel(_message.Message):
    __slots__ = ("level", "max_draft_tokens", "drafter")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    level: str
    max_draft_tokens: int
    drafter: str
    def __init__(self, level: _Optional[str] = ..., max_draft_tokens: _Optional[int] = ..., drafter: _Optional[str] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("signal", "level", "hard", "evidence")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    HARD_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    signal: str
    level: str
    hard: bool
    evidence: str
    def __init__(self, signal: _Optional[str] = ..., level: _Optional[str] = ..., hard: _Optional[bool] = ..., evidence: _Optional[str] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("until", "position")
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    until: _timestamp_pb2.Timestamp
    position: int
    def __init__(self, until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., position: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("alert", "fingerprint", "level", "started", "until")
    ALERT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    alert: str
    fingerprint: str
    level: str
    started: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    def __init__(self, alert: _Optional[str] = ..., fingerprint: _Optional[str] = ..., level: _Optional[str] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FallbackState(_message.Message):
    __slots__ = ("ladder", "position", "since", "cause", "hold", "demands", "leases", "wait", "relapses", "loaded_drafters", "draft_weight_bytes", "loading", "state_file", "absent_drafters", "unsaved", "remote")
    class AbsentDraftersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LADDER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    DEMANDS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    RELAPSES_FIELD_NUMBER: _ClassVar[int]
    LOADED_DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    STATE_FILE_FIELD_NUMBER: _ClassVar[int]
    ABSENT_DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    UNSAVED_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    ladder: _containers.RepeatedCompositeFieldContainer[LadderLevel]
    position: int
    since: _timestamp_pb2.Timestamp
    cause: str
    hold: Hold
    demands: _containers.RepeatedCompositeFieldContainer[Demand]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    wait: _duration_pb2.Duration
    relapses: int
    loaded_drafters: _containers.RepeatedScalarFieldContainer[str]
    draft_weight_bytes: int
    loading: bool
    state_file: str
    absent_drafters: _containers.ScalarMap[str, str]
    unsaved: str
    remote: FallbackState
    def __init__(self, ladder: _Optional[_Iterable[_Union[LadderLevel, _Mapping]]] = ..., position: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cause: _Optional[str] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., demands: _Optional[_Iterable[_Union[Demand, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., relapses: _Optional[int] = ..., loaded_drafters: _Optional[_Iterable[str]] = ..., draft_weight_bytes: _Optional[int] = ..., loading: _Optional[bool] = ..., state_file: _Optional[str] = ..., absent_drafters: _Optional[_Mapping[str, str]] = ..., unsaved: _Optional[str] = ..., remote: _Optional[_Union[FallbackState, _Mapping]] = ...) -> None: ...

class GetLevelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLevelResponse(_message.Message):
    __slots__ = ("fallback",)
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    fallback: FallbackState
    def __init__(self, fallback: _Optional[_Union[FallbackState, _Mapping]] = ...) -> None: ...

class HoldLevelRequest(_message.Message):
    __slots__ = ("level", "expires_in")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    level: str
    expires_in: _duration_pb2.Duration
    def __init__(self, level: _Optional[str] = ..., expires_in: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class HoldLevelResponse(_message.Message):
    __slots__ = ("fallback",)
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    fallback: FallbackState
    def __init__(self, fallback: _Optional[_Union[FallbackState, _Mapping]] = ...) -> None: ...

class ReleaseLevelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseLevelResponse(_message.Message):
    __slots__ = ("fallback", "was_held")
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    WAS_HELD_FIELD_NUMBER: _ClassVar[int]
    fallback: FallbackState
    was_held: bool
    def __init__(self, fallback: _Optional[_Union[FallbackState, _Mapping]] = ..., was_held: _Optional[bool] = ...) -> None: ...

class ListTransitionsRequest(_message.Message):
    __slots__ = ("limit", "after_number")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after_number: int
    def __init__(self, limit: _Optional[int] = ..., after_number: _Optional[int] = ...) -> None: ...

class ListTransitionsResponse(_message.Message):
    __slots__ = ("transitions",)
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    transitions: _containers.RepeatedCompositeFieldContainer[Transition]
    def __init__(self, transitions: _Optional[_Iterable[_Union[Transition, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after_number",)
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    after_number: int
    def __init__(self, after_number: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("transition",)
    TRANSITION_FIELD_NUMBER: _ClassVar[int]
    transition: Transition
    def __init__(self, transition: _Optional[_Union[Transition, _Mapping]] = ...) -> None: ...

class RunProbeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunProbeResponse(_message.Message):
    __slots__ = ("level", "verdict", "reason", "acceptance", "speedup", "took")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    level: LadderLevel
    verdict: str
    reason: str
    acceptance: float
    speedup: float
    took: _duration_pb2.Duration
    def __init__(self, level: _Optional[_Union[LadderLevel, _Mapping]] = ..., verdict: _Optional[str] = ..., reason: _Optional[str] = ..., acceptance: _Optional[float] = ..., speedup: _Optional[float] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CanaryResult(_message.Message):
    __slots__ = ("id", "passed_autoregressive", "passed_speculative", "diverged", "diverged_at", "logit_gap", "complaint")
    ID_FIELD_NUMBER: _ClassVar[int]
    PASSED_AUTOREGRESSIVE_FIELD_NUMBER: _ClassVar[int]
    PASSED_SPECULATIVE_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_AT_FIELD_NUMBER: _ClassVar[int]
    LOGIT_GAP_FIELD_NUMBER: _ClassVar[int]
    COMPLAINT_FIELD_NUMBER: _ClassVar[int]
    id: str
    passed_autoregressive: bool
    passed_speculative: bool
    diverged: bool
    diverged_at: int
    logit_gap: float
    complaint: str
    def __init__(self, id: _Optional[str] = ..., passed_autoregressive: _Optional[bool] = ..., passed_speculative: _Optional[bool] = ..., diverged: _Optional[bool] = ..., diverged_at: _Optional[int] = ..., logit_gap: _Optional[float] = ..., complaint: _Optional[str] = ...) -> None: ...

class RunCanariesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunCanariesResponse(_message.Message):
    __slots__ = ("verdict", "reason", "score_autoregressive", "score_speculative", "results", "took")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SCORE_AUTOREGRESSIVE_FIELD_NUMBER: _ClassVar[int]
    SCORE_SPECULATIVE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    reason: str
    score_autoregressive: float
    score_speculative: float
    results: _containers.RepeatedCompositeFieldContainer[CanaryResult]
    took: _duration_pb2.Duration
    def __init__(self, verdict: _Optional[str] = ..., reason: _Optional[str] = ..., score_autoregressive: _Optional[float] = ..., score_speculative: _Optional[float] = ..., results: _Optional[_Iterable[_Union[CanaryResult, _Mapping]]] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReloadDraftRequest(_message.Message):
    __slots__ = ("forget_baselines",)
    FORGET_BASELINES_FIELD_NUMBER: _ClassVar[int]
    forget_baselines: bool
    def __init__(self, forget_baselines: _Optional[bool] = ...) -> None: ...

class ReloadDraftResponse(_message.Message):
    __slots__ = ("draft_model", "draft_weight_bytes")
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    draft_model: str
    draft_weight_bytes: int
    def __init__(self, draft_model: _Optional[str] = ..., draft_weight_bytes: _Optional[int] = ...) -> None: ...

class PinPrefixRequest(_message.Message):
    __slots__ = ("name", "prompt", "chat", "tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    prompt: str
    chat: _inference_pb2.ChatInput
    tokens: _inference_pb2.TokenInput
    def __init__(self, name: _Optional[str] = ..., prompt: _Optional[str] = ..., chat: _Optional[_Union[_inference_pb2.ChatInput, _Mapping]] = ..., tokens: _Optional[_Union[_inference_pb2.TokenInput, _Mapping]] = ...) -> None: ...

class PinPrefixResponse(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: PinnedPrefix
    def __init__(self, prefix: _Optional[_Union[PinnedPrefix, _Mapping]] = ...) -> None: ...

class PinnedPrefix(_message.Message):
    __slots__ = ("name", "tokens", "bytes", "created", "other_model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    OTHER_MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    tokens: int
    bytes: int
    created: _timestamp_pb2.Timestamp
    other_model: bool
    def __init__(self, name: _Optional[str] = ..., tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., other_model: _Optional[bool] = ...) -> None: ...

class ListPrefixesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPrefixesResponse(_message.Message):
    __slots__ = ("prefixes",)
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[PinnedPrefix]
    def __init__(self, prefixes: _Optional[_Iterable[_Union[PinnedPrefix, _Mapping]]] = ...) -> None: ...

class DropPrefixRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropPrefixResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDepthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDepthResponse(_message.Message):
    __slots__ = ("costs", "yields")
    COSTS_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    costs: _containers.RepeatedCompositeFieldContainer[DepthCost]
    yields: _containers.RepeatedCompositeFieldContainer[DepthYield]
    def __init__(self, costs: _Optional[_Iterable[_Union[DepthCost, _Mapping]]] = ..., yields: _Optional[_Iterable[_Union[DepthYield, _Mapping]]] = ...) -> None: ...

class DepthCost(_message.Message):
    __slots__ = ("batch", "plain", "ratios", "drafter", "source")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    RATIOS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    batch: int
    plain: _duration_pb2.Duration
    ratios: _containers.RepeatedScalarFieldContainer[float]
    drafter: str
    source: str
    def __init__(self, batch: _Optional[int] = ..., plain: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ratios: _Optional[_Iterable[float]] = ..., drafter: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class DepthYield(_message.Message):
    __slots__ = ("workload", "sampled", "seeded", "acceptance", "tried", "depth", "drafter")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    SEEDED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    TRIED_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    workload: _inference_pb2.WorkloadClass
    sampled: bool
    seeded: bool
    acceptance: _containers.RepeatedScalarFieldContainer[float]
    tried: _containers.RepeatedScalarFieldContainer[float]
    depth: int
    drafter: str
    def __init__(self, workload: _Optional[_Union[_inference_pb2.WorkloadClass, str]] = ..., sampled: _Optional[bool] = ..., seeded: _Optional[bool] = ..., acceptance: _Optional[_Iterable[float]] = ..., tried: _Optional[_Iterable[float]] = ..., depth: _Optional[int] = ..., drafter: _Optional[str] = ...) -> None: ...
