"""A small typed client for the commands, tests and benchmarks, and for programs that do not use generated code."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeAlias

import grpc
from google.rpc import error_details_pb2 as error_details  # type: ignore[import-untyped]
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

# Documented imports: programs import these names from here.
from draftd.client.gathering import Answer as Answer
from draftd.client.gathering import Piece as Piece
from draftd.client.gathering import gather as gather
from draftd.client.gathering import split as split
from draftd.client.signals import defer_signals
from draftd.core import DepthMode, DrafterName, FallbackLevel, ModePreference, SamplingParams, WorkloadClass
from draftd.errors import DraftdError, InvalidRequest
from draftd.protocol import DETAILS_KEY, MESSAGE_SLACK, duration, number, sampling_message
from draftd.strategies import QualityClass, RemoteLevel, Strategy
from draftd.v1 import control_pb2, control_pb2_grpc, inference_pb2_grpc
from draftd.v1 import inference_pb2 as pb

_LOOK_SECONDS = 0.5  # between two checks whether the model is loaded

Message = tuple[str, str]  # role, content
ModelReply: TypeAlias = pb.GetModelResponse
StatusReply: TypeAlias = control_pb2.GetStatusResponse


_TOO_LARGE = re.compile(r"SERVER: Received message larger than max \((\d+) vs\. (\d+)\)")  # gRPC's message


class CallError(DraftdError):
    """A call that the daemon refused, or that never reached it. `code` is the status; `fields` describes each wrong
    field."""

    def __init__(self, error: grpc.RpcError) -> None:
        code, message = grpc.StatusCode.UNKNOWN, str(error)
        trailing: Sequence[Any] = ()
        if isinstance(error, grpc.Call | grpc.aio.AioRpcError):
            code, message, trailing = error.code(), error.details() or "", error.trailing_metadata() or ()
        if too_large := _TOO_LARGE.search(message):
            size, most = map(int, too_large.groups())
            code = grpc.StatusCode.INVALID_ARGUMENT
            allowed = f"at most {most // MESSAGE_SLACK} bytes (server.max_message_bytes)"
            message = f"message: got {size} bytes; allowed: {allowed}"
        rich = status_pb2.Status()
        for key, value in trailing:
            if key == DETAILS_KEY:
                rich.ParseFromString(value)
        retry_after: float | None = None
        self.reason = ""
        self.fields: dict[str, str] = {}
        retry, info, wrong = error_details.RetryInfo(), error_details.ErrorInfo(), error_details.BadRequest()
        for detail in rich.details:
            if detail.Unpack(retry):
                retry_after = retry.retry_delay.ToNanoseconds() / 1e9
            elif detail.Unpack(info):
                self.reason = info.reason
            elif detail.Unpack(wrong):
                self.fields = {violation.field: violation.description for violation in wrong.field_violations}
        super().__init__(f"{code.name}: {message}", retry_after=retry_after)
        self.code = code
        self.details = message


@dataclass(frozen=True)
class Ask:
    """One request to a daemon: `messages`, a raw `prompt`, or `tokens`. The daemon chooses the value of each field that
    is None. Fields for tools and the chat template are sent only with `messages`. `json_schema`: the schema that the
    answer must follow."""

    prompt: str | None = None
    messages: Sequence[Message | pb.ChatMessage] | None = None
    tools: Sequence[pb.Tool] = ()
    tool_choice: pb.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    template_arguments: Mapping[str, Any] | None = None
    continue_final_message: bool = False
    tokens: Sequence[int] | None = None
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    mode: ModePreference = ModePreference.AUTO
    max_draft_tokens: int | None = None
    drafter: DrafterName | None = None
    depth_mode: DepthMode | None = None
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""
    json_schema: str = ""
    strategy: Strategy | None = None
    quality: QualityClass | None = None
    max_seconds: float | None = None
    max_cost: float | None = None
    skip_prefix_cache: bool = False

    def message(self, **more: Any) -> pb.GenerateRequest:
        """`more`: other fields of the request's message, such as `logprobs` or `n`. Raises InvalidRequest for two
        prompts."""
        prompts = [name for name in ("prompt", "messages", "tokens") if getattr(self, name) is not None]
        if len(prompts) > 1:
            raise InvalidRequest(prompts[0], getattr(self, prompts[0]), f"only one of {', '.join(prompts)}")
        if self.json_schema:
            more["response_format"] = pb.ResponseFormat(json_schema=self.json_schema)
        arguments = self.template_arguments
        chat = pb.ChatInput(
            messages=[
                message if isinstance(message, pb.ChatMessage) else pb.ChatMessage(role=message[0], content=message[1])
                for message in self.messages or ()
            ],
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            template_arguments=json.dumps(dict(arguments)) if arguments else "",
            continue_final_message=self.continue_final_message,
        )
        return pb.GenerateRequest(
            prompt=self.prompt,
            chat=None if self.messages is None else chat,
            tokens=None if self.tokens is None else pb.TokenInput(ids=self.tokens),
            sampling=sampling_message(self.sampling),
            max_tokens=self.max_tokens,
            stop=self.stop,
            mode=number(pb.DecodeMode, self.mode),
            max_draft_tokens=self.max_draft_tokens,
            drafter=self.drafter or "",
            depth_mode=number(pb.DepthMode, self.depth_mode),
            workload=number(pb.WorkloadClass, self.workload),
            caller=self.caller,
            strategy=number(pb.Strategy, self.strategy),
            quality=number(pb.QualityClass, self.quality),
            max_seconds=self.max_seconds,
            max_cost=self.max_cost,
            skip_prefix_cache=self.skip_prefix_cache,
            **more,
        )


class DraftdClient:
    """One connection. Use it as a context manager, or call `close`. Calls raise CallError."""

    def __init__(
        self,
        target: str,
        token: str | None = None,
        tls_ca: Path | None = None,
        *,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        tls: bool = False,
    ) -> None:
        """`tls_ca` is the authority of the daemon's certificate; `tls` without it trusts the system's authorities.
        `tls_cert` and `tls_key` are the client's own, for a daemon that requires a client certificate."""
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.keepalive_time_ms", 60_000),
            # The default of two minutes would notice a restarted daemon late.
            ("grpc.max_reconnect_backoff_ms", 5_000),
        ]
        if tls or tls_ca or tls_cert:
            credentials = grpc.ssl_channel_credentials(_read(tls_ca), _read(tls_key), _read(tls_cert))
            self._channel = grpc.secure_channel(target, credentials, options)
        else:
            self._channel = grpc.insecure_channel(target, options)
        self.target = target
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._control = control_pb2_grpc.ControlServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def wait_until_loaded(
        self, seconds: float, progress: Callable[[str], None] = lambda line: None
    ) -> pb.GetModelResponse:
        """Waits up to `seconds` for the model to load, and returns it. `progress` receives each new line about the
        loading. Raises CallError, at once if no daemon answers."""
        deadline, shown = time.monotonic() + seconds, ""
        while True:
            try:
                return self.model()
            except CallError as error:
                loading = error.code is grpc.StatusCode.UNAVAILABLE and error.retry_after is not None
                if not loading or time.monotonic() >= deadline:
                    raise
                if error.details != shown:
                    shown = error.details
                    progress(shown)
                time.sleep(min(error.retry_after or 0.0, _LOOK_SECONDS, max(0.0, deadline - time.monotonic())))

    def generate(
        self, prompt: str | None = None, *, timeout: float | None = None, **request_fields: Any
    ) -> Generator[pb.GenerateResponse, None, None]:
        """Streams one answer. `request_fields` are those of `message_of`. The request is sent when iteration begins;
        closing the iterator cancels it."""
        return self.generate_raw(message_of(prompt, **request_fields), timeout=timeout)

    def generate_raw(
        self, request: pb.GenerateRequest, *, timeout: float | None = None
    ) -> Generator[pb.GenerateResponse, None, None]:
        """Streams the answer to a request message, as `generate` does."""
        yield from _read_stream(self._begin(self._inference.Generate, request, timeout))

    def route(self, request: pb.GenerateRequest, *, timeout: float = 10.0) -> pb.RouteResponse:
        """The strategy that the request would get now, and why."""
        return self._call(self._inference.Route, pb.RouteRequest(request=request), timeout)  # type: ignore[no-any-return]

    def model(self, *, timeout: float = 10.0) -> pb.GetModelResponse:
        return self._call(self._inference.GetModel, pb.GetModelRequest(), timeout)  # type: ignore[no-any-return]

    def status(self, *, timeout: float = 10.0) -> control_pb2.GetStatusResponse:
        return self._call(self._control.GetStatus, control_pb2.GetStatusRequest(), timeout)  # type: ignore[no-any-return]

    def manifest(self, *, timeout: float = 600.0) -> control_pb2.GetManifestResponse:
        """The models, the software and the machine that serve. The first call hashes the model files, which takes a
        while for large ones."""
        return self._call(self._control.GetManifest, control_pb2.GetManifestRequest(), timeout)  # type: ignore[no-any-return]

    def depth(self) -> control_pb2.GetDepthResponse:
        """The measured costs and yields of drafting."""
        return self._call(self._control.GetDepth, control_pb2.GetDepthRequest())  # type: ignore[no-any-return]

    def get_flag(
        self,
        *,
        workload: WorkloadClass = WorkloadClass.UNSPECIFIED,
        caller: str = "",
        key: str = "",
        prompt_tokens: int = 0,
    ) -> control_pb2.GetFlagResponse:
        """`key`: speculative-decoding, which is the default, or decoding-strategy."""
        request = control_pb2.GetFlagRequest(
            workload=number(pb.WorkloadClass, workload), caller=caller, key=key, prompt_tokens=prompt_tokens
        )
        return self._call(self._control.GetFlag, request)  # type: ignore[no-any-return]

    def set_flag(self, variant: str, *, key: str = "") -> control_pb2.SetFlagResponse:
        """Sets the flag's variant, and returns when the change is in force."""
        return self._call(self._control.SetFlag, control_pb2.SetFlagRequest(variant=variant, key=key))  # type: ignore[no-any-return]

    def level(self) -> control_pb2.FallbackState:
        """The fallback level in force, and the signals that ask for another."""
        return self._call(self._control.GetLevel, control_pb2.GetLevelRequest()).fallback  # type: ignore[no-any-return]

    def hold_level(self, level: FallbackLevel | RemoteLevel, seconds: float | None = None) -> control_pb2.FallbackState:
        """Holds the ladder, or the remote's level, on `level` for `seconds`, or until it is released if None. Returns
        the new state."""
        request = control_pb2.HoldLevelRequest(level=level.label, expires_in=duration(seconds))
        return self._call(self._control.HoldLevel, request).fallback  # type: ignore[no-any-return]

    def release_level(self) -> control_pb2.ReleaseLevelResponse:
        return self._call(self._control.ReleaseLevel, control_pb2.ReleaseLevelRequest())  # type: ignore[no-any-return]

    def transitions(self, limit: int = 0, *, after: int = 0) -> Sequence[control_pb2.Transition]:
        """The latest `limit` transitions after the number `after`, oldest first. With a limit of 0 the daemon decides
        how many."""
        request = control_pb2.ListTransitionsRequest(limit=limit, after_number=after)
        return self._call(self._control.ListTransitions, request).transitions  # type: ignore[no-any-return]

    def watch(
        self, after: int | None = None, *, begun: Callable[[], None] = lambda: None, timeout: float | None = None
    ) -> Iterator[control_pb2.Transition]:
        """Streams each transition as it happens. With `after`, first streams the stored transitions that have a higher
        number. The call begins with the iteration, and ends when the iterator is closed. `begun` is called once; no
        transition after that call is missed."""
        call = self._begin(self._control.Watch, control_pb2.WatchRequest(after_number=after), timeout)
        try:
            call.initial_metadata()  # waits for the metadata; a refusal is raised at the first message
            if call.is_active():
                begun()
            for response in _read_stream(call):
                yield response.transition
        finally:
            call.cancel()

    def probe(self, *, timeout: float = 600.0) -> control_pb2.RunProbeResponse:
        """Probes the next level up, and waits for the result."""
        return self._call(self._control.RunProbe, control_pb2.RunProbeRequest(), timeout)  # type: ignore[no-any-return]

    def canaries(self, *, timeout: float = 600.0) -> control_pb2.RunCanariesResponse:
        """Runs the quality canaries with and without drafts, and waits for the result."""
        return self._call(self._control.RunCanaries, control_pb2.RunCanariesRequest(), timeout)  # type: ignore[no-any-return]

    def reload_draft(self, *, forget: bool = False, timeout: float = 600.0) -> control_pb2.ReloadDraftResponse:
        """Makes the daemon read the draft's weights again, and waits for it. `forget`: also discards what was learnt
        about the old draft."""
        request = control_pb2.ReloadDraftRequest(forget_baselines=forget)
        return self._call(self._control.ReloadDraft, request, timeout)  # type: ignore[no-any-return]

    def pin_prefix(self, request: control_pb2.PinPrefixRequest, *, timeout: float = 600.0) -> control_pb2.PinnedPrefix:
        """Makes the daemon compute a prefix and keep it on disk under a name, and waits for it."""
        return self._call(self._control.PinPrefix, request, timeout).prefix  # type: ignore[no-any-return]

    def prefixes(self) -> control_pb2.ListPrefixesResponse:
        return self._call(self._control.ListPrefixes, control_pb2.ListPrefixesRequest())  # type: ignore[no-any-return]

    def drop_prefix(self, name: str) -> None:
        self._call(self._control.DropPrefix, control_pb2.DropPrefixRequest(name=name))

    def serving(self, *, timeout: float = 2.0) -> bool:
        """Whether the daemon has loaded its model and accepts requests. False if no daemon listens."""
        with contextlib.suppress(grpc.RpcError):
            answer = self._health.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False

    def _begin(self, method: Any, request: Any, timeout: float | None) -> Any:
        # A signal between the start of a stream and its handover to gRPC's threads would keep the channel from ever
        # closing.
        with defer_signals():
            return method(request, metadata=self._metadata, timeout=timeout)

    def _call(self, method: Any, request: Any, timeout: float = 10.0) -> Any:
        try:
            return method(request, metadata=self._metadata, timeout=timeout)
        except grpc.RpcError as error:
            raise CallError(error) from None


def message_of(prompt: str | None = None, **more: Any) -> pb.GenerateRequest:
    """Builds the request's message. `more`: fields of `Ask` or of the message."""
    own = {name: more.pop(name) for name in more.keys() & {field.name for field in fields(Ask)}}
    return Ask(prompt, **own).message(**more)


def _read_stream(call: Any) -> Iterator[Any]:
    """Yields the call's messages. Cancels the call if iteration stops early; raises CallError."""
    try:
        yield from call
    except grpc.RpcError as error:
        raise CallError(error) from None
    finally:
        call.cancel()


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
