"""Computes gradients with two single-threaded workers that take micro-batches from one queue.

On a shared machine this is faster than one pass on two threads. There every small matrix product waits for the slower
core; here a core that is busy elsewhere only takes fewer micro-batches.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from training.model import Llama

LossFunction = Callable[[Llama, Tensor, Tensor, Tensor], Tensor]
"""Takes model, inputs, targets and weights; returns the weighted sum of the losses."""
MICRO_BATCHES = 4


class Workers:
    def __init__(self, model: Llama, loss_of: LossFunction, count: int = 2) -> None:
        self.replicas = [model, *(copy.deepcopy(model) for _ in range(count - 1))]
        for replica in self.replicas[1:]:
            for own, shared in zip(replica.parameters(), model.parameters(), strict=True):
                own.data = shared.data  # weights are shared, gradients are not
        self.loss_of = loss_of
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def map(self, work: Callable[[Any], None], items: list[Any]) -> None:
        list(self.pool.map(work, items))

    def gradients(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> float:
        """Computes the batch's mean gradient into the first replica's parameters. Returns the mean loss."""
        total = float(weights.sum())
        parts = deque(zip(*(x.chunk(MICRO_BATCHES) for x in (inputs, targets, weights)), strict=True))

        def work(replica: Llama) -> float:
            done = 0.0
            while True:
                try:
                    part = parts.popleft()
                except IndexError:
                    return done
                loss = self.loss_of(replica, *part) / total
                loss.backward()
                done += loss.item()

        loss = sum(self.pool.map(work, self.replicas))
        for replica in self.replicas[1:]:
            for own, main in zip(replica.parameters(), self.replicas[0].parameters(), strict=True):
                if own.grad is not None:
                    main.grad = own.grad if main.grad is None else main.grad.add_(own.grad)
                    own.grad = None
        return loss
