"""`python -m outrider.bench.baselines`: build, run, report, list."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from outrider import __version__
from outrider.bench.baselines import (
    DEFAULT_MODES,
    Machine,
    Records,
    SettingRecord,
    build,
    compare,
    draw,
    encode,
    load_modes,
    make_groups,
    make_report,
    read_records,
)
from outrider.bench.baselines.peers import PEERS
from outrider.bench.workload import read_prompts
from outrider.config import load_settings
from outrider.errors import ConfigError, OutriderError
from outrider.models import load_text_assets, resolve

_SHARE_OF_MEMORY: Final = 0.8
_INSTRUCTIONS: Final = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")

app = typer.Typer(
    help="Outrider beside other engines on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Root = Annotated[Path, typer.Option("--peers", help="Folder of the peers' environments.")]
Modes = Annotated[Path, typer.Option("--modes", help="TOML file of processes and modes.")]
Wanted = Annotated[
    list[str] | None,
    typer.Option("--mode", help="Only modes with this in their name; may be given several times."),
]
_ROOT: Final = Path(".peers")


@app.command("list")
def list_modes(modes: Modes = DEFAULT_MODES) -> None:
    """Print peers and modes."""
    comparison = load_modes(modes)
    for name, peer in PEERS.items():
        print(f"{name}: {', '.join(peer.versions) or f'outrider {__version__}'}")
        for mode in comparison.modes:
            if comparison.processes[comparison.modes[mode].process].peer == name:
                print(f"  {mode}")


@app.command("build")
def build_peers(
    names: Annotated[list[str] | None, typer.Argument(help="Peers; all of them if none.")] = None,
    root: Root = _ROOT,
) -> None:
    """Build peers' environments; what is built already stays. One that fails holds up no other."""
    failed = []
    for name in names or PEERS:
        _say(f"building {name} in {root / name}; this may take long")
        try:
            build(name, root)
        except OutriderError as error:
            failed.append(name)
            _say(f"error: {error}")
    if failed:
        raise ConfigError(f"not built: {', '.join(failed)}; the comparison will say so too")


@app.command("run")
def run(
    prompts: Annotated[list[Path], typer.Argument(help="JSONL files with `turns`.")],
    target: Annotated[Path, typer.Option("--target", help="GGUF file of the target model.")],
    results: Annotated[
        Path, typer.Option("--results", help="JSONL file; an existing one is gone on with.")
    ],
    draft: Annotated[Path, typer.Option("--draft", help="GGUF file of the draft model.")],
    root: Root = _ROOT,
    modes: Modes = DEFAULT_MODES,
    wanted: Wanted = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="Prompts of each file, evenly spread.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Output budget.")] = 128,
    threads: Annotated[int, typer.Option("--threads", help="For every engine.")] = 2,
    context: Annotated[int, typer.Option("--context", help="Prompt and output, tokens.")] = 2048,
    extra: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A further $NAME of the modes file."),
    ] = None,
    memory_gb: Annotated[
        float | None,
        typer.Option("--memory-gb", help="For all engines that are up; else 80% of all."),
    ] = None,
) -> None:
    """Run the comparison, or go on with one that was broken off."""
    for file in (target, draft):
        if not file.is_file():
            raise ConfigError(f"there is no file {file}; name a GGUF file")
    comparison = load_modes(modes, wanted or ())
    home = load_settings().home
    folders = {name: resolve(str(file), home=home).path for name, file in _pair(target, draft)}
    encoded = encode(
        folders["target_folder"], read_prompts(prompts, limit), longest=context - max_tokens
    )
    setting = SettingRecord(
        target=target.name,
        draft=draft.name,
        threads=threads,
        max_tokens=max_tokens,
        cpu=_cpu(),
        peers={name: list(peer.versions) for name, peer in PEERS.items()},
    )
    stop = load_text_assets(folders["target_folder"]).eos_token_ids
    values = {
        **dict(_assignment(text) for text in extra or ()),
        "target": str(target.absolute()),
        "draft": str(draft.absolute()),
        "draft_name": draft.stem,
        "stop": ",".join(str(token) for token in sorted(stop)),
        "threads": str(threads),
        "context": str(context),
        **{name: str(folder) for name, folder in folders.items()},
    }
    groups = make_groups(comparison, memory_gb or _SHARE_OF_MEMORY * _memory_gb())
    records = Records(results, setting)
    compare(comparison, groups, encoded, Machine(root, values, max_tokens), records, _say)


@app.command("report")
def report(
    results: Annotated[Path, typer.Argument(help="JSONL file of a comparison.")],
    output: Annotated[Path, typer.Option("--output", help="Markdown file to write.")],
    baseline: Annotated[
        str, typer.Option("--baseline", help="The mode that others are compared with.")
    ] = "llama.cpp",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Picture to draw: .svg or .png.")
    ] = None,
) -> None:
    """Write the table, and draw the plot."""
    records = read_records(results)
    text = make_report(records, baseline)
    if plot is not None:
        draw(records, baseline, plot)
        text += f"\n![decode speed, times {baseline}]({plot.name})\n"
    output.write_text(text, encoding="utf-8")
    print(text)


def _pair(target: Path, draft: Path) -> Sequence[tuple[str, Path]]:
    return (("target_folder", target), ("draft_folder", draft))


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise ConfigError(f"--set {text} sets nothing; write NAME=VALUE")
    return name, value


def _memory_gb() -> float:
    """Of the whole machine: the same in every run, so that a run which goes on has its groups."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    said = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    has = [name for name in _INSTRUCTIONS if name in said.get("flags", "").split()]
    cores = sum(line.startswith("processor") for line in lines)
    return f"{said.get('model name', platform.machine())}, {cores} cores, {', '.join(has)}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    try:
        app()
    except OutriderError as error:
        _say(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
