"""What is compared, and exactly how each is started.

Peers keep their default routing policy. Retries are off and logs are cut to errors, both in their favour; our router
runs with its defaults. Every system writes its log to a file in the run's scratch folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import procs

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements-peers.txt"
PEER_HOME = Path.home() / ".cache" / "epd-router" / "bench-peers"
READY_SECONDS = 60.0
NO_EPD = {
    "nginx": "a proxy: it has no stages",
    "vllm-router": "the released wheel routes P+D; its command has no encode workers",
    "smg": "its encode and P+D modes speak gRPC to TokenSpeed or SGLang workers, not HTTP to vLLM",
}
WORKERS = {"aggregated": ("aggregated",), "pd": ("prefill", "decode"), "epd": ("encode", "prefill", "decode")}


@dataclass
class Running:
    """A started system: the process to account for (none for direct) and the ports that the load goes to."""

    system: str
    topology: str
    ports: dict[str, int]
    command: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    rss_start: float = 0.0


def engine_urls(topology: str, engines: dict[str, int]) -> list[str]:
    """Give the URLs of a topology's workers in the order of their stages."""
    return [f"http://127.0.0.1:{engines[role]}" for role in WORKERS[topology]]


def epd_router(topology: str, urls: list[str], port: int, scratch: Path) -> list[str]:
    program = Path(sys.executable).with_name("epd-router")
    flags = {"aggregated": ["--worker-urls"], "pd": ["--prefill", "--decode"]}
    names = flags.get(topology, ["--encode", "--prefill", "--decode"])
    pairs = [word for name, url in zip(names, urls, strict=True) for word in (name, url)]
    return [str(program), *pairs, "--host", "127.0.0.1", "--port", str(port)]


NGINX = """user root; worker_processes 1; daemon off;
pid {scratch}/nginx.pid; error_log {scratch}/nginx-error.log crit;
events {{ worker_connections 1024; }}
http {{ access_log off; client_max_body_size 0; client_body_buffer_size 2m; keepalive_requests 1000000000;
  client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy; fastcgi_temp_path {scratch}/f;
  uwsgi_temp_path {scratch}/u; scgi_temp_path {scratch}/s;
  upstream engine {{ server {engine}; keepalive 128; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://engine; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_buffering off; proxy_request_buffering off; }} }} }}
"""


def nginx(topology: str, urls: list[str], port: int, scratch: Path) -> list[str]:
    config = scratch / "nginx.conf"
    config.write_text(NGINX.format(scratch=scratch, engine=urls[0].removeprefix("http://"), port=port))
    return [shutil.which("nginx") or "nginx", "-p", str(scratch), "-c", str(config)]


def vllm_router(topology: str, urls: list[str], port: int, scratch: Path) -> list[str]:
    workers = ["--worker-urls", urls[0]]
    if topology == "pd":
        workers = ["--vllm-pd-disaggregation", "--prefill", urls[0], "--decode", urls[1]]
    command = [str(PEER_HOME / "bin" / "vllm-router"), *workers, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(procs.free_ports(1)[0]), "--worker-startup-check-interval", "1"]
    return [*command, "--disable-retries", "--log-level", "error"]


def smg(topology: str, urls: list[str], port: int, scratch: Path) -> list[str]:
    command = [str(PEER_HOME / "bin" / "smg"), "launch", "--worker-urls", urls[0], "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(procs.free_ports(1)[0])]
    command += ["--prometheus-host", "127.0.0.1", "--disable-tokenizer-autoload"]
    return [*command, "--disable-retries", "--log-level", "error"]


@dataclass(frozen=True)
class System:
    """One column of the table."""

    name: str
    command: Callable[[str, list[str], int, Path], list[str]] | None
    ready: str
    topologies: tuple[str, ...]


SYSTEMS = (
    System("direct", None, "/health", ("aggregated", "pd", "epd")),
    System("epd-router", epd_router, "/readiness", ("aggregated", "pd", "epd")),
    System("nginx", nginx, "/health", ("aggregated",)),
    System("vllm-router", vllm_router, "/health", ("aggregated", "pd")),
    System("smg", smg, "/health", ("aggregated",)),
)
BY_NAME = {system.name: system for system in SYSTEMS}
PEERS = ("vllm-router", "smg")


def install_peers() -> None:
    """Install the pinned peers into an environment of their own, unless it is there already."""
    stamp = PEER_HOME / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing peers into {PEER_HOME}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(PEER_HOME)], check=True)
    pip = [str(PEER_HOME / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)]
    subprocess.run(pip, check=True)
    stamp.write_text(wanted)


def absent(name: str) -> str:
    """Give why a system cannot be measured here, or nothing."""
    if name == "nginx" and not shutil.which("nginx"):
        return "not installed on this machine"
    if name == "epd-router" and not Path(sys.executable).with_name("epd-router").exists():
        return "not built: run make test or make bench"
    return ""


def start_system(system: System, topology: str, engines: dict[str, int], scratch: Path) -> Running:
    """Start one system before a topology's engines and wait until it is ready."""
    if system.command is None:
        ports = {"front": engines["aggregated"]} if topology == "aggregated" else dict(engines)
        return Running(system.name, topology, ports)
    port = procs.free_ports(1)[0]
    folder = scratch / f"{system.name}-{topology}"
    folder.mkdir()
    command = system.command(topology, engine_urls(topology, engines), port, folder)
    process = procs.start(command, folder / "log.txt")
    running = Running(system.name, topology, {"front": port}, command, process)
    if not procs.wait_ready(process, port, system.ready, READY_SECONDS):
        procs.stop(process)
        tail = (folder / "log.txt").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{system.name} ({topology}) did not become ready: {' '.join(command)}\n{tail}")
    running.rss_start = procs.rss_mb(process.pid)
    return running


def start_engine(role: str, scratch: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start one mock engine."""
    port = procs.free_ports(1)[0]
    command = [sys.executable, str(HERE / "engine.py"), "--role", role, "--port", str(port)]
    process = procs.start(command, scratch / f"engine-{role}.txt")
    if not procs.wait_ready(process, port, "/health", READY_SECONDS):
        procs.stop(process)
        raise RuntimeError(f"engine {role} did not start")
    return process, port
