"""The prefix cache: chained block hashes as vLLM computes them, LRU eviction, and the events about both."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from epd_router.mock.config import EngineConfig

Event = dict[str, Any]
SEED = "vllm-none-hash"  # the default seed from 0.29 on


@dataclass(frozen=True)
class Block:
    """A full block: its hash, its token ids, and what besides the tokens went into the hash."""

    hash: bytes
    tokens: tuple[int, ...]
    extra: list[Any] | None

    @property
    def number(self) -> int:
        """The hash as events carry it."""
        return int.from_bytes(self.hash[-8:], "big")


@dataclass(frozen=True)
class Run:
    """The placeholder run of a media item."""

    id: str
    start: int
    length: int


class BlockPool:
    """Blocks that are known to one engine."""

    def __init__(self, config: EngineConfig, publish: Callable[[list[Event]], None]) -> None:
        self.size = config.block_size
        self.queries = 0
        self.hits = 0
        self._capacity = config.num_blocks
        self._tagged = config.minor >= 31
        self._root = _digest(SEED) if config.minor >= 29 else os.urandom(32)
        self._publish = publish
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def chain(self, ids: Sequence[int], runs: Sequence[Run], salt: str | None = None) -> list[Block]:
        """The full blocks of a token sequence."""
        made: list[Block] = []
        parent = self._root
        for start in range(0, len(ids) - self.size + 1, self.size):
            tokens = tuple(ids[start : start + self.size])
            near = [run for run in runs if run.start < start + self.size and run.start + run.length > start]
            media = [(run.id, run.start - start) for run in near]
            keys: list[Any] = [("mm", *pair) for pair in media] if self._tagged else list(media)
            extra: list[Any] = [list(pair) for pair in media]
            if salt and not start:
                keys.append(("cache_salt", salt) if self._tagged else salt)
                extra.append(salt)
            parent = _digest((parent, tokens, tuple(keys) or None))
            made.append(Block(parent, tokens, extra or None))
        return made

    def cached(self, chain: Sequence[Block], length: int) -> int:
        """Tokens of a prompt of `length` that need not be computed: at least one always is."""
        count = 0
        while count < len(chain) and chain[count].hash in self._known:
            count += 1
        if count * self.size >= length:
            count -= 1
        self.queries += length
        self.hits += max(0, count) * self.size
        return max(0, count) * self.size

    def store(self, chain: Sequence[Block], cached: int = 0) -> int:
        """Keep the blocks of a chain after its first `cached` tokens; returns the tokens in them."""
        for block in chain[: cached // self.size]:
            self._known.move_to_end(block.hash) if block.hash in self._known else None
        new = list(chain[cached // self.size :])
        if not new:
            return 0
        parent = chain[cached // self.size - 1].number if cached else None
        for block in new:
            self._known[block.hash] = None
            self._known.move_to_end(block.hash)
        events = [self._stored(new, parent)]
        gone = [self._known.popitem(last=False)[0] for _ in range(len(self._known) - self._capacity)]
        if gone:
            numbers = [int.from_bytes(key[-8:], "big") for key in gone]
            events.insert(0, {"type": "BlockRemoved", "block_hashes": numbers, "medium": "GPU", "group_idx": 0})
        self._publish(events)
        return len(new) * self.size

    def announce(self, chain: Sequence[Block]) -> None:
        """Tell of blocks again that are known."""
        known = [block for block in chain if block.hash in self._known]
        if known:
            self._publish([self._stored(known, None)])

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._publish([{"type": "AllBlocksCleared"}])

    def _stored(self, blocks: Sequence[Block], parent: int | None) -> Event:
        return {
            "type": "BlockStored", "block_hashes": [block.number for block in blocks], "parent_block_hash": parent,
            "token_ids": [token for block in blocks for token in block.tokens], "block_size": self.size, "lora_id": None,
            "medium": "GPU", "lora_name": None, "extra_keys": [block.extra for block in blocks], "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }  # fmt: skip


def _digest(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()
