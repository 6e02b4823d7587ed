import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECODE_MODE_UNSPECIFIED: _ClassVar[DecodeMode]
    DECODE_MODE_AUTO: _ClassVar[DecodeMode]
    DECODE_MODE_SPECULATIVE: _ClassVar[DecodeMode]
    DECODE_MODE_AUTOREGRESSIVE: _ClassVar[DecodeMode]

class Strategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STRATEGY_UNSPECIFIED: _ClassVar[Strategy]
    STRATEGY_LOCAL: _ClassVar[Strategy]
    STRATEGY_REMOTE: _ClassVar[Strategy]
    STRATEGY_SPECULATIVE: _ClassVar[Strategy]
    STRATEGY_AUTO: _ClassVar[Strategy]

class QualityClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUALITY_CLASS_UNSPECIFIED: _ClassVar[QualityClass]
    QUALITY_CLASS_DRAFT: _ClassVar[QualityClass]
    QUALITY_CLASS_STANDARD: _ClassVar[QualityClass]
    QUALITY_CLASS_PROFESSIONAL: _ClassVar[QualityClass]

class Verifier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFIER_UNSPECIFIED: _ClassVar[Verifier]
    VERIFIER_LOCAL: _ClassVar[Verifier]
    VERIFIER_REMOTE: _ClassVar[Verifier]

class WorkloadClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKLOAD_CLASS_UNSPECIFIED: _ClassVar[WorkloadClass]
    WORKLOAD_CLASS_CODE: _ClassVar[WorkloadClass]
    WORKLOAD_CLASS_TOOL_CALL: _ClassVar[WorkloadClass]
    WORKLOAD_CLASS_CHAT: _ClassVar[WorkloadClass]
    WORKLOAD_CLASS_PROSE: _ClassVar[WorkloadClass]
    WORKLOAD_CLASS_EDIT: _ClassVar[WorkloadClass]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]

class DepthMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEPTH_MODE_UNSPECIFIED: _ClassVar[DepthMode]
    DEPTH_MODE_AUTOMATIC: _ClassVar[DepthMode]
    DEPTH_MODE_FIXED: _ClassVar[DepthMode]
DECODE_MODE_UNSPECIFIED: DecodeMode
DECODE_MODE_AUTO: DecodeMode
DECODE_MODE_SPECULATIVE: DecodeMode
DECODE_MODE_AUTOREGRESSIVE: DecodeMode
STRATEGY_UNSPECIFIED: Strategy
STRATEGY_LOCAL: Strategy
STRATEGY_REMOTE: Strategy
STRATEGY_SPECULATIVE: Strategy
STRATEGY_AUTO: Strategy
QUALITY_CLASS_UNSPECIFIED: QualityClass
QUALITY_CLASS_DRAFT: QualityClass
QUALITY_CLASS_STANDARD: QualityClass
QUALITY_CLASS_PROFESSIONAL: QualityClass
VERIFIER_UNSPECIFIED: Verifier
VERIFIER_LOCAL: Verifier
VERIFIER_REMOTE: Verifier
WORKLOAD_CLASS_UNSPECIFIED: WorkloadClass
WORKLOAD_CLASS_CODE: WorkloadClass
WORKLOAD_CLASS_TOOL_CALL: WorkloadClass
WORKLOAD_CLASS_CHAT: WorkloadClass
WORKLOAD_CLASS_PROSE: WorkloadClass
WORKLOAD_CLASS_EDIT: WorkloadClass
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_DEADLINE: FinishReason
FINISH_REASON_ERROR: FinishReason
DEPTH_MODE_UNSPECIFIED: DepthMode
DEPTH_MODE_AUTOMATIC: DepthMode
DEPTH_MODE_FIXED: DepthMode

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "parts", "tool_calls", "tool_call_id", "name", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    parts: _containers.RepeatedCompositeFieldContainer[ContentPart]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    name: str
    reasoning: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ContentPart(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ...) -> None: ...

