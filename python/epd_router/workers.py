"""The worker table: who serves which role of which model, who is fit to, and how loaded each is."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from epd_router._core import Lease, Load, least_loaded
from epd_router.errors import ClientError, ConfigError

if TYPE_CHECKING:
    from epd_router.options import Settings
    from epd_router.upstream import Endpoint
    from epd_router.urls import WorkerSpec


class Role(enum.Enum):
    """What a worker is for."""

    AGGREGATED = "aggregated"
    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    PREFILL_DECODE = "prefill_decode"


# Who can serve a request whole, best first: workers meant for it, then any that has the language model.
WHOLE_ROLES = (Role.AGGREGATED, Role.PREFILL_DECODE, Role.DECODE, Role.PREFILL)


@dataclasses.dataclass(eq=False, slots=True)
class Worker:
    """One engine server. `boot` counts the times it came back, so that knowledge of an earlier life can be dropped."""

    spec: WorkerSpec
    role: Role
    endpoint: Endpoint
    load: Load
    healthy: bool = False
    draining: bool = False
    boot: int = 0
    version: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    cards: tuple[bytes, ...] = ()  # the models' entries of /v1/models, as the worker sent them
    failures: int = 0
    successes: int = 0
    last_error: str = "not probed yet"

    @property
    def id(self) -> str:
        """`host:port`."""
        return self.spec.id

    @property
    def available(self) -> bool:
        """May be given new work."""
        return self.healthy and not self.draining


class Pools:
    """The available workers of one model, by role. Immutable; a new one replaces it when anything changes.

    `roles` are those that the model has workers for, available or not; a worker that has not said yet what it serves may
    be one of them.
    """

    def __init__(self, workers: Iterable[Worker], roles: frozenset[Role] = frozenset()) -> None:
        self.roles = roles
        self._workers: dict[Role, list[Worker]] = {role: [] for role in Role}
        for worker in workers:
            self._workers[worker.role].append(worker)
        self._loads = {role: [worker.load for worker in listed] for role, listed in self._workers.items()}

    def __getitem__(self, role: Role) -> Sequence[Worker]:
        return self._workers[role]

    def pick(self, role: Role, cost: float, avoid: Sequence[Worker] = ()) -> tuple[Worker, Lease] | None:
        """The least loaded worker and a lease of `cost` on it; those in `avoid` only when there is nobody else."""
        workers, loads = self._workers[role], self._loads[role]
        if avoid and (rest := [worker for worker in workers if worker not in avoid]):
            workers, loads = rest, [worker.load for worker in rest]
        index = least_loaded(loads, cost)
        if index < 0:
            return None
        return workers[index], loads[index].lease(cost)


@dataclasses.dataclass(frozen=True)
class Topology:
    """The roles that the configuration has."""

    roles: frozenset[Role]

    @property
    def name(self) -> str:
        """`aggregated`, `P+D`, `E+PD` or `E+P+D`, joined by `, ` where several are configured."""
        names = []
        encode = "E+" if Role.ENCODE in self.roles else ""
        if Role.PREFILL in self.roles:
            names.append(encode + "P+D")
        if Role.PREFILL_DECODE in self.roles:
            names.append(encode + "PD")
        if Role.AGGREGATED in self.roles:
            names.append("aggregated")
        return ", ".join(names)

    def validate(self) -> None:
        """Raise ConfigError saying which role is missing."""
        roles = self.roles
        if not roles:
            raise ConfigError("no workers: give --worker-urls, --prefill-decode, or --prefill and --decode")
        if Role.PREFILL in roles and Role.DECODE not in roles:
            raise ConfigError("--prefill needs --decode: nobody would decode what was prefilled")
        if Role.DECODE in roles and Role.PREFILL not in roles:
            raise ConfigError("--decode needs --prefill: nobody would prefill for it (or name the workers --prefill-decode)")
        if Role.ENCODE in roles and not roles & {Role.PREFILL, Role.PREFILL_DECODE}:
            raise ConfigError("--encode needs --prefill-decode, or --prefill and --decode, to use the embeddings")


def configured(settings: Settings) -> dict[Role, tuple[WorkerSpec, ...]]:
    """The configured workers by role. Raises ConfigError for a wrong mix."""
    roles = {
        Role.AGGREGATED: settings.worker_urls,
        Role.ENCODE: settings.encode,
        Role.PREFILL: settings.prefill,
        Role.DECODE: settings.decode,
        Role.PREFILL_DECODE: settings.prefill_decode,
    }
    seen: dict[str, Role] = {}
    for role, specs in roles.items():
        for spec in specs:
            if seen.setdefault(spec.url, role) is not role:
                raise ConfigError(f"{spec.url} is given as {seen[spec.url].value} and as {role.value}")
    topology = Topology(frozenset(role for role, specs in roles.items() if specs))
    topology.validate()
    check_connectors(settings, topology, settings.prefill)
    if settings.ec_consumer_zmq_addrs:
        roles[Role.PREFILL_DECODE] = with_control_addresses(settings.prefill_decode, settings.ec_consumer_zmq_addrs)
    return roles


def check_connectors(settings: Settings, topology: Topology, prefill: Iterable[WorkerSpec]) -> None:
    """Raise ConfigError where a connector cannot serve the topology."""
    if settings.ec_connector == "mooncake" and Role.ENCODE in topology.roles and Role.PREFILL in topology.roles:
        raise ConfigError("--ec-connector mooncake works with --prefill-decode, not with --prefill and --decode (vLLM 0.32)")
    if settings.kv_connector == "nixl-push" and any(not spec.engine_id for spec in prefill):
        raise ConfigError("--kv-connector nixl-push needs engine_id= on every --prefill worker (its --kv-transfer-config)")


def with_control_addresses(specs: Sequence[WorkerSpec], addresses: Sequence[str]) -> tuple[WorkerSpec, ...]:
    """The workers with the addresses of their control ports. Raises ConfigError."""
    if len(specs) != len(addresses):
        raise ConfigError(f"--ec-consumer-zmq-addrs: {len(addresses)} addresses for {len(specs)} --prefill-decode workers")
    located = []
    for spec, address in zip(specs, addresses, strict=True):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"--ec-consumer-zmq-addrs: {address!r} is not host:port")
        located.append(dataclasses.replace(spec, ec_host=host, ec_port=int(port)))
    return tuple(located)


class Fleet:
    """All workers. One owner changes it (the event loop); requests read `pools`."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._pools: dict[str, Pools] = {}
        self._only: str | None = None
        self._required: frozenset[Role] = frozenset()
        self._topology = Topology(frozenset())

    def __iter__(self) -> Iterator[Worker]:
        return iter(tuple(self._workers.values()))

    def get(self, worker_id: str) -> Worker:
        """By id. Raises ClientError `worker_not_found`."""
        try:
            return self._workers[worker_id]
        except KeyError:
            raise ClientError("worker_not_found", f"no worker {worker_id!r}") from None

    def add(self, worker: Worker) -> None:
        """Take a worker in; it gets work once probed. Raises ConfigError when the URL is there already."""
        if worker.id in self._workers:
            raise ConfigError(f"worker {worker.id} is there already")
        self._workers[worker.id] = worker
        self.changed()

    def remove(self, worker_id: str) -> Worker:
        """Forget a worker; requests it is serving go on."""
        worker = self.get(worker_id)
        del self._workers[worker_id]
        worker.endpoint.close()
        self.changed()
        return worker

    def changed(self) -> None:
        """Rebuild the pools; call after any change of a worker's health, models or draining."""
        self._topology = Topology(self._required | {worker.role for worker in self._workers.values()})
        by_model: dict[str, list[Worker]] = {}
        for worker in self._workers.values():
            for model in worker.models:
                by_model.setdefault(model, []).append(worker)
        unknown = {worker.role for worker in self._workers.values() if not worker.models}
        self._pools = {
            model: Pools((worker for worker in listed if worker.available), frozenset({*unknown, *(each.role for each in listed)}))
            for model, listed in by_model.items()
        }
        # As in vLLM: who names no model means the first one a worker lists; its adapters follow.
        first = {worker.models[0] for worker in self._workers.values() if worker.models}
        self._only = first.pop() if len(first) == 1 else None

    def require(self, roles: Iterable[Role]) -> None:
        """Roles that stay part of the topology when their last worker is removed: those of the configuration."""
        self._required = frozenset(roles)
        self.changed()

    @property
    def topology(self) -> Topology:
        """The configured roles, and those of workers added since."""
        return self._topology

    @property
    def models(self) -> list[str]:
        """Every model any worker has shown."""
        return list(self._pools)

    def pools(self, model: str | None) -> Pools:
        """The pools of a model; without a name those of the only base model. Raises ClientError `model_not_found`."""
        name = self._only if model is None else model
        pools = self._pools.get(name) if name is not None else None
        if pools is not None:
            return pools
        if not self._pools:
            return Pools((), self._topology.roles)
        known = ", ".join(sorted(self._pools))
        what = "no model is named" if model is None else f"the model {model!r} does not exist"
        raise ClientError("model_not_found", f"{what}; served here: {known}", param="model")

    def missing_roles(self) -> list[Role]:
        """Configured roles without an available worker; empty means ready."""
        present = {worker.role for worker in self._workers.values() if worker.available}
        return [role for role in Role if role in self._topology.roles and role not in present]
