"""Real vLLM engines on the CPU, one server per role.

usage: fleet.py ENV_DIR RUN_DIR [ROLE...]      (prints {role: url} and serves until interrupted)

Roles: `agg` aggregated; `e` encoder; `p` prefill; `d` decode; `pp` and `pd` prefill and decode whose KV is pushed instead
of pulled. A prefill engine is a whole engine that also consumes embeddings, so it serves as `prefill_decode` too.

float32, because the bfloat16 attention kernel stops a decode-only worker on AMX machines; the block size must be a
multiple of 32 on a CPU. Greedy answers of all topologies are equal token by token.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROLES = ("agg", "e", "p", "d")
PUSH_ROLES = ("pp", "pd")
CONNECTORS = {"p": "NixlConnector", "d": "NixlConnector", "pp": "NixlPushConnector", "pd": "NixlPushConnector"}
MODEL = "tiny"
BOOT_SECONDS = 480
PATIENCE_SECONDS = 240
STOP_SECONDS = 15
ESTABLISHED = "01"  # in /proc/net/tcp
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker lives in the engine's process: a third less to boot, no spinning
    "VLLM_ENGINE_READY_TIMEOUT_S": str(BOOT_SECONDS),
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONUNBUFFERED": "1",
}
ARGUMENTS = (
    "--host 127.0.0.1 --max-model-len 8192 --max-num-seqs 8 --dtype float32 --block-size 32 --enforce-eager "
    "--enable-request-id-headers --enable-prompt-tokens-details --enable-auto-tool-choice --tool-call-parser hermes"
)


class EngineError(RuntimeError):
    """An engine that did not start, with the end of its log."""


def free_port() -> int:
    """A port below the range from which the kernel serves outgoing connections, so that it is still free after a long boot."""
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(15000, 32000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def kv_config(role: str) -> str:
    config = {"kv_connector": CONNECTORS[role], "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    if role == "pp":  # a push is addressed before prefill has said who it is; pulls get a new id with each boot
        config["engine_id"] = "engine-pp"
    return json.dumps(config)


def ec_config(role: str, store: Path) -> str:
    return json.dumps(
        {
            "ec_connector": "ECExampleConnector",
            "ec_role": role,
            "ec_connector_extra_config": {"shared_storage_path": str(store)},
        }
    )


def transfers(role: str, run: Path) -> list[str]:
    """The arguments that make an engine an encoder, a prefill or a decode worker."""
    embeddings = {"e": "ec_producer", "p": "ec_consumer", "pp": "ec_consumer"}.get(role)
    arguments = ["--ec-transfer-config", ec_config(embeddings, run / "ec")] if embeddings else []
    return [*arguments, "--kv-transfer-config", kv_config(role)] if role in CONNECTORS else arguments


@dataclasses.dataclass
class Engine:
    """One engine server and its processes; `start` after `kill` brings it back on the same port."""

    role: str
    environment: Path
    model: Path
    run: Path
    port: int = dataclasses.field(default_factory=free_port)
    side_port: int = dataclasses.field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.run / f"{self.role}.log"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except OSError:
            return False

    def start(self) -> None:
        command = [str(self.environment / "bin" / "vllm"), "serve", str(self.model), "--served-model-name", MODEL]
        command += ["--port", str(self.port), *ARGUMENTS.split(), *transfers(self.role, self.run)]
        command += ["--allowed-local-media-path", str(self.run / "media")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **ENVIRONMENT, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, seconds: float = BOOT_SECONDS) -> None:
        """Return once the engine answers; raise as soon as it has died."""
        end = time.monotonic() + seconds
        while not self.healthy:
            if not self.alive or time.monotonic() > end:
                raise EngineError(f"engine {self.role} did not start; the end of its log:\n{self.tail()}")
            time.sleep(0.5)

    def wait_or_restart(self) -> None:
        """Wait, with a second try: once in forty boots vLLM's processes waited for each other at start-up, for ever."""
        try:
            self.wait(PATIENCE_SECONDS)
        except EngineError:
            self.stop()
            self.start()
            self.wait(PATIENCE_SECONDS)

    def pause(self) -> None:
        """Freeze every process of the engine: requests are accepted by the kernel and stay unanswered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after a pause."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """No goodbye."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def terminate(self) -> None:
        """Ask the server to end."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask the server to end, then make sure that none of its processes is left."""
        self.terminate()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))

    def unread_connections(self) -> int:
        """Connections to the server with bytes that it has not read."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        mine = [row for row in rows if row[1].endswith(f":{self.port:04X}") and row[3] == ESTABLISHED]
        return sum(not row[4].endswith(":00000000") for row in mine)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


Fleet = dict[str, Engine]


@contextlib.contextmanager
def booted(environment: Path, model: Path, run: Path, roles: tuple[str, ...] = ROLES) -> Iterator[Fleet]:
    """Start all roles side by side (a boot is mostly imports), and leave no process behind."""
    for folder in ("ec", "media"):
        (run / folder).mkdir(parents=True, exist_ok=True)
    engines = {role: Engine(role, environment, model, run) for role in roles}
    try:
        for engine in engines.values():
            engine.start()
        for engine in engines.values():
            engine.wait_or_restart()
        yield engines
    finally:
        for engine in engines.values():
            engine.terminate()
        for engine in engines.values():
            engine.stop()


def tiny_model(environment: Path, cache: Path) -> Path:
    """The checkpoint, made once for each version of the script that makes it."""
    script = Path(__file__).with_name("make_tiny_vlm.py")
    model = cache / f"tiny-qwen2-vl-{hashlib.sha256(script.read_bytes()).hexdigest()[:12]}"
    if not model.exists():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=cache))
        subprocess.run([environment / "bin" / "python", script, made], check=True)
        made.chmod(0o755)
        with contextlib.suppress(OSError):  # somebody else was faster
            made.rename(model)
        shutil.rmtree(made, ignore_errors=True)
    return model


def main() -> None:
    environment, run, *roles = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    model = tiny_model(Path(environment), Path(environment).parent)
    with booted(Path(environment), model, Path(run), tuple(roles) or ROLES) as engines:
        print(json.dumps({role: engine.url for role, engine in engines.items()}), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
