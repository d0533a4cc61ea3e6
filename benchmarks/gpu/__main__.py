"""Measure on the GPU of this machine all that docs/gpu.md has figures of, each part in a process of its own.

A part that fails or takes longer than its share says so, and the next one runs. The most telling come first.
Parts that compare results or memory, not times, run together.
Writes gpu.json and gpu.md. With --wheels, packages that the machine lacks are taken from a folder that
`python -m benchmarks.gpu.carry` filled where there is a network.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu.report import Report, markdown

# `benchmarks.gpu.parts` is imported where it is used: it needs what --wheels installs.
ROOT = Path(__file__).resolve().parent.parent.parent
DRY_TAKES = 3  # times the limits, which are those of a GPU machine: a dry run may share two cores with others


def main() -> int:
    """Read what to run, run it, and write what came of it; 1 where a part failed or missed a bar."""
    arguments = _asked()
    if arguments.wheels:
        return _again_with(arguments.wheels)
    from benchmarks.gpu.parts import PARTS

    if arguments.one:
        return _one(arguments)
    names = arguments.parts or list(PARTS)
    arguments.out.mkdir(parents=True, exist_ok=True)
    times = DRY_TAKES if arguments.dry else 1
    deadline, reports = time.monotonic() + 60 * arguments.minutes * times, []
    for together in _in_turns(names):
        left = deadline - time.monotonic()
        with ThreadPoolExecutor(len(together)) as pool:
            limits = [min(PARTS[name].seconds * times, left) for name in together]
            reports += pool.map(_apart, together, limits, [arguments] * len(together))
        _write(reports, arguments)
    return 1 if any(r.error or any(c.ok is False for c in r.checks) for r in reports) else 0


def _in_turns(names: Sequence[str]) -> list[list[str]]:
    """The names turn by turn: a part whose times count alone, the first of the others with all of them."""
    from benchmarks.gpu.parts import PARTS

    untimed = [name for name in names if not PARTS[name].timed]
    turns = [[name] if PARTS[name].timed else untimed for name in names]
    return [turn for i, turn in enumerate(turns) if turn not in turns[:i]]


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--parts", nargs="+", metavar="PART", help="default: all, the most telling first")
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="for all parts together (default: 9; --dry has three times as many)",
    )
    parser.add_argument("--dry", action="store_true", help="small models on the CPU, to see that parts run")
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "gpu", help="folder for gpu.json, gpu.md")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that this machine lacks")
    parser.add_argument("--one", metavar="PART", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.wheels:
        from benchmarks.gpu.parts import PARTS

        for name in arguments.parts or ():
            if name not in PARTS:
                parser.error(f"--parts {name}: allowed: {', '.join(PARTS)}")
    return arguments


def _again_with(wheels: Path) -> int:
    """Install the wheels into a folder of their own and run the rest of the command with them."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        print(f"--wheels {wheels}: holds no wheel", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as site:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", site, *files], check=True)
        rest = [word for word in sys.argv[1:] if word not in ("--wheels", str(wheels))]
        paths = [site, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.run([sys.executable, "-m", "benchmarks.gpu", *rest], env=env, cwd=ROOT).returncode


def _one(arguments: argparse.Namespace) -> int:
    """Run one part in this process and print its report as the last line."""
    from benchmarks.gpu.parts import PARTS

    began, part = time.monotonic(), PARTS[arguments.one]
    lacks = "" if arguments.dry else _lacks(part.gpus)
    report = Report(part=arguments.one, skipped=lacks) if lacks else part.run(dry=arguments.dry)
    report.seconds = round(time.monotonic() - began, 1)
    print(json.dumps(report.as_dict()), flush=True)
    return 0


def _lacks(gpus: int) -> str:
    """Why this machine has too few GPUs for a part; empty where it has enough."""
    import torch  # in the process of a part alone

    count = torch.cuda.device_count()
    return "" if count >= gpus else f"needs {gpus} GPUs; torch sees {count}"


def _apart(name: str, seconds: float, arguments: argparse.Namespace) -> Report:
    """The report of a part that runs in a process of its own for at most so many seconds."""
    if seconds < 5:
        return _say(Report(part=name, error="no time was left for it"))
    call = [sys.executable, "-m", "benchmarks.gpu", "--one", name, *(["--dry"] if arguments.dry else [])]
    log = arguments.out / f"{name}.log"
    began = time.monotonic()
    with log.open("w") as err:
        process = subprocess.Popen(
            call, stdout=subprocess.PIPE, stderr=err, text=True, cwd=ROOT, start_new_session=True
        )
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            out = ""
            os.killpg(process.pid, 9)
            process.wait()
            why = f"not done after {seconds:.0f} s; last: {_last(log)}"
            return _say(Report(part=name, seconds=seconds, error=why))
    if process.returncode:
        why = f"exit status {process.returncode}: {_last(log)}"
        return _say(Report(part=name, seconds=round(time.monotonic() - began, 1), error=why))
    return _say(Report.of(json.loads(out.splitlines()[-1])))


def _last(log: Path) -> str:
    """The last line that a part wrote beside its report."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _say(report: Report) -> Report:
    """Print a part's figures as they come, so that a cut run has told of what it did."""
    why = f"skipped: {report.skipped}" if report.skipped else report.error
    print(f"== {report.part} ({report.seconds:.0f} s) {why}", flush=True)
    for check in report.checks:
        verdict = {True: "ok", False: "MISSED", None: ""}[check.ok]
        print(f"   {check.name}: {check.value} {f'({check.bar})' if check.bar else ''} {verdict}", flush=True)
    for table in report.tables:
        print(f"   {table.title}: {' | '.join(table.columns)}")
        for row in table.rows:
            cells = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
            print("      " + " | ".join(cells), flush=True)
    return report


def _write(reports: Sequence[Report], arguments: argparse.Namespace) -> None:
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    named = [check.value for r in reports for check in r.checks if check.name == "GPU"]
    machine = named[0] if named else ("a CPU, small models (--dry)" if arguments.dry else "a GPU")
    answer = {"date": date, "machine": machine, "parts": [report.as_dict() for report in reports]}
    (arguments.out / "gpu.json").write_text(json.dumps(answer, indent=1))
    (arguments.out / "gpu.md").write_text(markdown(reports, machine, date))


if __name__ == "__main__":
    raise SystemExit(main())
