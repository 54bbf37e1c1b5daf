"""Real vLLM engines on the CPU, one process per role.

usage: fleet.py ENV_DIR MODEL_DIR RUN_DIR [ROLE...]     (roles: agg e p d; prints {role: url} and serves until interrupted)

float32, because the bfloat16 attention kernel stops a decode-only worker on AMX machines; the block size must be a multiple
of 32. Greedy answers of all topologies are equal token by token.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENGINE_READY_TIMEOUT_S": "600",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONUNBUFFERED": "1",
}
KV = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclasses.dataclass
class Engine:
    """One engine process; `start` again after `kill` brings it back on the same port."""

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

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.environment / "bin" / "vllm"), "serve", str(self.model), *self._arguments()],
                env={**os.environ, **ENVIRONMENT, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _arguments(self) -> list[str]:
        arguments = (
            f"--served-model-name tiny --host 127.0.0.1 --port {self.port} --max-model-len 8192 --max-num-seqs 8 --dtype float32 "
            "--block-size 32 --enforce-eager --enable-request-id-headers --enable-prompt-tokens-details"
        ).split()
        if self.role in {"e", "p", "pd"}:
            store = {"shared_storage_path": str(self.run / "ec")}
            role = "ec_producer" if self.role == "e" else "ec_consumer"
            config = {"ec_connector": "ECExampleConnector", "ec_role": role, "ec_connector_extra_config": store}
            arguments += ["--ec-transfer-config", json.dumps(config)]
        if self.role in {"p", "d"}:
            arguments += ["--kv-transfer-config", json.dumps(KV)]
        return arguments

    def wait(self, timeout: float = 600) -> None:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self.process is None or self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                time.sleep(1)
        raise RuntimeError(f"engine {self.role} did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


def boot(environment: Path, model: Path, run: Path, roles: list[str]) -> dict[str, Engine]:
    (run / "ec").mkdir(parents=True, exist_ok=True)
    engines = {role: Engine(role, environment, model, run) for role in roles}
    for engine in engines.values():
        engine.start()
    try:
        for engine in engines.values():
            engine.wait()
    except BaseException:
        for engine in engines.values():
            engine.kill()
        raise
    return engines


def make_model(environment: Path, model: Path) -> Path:
    """The tiny checkpoint, made once."""
    if not (model / "preprocessor_config.json").exists():
        script = Path(__file__).with_name("make_tiny_vlm.py")
        subprocess.run([environment / "bin" / "python", script, model], check=True)
    return model


if __name__ == "__main__":
    env, tiny, directory, *wanted = sys.argv[1:]
    fleet = boot(Path(env), make_model(Path(env), Path(tiny)), Path(directory), wanted or ["agg", "e", "p", "d"])
    print(json.dumps({role: engine.url for role, engine in fleet.items()}), flush=True)
    try:
        signal.pause()
    finally:
        for engine in fleet.values():
            engine.kill()
