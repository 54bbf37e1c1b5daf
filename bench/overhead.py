"""What a router costs: CPU, added latency, throughput and memory, against peers and against no router, in one run.

See README.md beside this file for what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
import procs
import report
import systems
import work

HERE = Path(__file__).parent
WARM_SECONDS = 0.5


class Load:
    """The load generator's process."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "load.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = 0

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command and wait for its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the load generator ended")
        result: dict[str, Any] = json.loads(line)
        return result

    def next_first(self) -> int:
        """Give a range of nonces that was not used before in this run."""
        self.first += 20_011
        return self.first


def measure(load: Load, row: work.Row, running: systems.Running, seconds: float) -> dict[str, Any]:
    """Measure one row on one system once: open, warm up, then account for exactly the measured interval."""
    load.ask(do="open", row=row.name, ports=running.ports, first=load.next_first())
    warm = load.ask(do="run", seconds=min(WARM_SECONDS, seconds / 2))
    pid = running.process.pid if running.process else 0
    before = procs.cpu_seconds(pid) if pid else 0.0
    result = warm if warm["errors"] else load.ask(do="run", seconds=seconds)
    if pid:
        units = (result["chunks"] if row.stream else result["count"]) or 1
        result["cpu_us"] = (procs.cpu_seconds(pid) - before) * 1e6 / units
        result["rss_mb"] = procs.rss_mb(pid)
    result["per_s"] = (result["chunks"] if row.stream else result["count"]) / result["seconds"]
    load.ask(do="close")
    return result


class Run:
    """One whole run: engines and systems are started once, rounds are interleaved between systems."""

    def __init__(self, options: argparse.Namespace, stack: contextlib.ExitStack, scratch: Path) -> None:
        self.options = options
        self.stack = stack
        self.scratch = scratch
        self.rows = [work.BY_NAME[name] for name in options.rows]
        self.notes: dict[str, str] = {}
        self.running: list[systems.Running] = []
        self.samples: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def start(self) -> None:
        """Start what the chosen rows need."""
        names = [name for name in self.options.systems if not self.note_absent(name)]
        topologies = dict.fromkeys(row.topology for row in self.rows)
        roles = dict.fromkeys(role for topology in topologies for role in systems.WORKERS[topology])
        engines = {}
        for role in roles:
            process, engines[role] = systems.start_engine(role, self.scratch)
            self.stack.callback(procs.stop, process)
        for name in names:
            for topology in topologies:
                if topology in systems.BY_NAME[name].topologies:
                    self.start_one(name, topology, engines)

    def note_absent(self, name: str) -> str:
        reason = systems.absent(name)
        if reason:
            self.notes[name] = reason
        return reason

    def start_one(self, name: str, topology: str, engines: dict[str, int]) -> None:
        try:
            running = systems.start_system(systems.BY_NAME[name], topology, engines, self.scratch)
        except RuntimeError as error:
            self.notes[f"{name} {topology}"] = str(error)
            print(error, file=sys.stderr)
            return
        self.running.append(running)
        if running.process:
            self.stack.callback(procs.stop, running.process)

    def rounds(self) -> None:
        """Go through all rows in each round; every other round visits the systems in reverse order."""
        load = Load()
        self.stack.callback(load.process.kill)
        for turn in range(self.options.rounds):
            for row in self.rows:
                able = [running for running in self.running if running.topology == row.topology]
                for running in able[:: -1 if turn % 2 else 1]:
                    self.one(load, row, running, turn)

    def one(self, load: Load, row: work.Row, running: systems.Running, turn: int) -> None:
        sample = measure(load, row, running, row.seconds * self.options.scale)
        self.samples.setdefault(row.name, {}).setdefault(running.system, []).append(sample)
        problem = f"  ERRORS {sample['errors']}: {sample['problem'][:200]}" if sample["errors"] else ""
        cpu = f"{sample.get('cpu_us', 0):9.1f} us"
        line = f"round {turn + 1} {row.name:16} {running.system:12} p50 {sample['p50_ms']:9.3f} ms  cpu {cpu}"
        print(f"{line}  {sample['per_s']:9.0f}/s{problem}", flush=True)

    def result(self) -> dict[str, Any]:
        """Give everything that the report is made from."""
        started = {f"{one.system} {one.topology}": one for one in self.running if one.process}
        commands = {name: " ".join(one.command) for name, one in started.items()}
        rss = {name: one.rss_start for name, one in started.items()}
        facts = {"rounds": self.options.rounds, "scale": self.options.scale, "rows": self.options.rows}
        return facts | {"notes": self.notes, "commands": commands, "rss_start_mb": rss, "samples": self.samples}


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    all_rows, all_systems = [row.name for row in work.ROWS], [system.name for system in systems.SYSTEMS]
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything works")
    parser.add_argument("--rounds", type=int, help="rounds over all rows and systems (default: 3)")
    parser.add_argument("--scale", type=float, help="factor on the length of each measurement (default: 1)")
    parser.add_argument("--rows", nargs="+", choices=all_rows, default=all_rows, metavar="ROW", help=", ".join(all_rows))
    parser.add_argument(
        "--systems", nargs="+", choices=all_systems, default=all_systems, metavar="NAME", help=", ".join(all_systems)
    )
    parser.add_argument("--out", type=Path, help="stem of the result files (default: by kind of run in bench/results)")
    options = parser.parse_args(argv)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.scale = options.scale or (0.2 if options.quick else 1.0)
    whole = options.rows == all_rows and options.systems == all_systems and not options.quick
    options.out = options.out or HERE / "results" / ("overhead" if whole else "overhead-partial")
    return options


def main(argv: list[str]) -> int:
    options = parse(argv)
    if set(options.systems) & set(systems.PEERS):
        systems.install_peers()
    facts = machine.note()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epd-bench-")))
        run = Run(options, stack, scratch)
        run.start()
        run.rounds()
    result = {"machine": facts | {"load_average_after": os.getloadavg()}} | run.result()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    text = report.markdown(result)
    options.out.with_suffix(".md").write_text(text)
    print(text)
    failed = any(s["errors"] for by in run.samples.values() for samples in by.values() for s in samples)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
