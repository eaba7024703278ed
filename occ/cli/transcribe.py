"""`occ transcribe`: speech to text with Whisper models."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

from occ.cli import options
from occ.cli.console import say
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class _Writing:
    """The options about the transcription."""

    language: str | None
    translate: bool
    timestamps: bool
    as_json: bool


@click.command("transcribe")
@click.argument("model", metavar="DIR")
@click.argument("sounds", metavar="SOUND.wav...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--language", help="Language of the speech, such as en; detected by default.")
@click.option("--translate", is_flag=True, help="Write English.")
@click.option("--timestamps", is_flag=True, help="Write one line per segment, with its times.")
@click.option("--json", "as_json", is_flag=True, help="Write lines of JSON.")
@options.target
@options.threads
@options.as_record(_Writing, "how")
def command(model: str, sounds: tuple[Path, ...], target: str, threads: int | None, how: _Writing) -> None:
    """Write down what is said in WAV files, with the Whisper model in the folder DIR.

    DIR is as optimum exports it: encoder_model.onnx, decoder_model_merged.onnx, tokenizer.json, and its configuration.
    """
    from occ.generation.transcriber import Transcriber

    whisper = Transcriber(Path(model), threads, target=target)
    task: Literal["translate", "transcribe"] = "translate" if how.translate else "transcribe"
    for sound in sounds:
        start = time.perf_counter()
        found = whisper.transcribe(sound, language=how.language, task=task, timestamps=how.timestamps)
        if how.as_json:
            click.echo(json.dumps({"sound": str(sound), **asdict(found)}, ensure_ascii=False))
        elif how.timestamps:
            for s in found.segments:
                click.echo(f"[{_clock(s.start)} --> {_clock(s.end)}] {s.text}")
        else:
            click.echo(found.text)
        say(f"{sound}: {time.perf_counter() - start:.2f} s" + (f", {found.language}" if found.language else ""))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest / 1000:06.3f}"
