"""InferenceService: its calls to the service's requests, the service's events to its messages."""

from __future__ import annotations

import time

from draftd.fronts.grpc import reply
from draftd.fronts.grpc.convert import request_of
from draftd.fronts.grpc.interceptors import Context
from draftd.service.inference import InferenceService
from draftd.v1 import inference_pb2 as pb
from draftd.v1 import inference_pb2_grpc


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802
        return reply.model(self._service.model())

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # noqa: N802
        # A client that leaves cancels this task. The cancellation must leave here, too: gRPC leaks a call whose
        # handler returns instead.
        left = context.time_remaining()
        deadline = None if left is None else time.monotonic() + left
        await self._service.generate(request_of(request, deadline), lambda event: context.write(reply.event(event)))
