"""The corpus: inputs kept by fuzzing, one archive per target, ``tests/fuzz/corpus/TARGET.tar.gz``.

    python -m tests.fuzz.corpus unpack TARGET ...       into build/fuzz/corpus/TARGET, and print these folders
    python -m tests.fuzz.corpus pack TARGET ...         the other way round, after inputs were added or removed there
    python -m tests.fuzz.corpus add TARGET FILE ...     put files into an archive, under their own names
    python -m tests.fuzz.corpus list TARGET ...

The same inputs make the same archive, whatever the files' times and owners, so git sees only real changes.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ARCHIVES = Path(__file__).parent / "corpus"
UNPACKED = ROOT / "build/fuzz/corpus"
ENDING = ".tar.gz"
TARGETS = sorted(path.name.removesuffix(ENDING) for path in ARCHIVES.glob(f"*{ENDING}"))


def archive_of(target: str) -> Path:
    return ARCHIVES / f"{target}{ENDING}"


@functools.cache
def inputs(target: str) -> dict[str, bytes]:
    """The inputs of a target by name."""
    return read(archive_of(target).read_bytes())


def read(archive: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None or Path(member.name).name != member.name:
                raise ValueError(f"{member.name!r} in an archive of the corpus is not a file with a plain name")
            found[member.name] = file.read()
    return found


def packed(files: dict[str, bytes]) -> bytes:
    """An archive that depends only on names and contents."""
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))
    return gzip.compress(tar_bytes.getvalue(), 9, mtime=0)


def write(archive: Path, files: dict[str, bytes]) -> bool:
    """Write the archive, unless it already holds these files: another zlib would pack them into other bytes."""
    if archive.exists() and read(archive.read_bytes()) == files:
        return False
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(packed(files))
    return True


def unpack(archive: Path, folder: Path) -> None:
    """Make the folder hold what the archive holds. Files added to it and not packed yet stay."""
    stamp = folder.with_name(f"{folder.name}.unpacked")  # what the archive held when it was last unpacked
    data = archive.read_bytes()
    before = json.loads(stamp.read_text()) if stamp.exists() and folder.exists() else {"digest": "", "names": []}
    digest = hashlib.sha256(data).hexdigest()
    if before["digest"] == digest:
        return
    files = read(data)
    folder.mkdir(parents=True, exist_ok=True)
    for name in set(before["names"]) - set(files):
        (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    stamp.write_text(json.dumps({"digest": digest, "names": sorted(files)}))


def pack(folder: Path, archive: Path) -> bool:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist; unpack {archive.name} first")
    changed = write(archive, {path.name: path.read_bytes() for path in folder.iterdir()})
    unpack(archive, folder)  # which records that nothing is left to pack
    return changed


def add(archive: Path, paths: list[Path]) -> None:
    files = read(archive.read_bytes())
    for path in paths:
        content = path.read_bytes()
        if files.get(path.name, content) != content:
            raise ValueError(f"{archive.name} already has another {path.name}; rename the file")
        files[path.name] = content
    write(archive, files)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.corpus", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("unpack", "pack", "list"):
        commands.add_parser(name).add_argument("targets", nargs="+", choices=TARGETS)
    adding = commands.add_parser("add")
    adding.add_argument("targets", nargs=1, choices=TARGETS, metavar="target")
    adding.add_argument("files", nargs="+", type=Path)
    asked = parser.parse_args()
    for target in asked.targets:
        archive, folder = archive_of(target), UNPACKED / target
        if asked.command == "list":
            print("\n".join(f"{target}/{name}, {len(data)} bytes" for name, data in inputs(target).items()))
        elif asked.command == "unpack":
            unpack(archive, folder)
            print(folder.relative_to(ROOT))
        elif asked.command == "pack":
            print(f"{archive.relative_to(ROOT)}: {'packed' if pack(folder, archive) else 'nothing to change'}")
        else:
            add(archive, asked.files)
            print(f"{archive.relative_to(ROOT)}: {len(read(archive.read_bytes()))} inputs")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"corpus: {error}")