class ToolChoice(_message.Message):
    __slots__ = ("mode", "name")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[ToolChoice.Mode]
        MODE_NONE: _ClassVar[ToolChoice.Mode]
        MODE_AUTO: _ClassVar[ToolChoice.Mode]
        MODE_REQUIRED: _ClassVar[ToolChoice.Mode]
    MODE_UNSPECIFIED: ToolChoice.Mode
    MODE_NONE: ToolChoice.Mode
    MODE_AUTO: ToolChoice.Mode
    MODE_REQUIRED: ToolChoice.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    mode: ToolChoice.Mode
    name: str
    def __init__(self, mode: _Optional[_Union[ToolChoice.Mode, str]] = ..., name: _Optional[str] = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages", "tools", "tool_choice", "parallel_tool_calls", "template_arguments", "continue_final_message")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    template_arguments: str
    continue_final_message: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, _Mapping]] = ..., parallel_tool_calls: _Optional[bool] = ..., template_arguments: _Optional[str] = ..., continue_final_message: _Optional[bool] = ...) -> None: ...

class TokenInput(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    logit_bias: _containers.ScalarMap[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ...) -> None: ...

class ResponseFormat(_message.Message):
    __slots__ = ("json_object", "json_schema", "regex", "choices", "grammar")
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json_object: bool
    json_schema: str
    regex: str
    choices: Choices
    grammar: str
    def __init__(self, json_object: _Optional[bool] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choices: _Optional[_Union[Choices, _Mapping]] = ..., grammar: _Optional[str] = ...) -> None: ...

class Choices(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "chat", "tokens", "max_tokens", "sampling", "stop", "mode", "max_draft_tokens", "workload", "caller", "depth_mode", "drafter", "logprobs", "min_tokens", "ignore_eos", "stop_token_ids", "include_stop", "n", "echo", "priority", "response_format", "strategy", "quality", "max_seconds", "max_cost", "special_tokens", "prompt_logprobs", "return_progress", "skip_prefix_cache")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    DEPTH_MODE_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    MAX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RETURN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SKIP_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    chat: ChatInput
    tokens: TokenInput
    max_tokens: int
    sampling: SamplingParams
    stop: _containers.RepeatedScalarFieldContainer[str]
    mode: DecodeMode
    max_draft_tokens: int
    workload: WorkloadClass
    caller: str
    depth_mode: DepthMode
    drafter: str
    logprobs: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    include_stop: bool
    n: int
    echo: bool
    priority: int
    response_format: ResponseFormat
    strategy: Strategy
    quality: QualityClass
    max_seconds: float
    max_cost: float
    special_tokens: bool
    prompt_logprobs: int
    return_progress: bool
    skip_prefix_cache: bool
    def __init__(self, prompt: _Optional[str] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., tokens: _Optional[_Union[TokenInput, _Mapping]] = ..., max_tokens: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., stop: _Optional[_Iterable[str]] = ..., mode: _Optional[_Union[DecodeMode, str]] = ..., max_draft_tokens: _Optional[int] = ..., workload: _Optional[_Union[WorkloadClass, str]] = ..., caller: _Optional[str] = ..., depth_mode: _Optional[_Union[DepthMode, str]] = ..., drafter: _Optional[str] = ..., logprobs: _Optional[int] = ..., min_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., include_stop: _Optional[bool] = ..., n: _Optional[int] = ..., echo: _Optional[bool] = ..., priority: _Optional[int] = ..., response_format: _Optional[_Union[ResponseFormat, _Mapping]] = ..., strategy: _Optional[_Union[Strategy, str]] = ..., quality: _Optional[_Union[QualityClass, str]] = ..., max_seconds: _Optional[float] = ..., max_cost: _Optional[float] = ..., special_tokens: _Optional[bool] = ..., prompt_logprobs: _Optional[int] = ..., return_progress: _Optional[bool] = ..., skip_prefix_cache: _Optional[bool] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "chunk", "finished", "loading", "prompt_progress")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    started: Started
    chunk: Chunk
    finished: Finished
    loading: Loading
    prompt_progress: PromptProgress
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., loading: _Optional[_Union[Loading, _Mapping]] = ..., prompt_progress: _Optional[_Union[PromptProgress, _Mapping]] = ...) -> None: ...

