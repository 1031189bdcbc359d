"""Checkpoints of Spark's streams, written as Spark writes them."""

import json
from pathlib import Path


def write_checkpoint(folder: Path, batches, *, committed: int | None = None, version="v1") -> str:
    """Write the checkpoint of a stream, and return where it is."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, sources in enumerate(batches):
        named = sources if isinstance(sources, dict) else dict(enumerate(sources))
        texts = {name: "-" if one is None else json.dumps(one) for name, one in named.items()}
        lines = [f"{name}:{text}" if version == "v2" else text for name, text in texts.items()]
        text = "\n".join([version, '{"batchWatermarkMs":0,"conf":{}}', *lines])
        (folder / "offsets" / str(number)).write_text(text)
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc\0")
    for number in range(len(batches) if committed is None else committed):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(folder)
