"""Names for gRPC's types, which are generic to a type checker and not at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

if TYPE_CHECKING:
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    Interceptor: TypeAlias = grpc.aio.ServerInterceptor[Any, Any]
else:
    Context: TypeAlias = grpc.aio.ServicerContext
    Interceptor: TypeAlias = grpc.aio.ServerInterceptor