class DecodePlan(_message.Message):
    __slots__ = ("mode", "max_draft_tokens", "level", "variant", "reason", "depth_mode", "drafter", "alternatives", "strategy", "quality", "generic_tools")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEPTH_MODE_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    GENERIC_TOOLS_FIELD_NUMBER: _ClassVar[int]
    mode: DecodeMode
    max_draft_tokens: int
    level: str
    variant: str
    reason: str
    depth_mode: DepthMode
    drafter: str
    alternatives: _containers.RepeatedScalarFieldContainer[str]
    strategy: Strategy
    quality: QualityClass
    generic_tools: bool
    def __init__(self, mode: _Optional[_Union[DecodeMode, str]] = ..., max_draft_tokens: _Optional[int] = ..., level: _Optional[str] = ..., variant: _Optional[str] = ..., reason: _Optional[str] = ..., depth_mode: _Optional[_Union[DepthMode, str]] = ..., drafter: _Optional[str] = ..., alternatives: _Optional[_Iterable[str]] = ..., strategy: _Optional[_Union[Strategy, str]] = ..., quality: _Optional[_Union[QualityClass, str]] = ..., generic_tools: _Optional[bool] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "model", "draft_model", "prompt_tokens", "plan")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    draft_model: str
    prompt_tokens: int
    plan: DecodePlan
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., draft_model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., plan: _Optional[_Union[DecodePlan, _Mapping]] = ...) -> None: ...

