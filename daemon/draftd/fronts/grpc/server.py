"""The gRPC listener: services, health, reflection, TLS."""

from __future__ import annotations

import contextlib
import logging
import ssl
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from draftd.errors import ConfigError, DraftdError
from draftd.fronts.grpc.control import ControlServicer
from draftd.fronts.grpc.inference import InferenceServicer
from draftd.fronts.grpc.interceptors import AuthInterceptor, Context, ErrorInterceptor
from draftd.fronts.grpc.verification import VerificationServicer
from draftd.fronts.identity import identity_of
from draftd.hardware.descriptors import most_connections
from draftd.listening import free_port
from draftd.protocol import MESSAGE_SLACK, RELAYED_KEY
from draftd.rate_limited_log import RateLimitedLog
from draftd.service.inference import InferenceService
from draftd.settings import ServerSettings, secrets_of
from draftd.settings.certificates import load_certificates, server_certificates
from draftd.telemetry.rpc import RpcInterceptor
from draftd.v1 import (
    control_pb2,
    control_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    verification_pb2,
    verification_pb2_grpc,
)

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
CONTROL = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name
VERIFICATION = verification_pb2.DESCRIPTOR.services_by_name["VerificationService"].full_name

log = logging.getLogger(__name__)


class GrpcServer:
    """Listens from `start` on. Health is NOT_SERVING until `serving` is called; the control service's is SERVING at
    once."""

    def __init__(
        self,
        settings: ServerSettings,
        service: InferenceService,
        control: ControlServicer,
        verification: VerificationServicer,
        telemetry: RpcInterceptor,
    ) -> None:
        """Raises ConfigError if it cannot listen. `telemetry` sees every call first."""
        self._verification, self._log = verification, RateLimitedLog(log)
        # Telemetry is first: it must also see the calls that others refuse.
        interceptors: list[Any] = [telemetry]
        self._auth = AuthInterceptor(secrets_of(settings.token), self._log_refusal)
        if settings.token is not None:
            interceptors.append(self._auth)
        interceptors.append(ErrorInterceptor(settings.max_message_bytes))
        self._server = grpc.aio.server(interceptors=interceptors, options=_options(settings))
        certificates = certificate_configuration(settings)
        self._reloaded: list[grpc.ServerCertificateConfiguration] = []  # for the next handshake
        # Kept here: gRPC holds no reference, and each handshake asks this object for a new certificate.
        self._credentials, self._checks_certificates = None, settings.tls_client_ca is not None
        if certificates is not None:
            self._credentials = grpc.dynamic_ssl_server_credentials(
                certificates,
                self._next_certificates,  # type: ignore[arg-type]  # its stubs lack None
                self._checks_certificates,
            )
        self.port = _bind(self._server, settings, self._credentials)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(  # type: ignore[no-untyped-call]
            InferenceServicer(service, self._identity_of), self._server
        )
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, self._server)  # type: ignore[no-untyped-call]
        verification_pb2_grpc.add_VerificationServiceServicer_to_server(  # type: ignore[no-untyped-call]
            verification, self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if settings.reflection:
            services = [INFERENCE, CONTROL, VERIFICATION, health.SERVICE_NAME, reflection.SERVICE_NAME]
            reflection.enable_server_reflection(services, self._server)

    async def start(self) -> None:
        await self._set_inference(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._health.set(CONTROL, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def serving(self, serving: bool = True) -> None:
        """Sets health to SERVING or NOT_SERVING."""
        status = health_pb2.HealthCheckResponse
        await self._set_inference(status.SERVING if serving else status.NOT_SERVING)

    async def draining(self) -> None:
        """Sets health to NOT_SERVING for good."""
        await self._health.enter_graceful_shutdown()

    def reload(self, settings: ServerSettings, certificates: grpc.ServerCertificateConfiguration | None) -> None:
        """Requires these tokens in new calls, and shows these certificates to new connections."""
        self._auth.tokens = secrets_of(settings.token)
        if certificates is not None:
            self._reloaded = [certificates]

    async def stop(self, grace: float) -> None:
        """Stops listening, and cancels the calls that last longer than `grace` seconds."""
        await self._server.stop(grace)

    def _identity_of(self, context: Context) -> str:
        """Returns the caller's identity; empty for a request that another daemon relays, as that has many callers. A
        token counts only if one is required, and was checked."""
        metadata = context.invocation_metadata() or ()
        if any(key == RELAYED_KEY for key, _ in metadata):
            return ""
        certificate = b""
        if self._checks_certificates:
            pem = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
            if pem is None:
                return ""
            certificate = ssl.PEM_cert_to_DER_cert(pem.decode())
        return identity_of(self._auth.token_of(metadata), certificate)

    def _log_refusal(self, method: str, error: DraftdError, peer: str) -> None:
        if method.startswith(f"/{VERIFICATION}/"):
            self._verification.count_refusal(error, peer)
        else:
            host = peer.rpartition(":")[0]
            self._log.write(logging.WARNING, method, f"{method} of {peer} was refused: {error.message}", host)

    def _next_certificates(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns reloaded certificates once, then None, which keeps the current ones. gRPC calls this on its threads
        at each handshake and replaces certificates without a lock: returning some at every handshake crashes the
        process."""
        with contextlib.suppress(IndexError):
            return self._reloaded.pop()
        return None

    async def _set_inference(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", INFERENCE):
            await self._health.set(service, status)


def _bind(server: grpc.aio.Server, settings: ServerSettings, credentials: grpc.ServerCredentials | None) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.port}"
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise port_error(settings)
    return port


def port_error(settings: ServerSettings) -> ConfigError:
    """The error for a port that cannot be opened."""
    return ConfigError("server.port", settings.port, free_port("server.port", settings.host))


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MESSAGE_SLACK * settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        ("grpc.max_allowed_incoming_connections", most_connections()),
        ("grpc.server_handshake_timeout_ms", 20_000),  # for the client's greeting
        ("grpc.so_reuseport", 0),  # two daemons on one port would share its connections at random
        # Ping silent clients, to notice one whose machine is gone.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Accept any number of pings from clients: by default gRPC closes their connections.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def certificate_configuration(settings: ServerSettings) -> grpc.ServerCertificateConfiguration | None:
    """The server's certificates, or None for plain text. Checks client certificates if their authority is set. Raises
    ConfigError if a file cannot be used."""
    certificates = load_certificates(tuple(server_certificates(settings)))
    if (own := certificates.get("server.tls_cert")) is None:
        return None
    authority = certificates.get("server.tls_client_ca")
    return grpc.ssl_server_certificate_configuration(
        [(own.key_pem, own.pem)], root_certificates=None if authority is None else authority.pem
    )