class Loading(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: str
    def __init__(self, progress: _Optional[str] = ...) -> None: ...

class PromptProgress(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "processed_tokens", "elapsed")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    processed_tokens: int
    elapsed: _duration_pb2.Duration
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., processed_tokens: _Optional[int] = ..., elapsed: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("text", "token_ids", "from_draft", "text_lengths", "deltas", "logprobs", "choice", "verifier", "prompt_ids", "prompt_logprobs")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FROM_DRAFT_FIELD_NUMBER: _ClassVar[int]
    TEXT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    from_draft: _containers.RepeatedScalarFieldContainer[bool]
    text_lengths: _containers.RepeatedScalarFieldContainer[int]
    deltas: _containers.RepeatedCompositeFieldContainer[Delta]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    choice: int
    verifier: Verifier
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., from_draft: _Optional[_Iterable[bool]] = ..., text_lengths: _Optional[_Iterable[int]] = ..., deltas: _Optional[_Iterable[_Union[Delta, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., choice: _Optional[int] = ..., verifier: _Optional[_Union[Verifier, str]] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("text", "reasoning", "tool_call_begun", "tool_call_arguments", "tool_call")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_BEGUN_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    text: str
    reasoning: str
    tool_call_begun: ToolCallBegun
    tool_call_arguments: str
    tool_call: ToolCall
    def __init__(self, text: _Optional[str] = ..., reasoning: _Optional[str] = ..., tool_call_begun: _Optional[_Union[ToolCallBegun, _Mapping]] = ..., tool_call_arguments: _Optional[str] = ..., tool_call: _Optional[_Union[ToolCall, _Mapping]] = ...) -> None: ...

class ToolCallBegun(_message.Message):
    __slots__ = ("index", "id", "name")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_ids", "top_logprobs", "rank")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    rank: int
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., rank: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens", "cache_read_tokens", "reasoning_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_READ_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    reasoning_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cache_read_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue", "prefill", "time_to_first_token", "total", "decode_tokens_per_second", "inter_chunk_p50", "inter_chunk_p95", "inter_chunk_p99")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    INTER_CHUNK_P50_FIELD_NUMBER: _ClassVar[int]
    INTER_CHUNK_P95_FIELD_NUMBER: _ClassVar[int]
    INTER_CHUNK_P99_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    time_to_first_token: _duration_pb2.Duration
    total: _duration_pb2.Duration
    decode_tokens_per_second: float
    inter_chunk_p50: _duration_pb2.Duration
    inter_chunk_p95: _duration_pb2.Duration
    inter_chunk_p99: _duration_pb2.Duration
    def __init__(self, queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., total: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode_tokens_per_second: _Optional[float] = ..., inter_chunk_p50: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., inter_chunk_p95: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., inter_chunk_p99: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DraftCounts(_message.Message):
    __slots__ = ("steps", "drafts", "drafted_tokens", "accepted_tokens", "accepted_per_position", "rollbacks", "rolled_back_tokens", "draft_forwards", "target_forwards", "drafted_per_position", "draft_time", "verify_time", "break_even_tokens", "parked_steps", "capped_steps", "cut_tokens", "unpriced_drafts")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TIME_FIELD_NUMBER: _ClassVar[int]
    VERIFY_TIME_FIELD_NUMBER: _ClassVar[int]
    BREAK_EVEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARKED_STEPS_FIELD_NUMBER: _ClassVar[int]
    CAPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    CUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNPRICED_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    rollbacks: int
    rolled_back_tokens: int
    draft_forwards: int
    target_forwards: int
    drafted_per_position: _containers.RepeatedScalarFieldContainer[int]
    draft_time: _duration_pb2.Duration
    verify_time: _duration_pb2.Duration
    break_even_tokens: float
    parked_steps: int
    capped_steps: int
    cut_tokens: int
    unpriced_drafts: int
    def __init__(self, steps: _Optional[int] = ..., drafts: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., accepted_per_position: _Optional[_Iterable[int]] = ..., rollbacks: _Optional[int] = ..., rolled_back_tokens: _Optional[int] = ..., draft_forwards: _Optional[int] = ..., target_forwards: _Optional[int] = ..., drafted_per_position: _Optional[_Iterable[int]] = ..., draft_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., verify_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., break_even_tokens: _Optional[float] = ..., parked_steps: _Optional[int] = ..., capped_steps: _Optional[int] = ..., cut_tokens: _Optional[int] = ..., unpriced_drafts: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "usage", "timings", "counts", "stop", "degraded", "mode", "choice", "tool_calls", "stop_token_id", "warning", "cost", "currency", "quality", "remote", "failed_over")
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    FAILED_OVER_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    usage: Usage
    timings: Timings
    counts: DraftCounts
    stop: str
    degraded: str
    mode: DecodeMode
    choice: int
    tool_calls: bool
    stop_token_id: int
    warning: str
    cost: float
    currency: str
    quality: QualityClass
    remote: RemoteCounts
    failed_over: str
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., counts: _Optional[_Union[DraftCounts, _Mapping]] = ..., stop: _Optional[str] = ..., degraded: _Optional[str] = ..., mode: _Optional[_Union[DecodeMode, str]] = ..., choice: _Optional[int] = ..., tool_calls: _Optional[bool] = ..., stop_token_id: _Optional[int] = ..., warning: _Optional[str] = ..., cost: _Optional[float] = ..., currency: _Optional[str] = ..., quality: _Optional[_Union[QualityClass, str]] = ..., remote: _Optional[_Union[RemoteCounts, _Mapping]] = ..., failed_over: _Optional[str] = ...) -> None: ...

class RemoteCounts(_message.Message):
    __slots__ = ("steps", "proposed_tokens", "verdicts", "tokens", "wasted_tokens", "hidden_round_trips", "late_verdicts", "reopened", "round_trip", "queue_time", "target_time")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WASTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_ROUND_TRIPS_FIELD_NUMBER: _ClassVar[int]
    LATE_VERDICTS_FIELD_NUMBER: _ClassVar[int]
    REOPENED_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    TARGET_TIME_FIELD_NUMBER: _ClassVar[int]
    steps: int
    proposed_tokens: int
    verdicts: int
    tokens: int
    wasted_tokens: int
    hidden_round_trips: int
    late_verdicts: int
    reopened: int
    round_trip: _duration_pb2.Duration
    queue_time: _duration_pb2.Duration
    target_time: _duration_pb2.Duration
    def __init__(self, steps: _Optional[int] = ..., proposed_tokens: _Optional[int] = ..., verdicts: _Optional[int] = ..., tokens: _Optional[int] = ..., wasted_tokens: _Optional[int] = ..., hidden_round_trips: _Optional[int] = ..., late_verdicts: _Optional[int] = ..., reopened: _Optional[int] = ..., round_trip: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., queue_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., target_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("rows", "strategy", "reason", "refusal", "prompt_tokens", "expected_tokens", "currency", "quality")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[RouteRow]
    strategy: Strategy
    reason: str
    refusal: str
    prompt_tokens: int
    expected_tokens: int
    currency: str
    quality: QualityClass
    def __init__(self, rows: _Optional[_Iterable[_Union[RouteRow, _Mapping]]] = ..., strategy: _Optional[_Union[Strategy, str]] = ..., reason: _Optional[str] = ..., refusal: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., expected_tokens: _Optional[int] = ..., currency: _Optional[str] = ..., quality: _Optional[_Union[QualityClass, str]] = ...) -> None: ...

class RouteRow(_message.Message):
    __slots__ = ("strategy", "unavailable", "total", "load", "queue", "prefill", "decode", "round_trips", "tokens_per_second", "measured", "cost", "quality", "chosen", "why")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    strategy: Strategy
    unavailable: str
    total: _duration_pb2.Duration
    load: _duration_pb2.Duration
    queue: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    decode: _duration_pb2.Duration
    round_trips: _duration_pb2.Duration
    tokens_per_second: float
    measured: bool
    cost: float
    quality: QualityClass
    chosen: bool
    why: str
    def __init__(self, strategy: _Optional[_Union[Strategy, str]] = ..., unavailable: _Optional[str] = ..., total: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., load: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., round_trips: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tokens_per_second: _Optional[float] = ..., measured: _Optional[bool] = ..., cost: _Optional[float] = ..., quality: _Optional[_Union[QualityClass, str]] = ..., chosen: _Optional[bool] = ..., why: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model", "draft_model", "context_length", "vocab_size", "speculation_available", "speculation_reason", "default_max_tokens", "max_draft_tokens", "weight_bytes", "draft_weight_bytes", "chat_template", "light_draft_model", "light_draft_reason", "depth_mode", "drafters", "batched", "batched_reason", "architecture", "layers", "partial_prefixes", "position_bytes", "sequence_bytes", "largest_context", "end_tokens", "tools", "thinking", "left_out", "quality", "generic_tools", "draft_head")
    class LayersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class EndTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_REASON_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    LIGHT_DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    LIGHT_DRAFT_REASON_FIELD_NUMBER: _ClassVar[int]
    DEPTH_MODE_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    BATCHED_FIELD_NUMBER: _ClassVar[int]
    BATCHED_REASON_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    POSITION_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    END_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    GENERIC_TOOLS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_HEAD_FIELD_NUMBER: _ClassVar[int]
    model: str
    draft_model: str
    context_length: int
    vocab_size: int
    speculation_available: bool
    speculation_reason: str
    default_max_tokens: int
    max_draft_tokens: int
    weight_bytes: int
    draft_weight_bytes: int
    chat_template: bool
    light_draft_model: str
    light_draft_reason: str
    depth_mode: DepthMode
    drafters: _containers.RepeatedScalarFieldContainer[str]
    batched: bool
    batched_reason: str
    architecture: str
    layers: _containers.ScalarMap[str, int]
    partial_prefixes: bool
    position_bytes: int
    sequence_bytes: int
    largest_context: int
    end_tokens: _containers.ScalarMap[int, str]
    tools: bool
    thinking: bool
    left_out: str
    quality: QualityClass
    generic_tools: bool
    draft_head: DraftHead
    def __init__(self, model: _Optional[str] = ..., draft_model: _Optional[str] = ..., context_length: _Optional[int] = ..., vocab_size: _Optional[int] = ..., speculation_available: _Optional[bool] = ..., speculation_reason: _Optional[str] = ..., default_max_tokens: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., draft_weight_bytes: _Optional[int] = ..., chat_template: _Optional[bool] = ..., light_draft_model: _Optional[str] = ..., light_draft_reason: _Optional[str] = ..., depth_mode: _Optional[_Union[DepthMode, str]] = ..., drafters: _Optional[_Iterable[str]] = ..., batched: _Optional[bool] = ..., batched_reason: _Optional[str] = ..., architecture: _Optional[str] = ..., layers: _Optional[_Mapping[str, int]] = ..., partial_prefixes: _Optional[bool] = ..., position_bytes: _Optional[int] = ..., sequence_bytes: _Optional[int] = ..., largest_context: _Optional[int] = ..., end_tokens: _Optional[_Mapping[int, str]] = ..., tools: _Optional[bool] = ..., thinking: _Optional[bool] = ..., left_out: _Optional[str] = ..., quality: _Optional[_Union[QualityClass, str]] = ..., generic_tools: _Optional[bool] = ..., draft_head: _Optional[_Union[DraftHead, _Mapping]] = ...) -> None: ...

class DraftHead(_message.Message):
    __slots__ = ("kind", "family", "files", "file_bytes", "weight_bytes", "form", "accepted", "chance", "positions", "refusal")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHANCE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    family: str
    files: _containers.RepeatedScalarFieldContainer[str]
    file_bytes: int
    weight_bytes: int
    form: str
    accepted: float
    chance: float
    positions: int
    refusal: str
    def __init__(self, kind: _Optional[str] = ..., family: _Optional[str] = ..., files: _Optional[_Iterable[str]] = ..., file_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., form: _Optional[str] = ..., accepted: _Optional[float] = ..., chance: _Optional[float] = ..., positions: _Optional[int] = ..., refusal: _Optional[str] = ...) -> None: ...
