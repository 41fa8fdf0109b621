"""A stored run as a Parquet file, which `tracectl export` has made by this.

    python3 -m tracerd.parquet [--rank N] [--attempt N] RUN.db FILE

Columns are those of `tracerd.load(names=True, samples=True)`. A row group
holds some 100,000 records, and so much is in memory. FILE is replaced when
all is written, and left alone when nothing is found. The exit codes are
tracectl's: 0 written, 1 no record, 2 no run, 3 cannot write.
"""

import argparse
import os
import sys
import tempfile

import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import table


def write(path, out, rank=None, attempt=None):
    """Writes the records of the run in the file path, of one rank and attempt
    where they are not None, to the file out; how many. Blocks; raises
    ValueError for a file that is no run, and OSError."""
    written = 0
    folder = os.path.dirname(os.path.realpath(out))
    handle, fresh = tempfile.mkstemp(".tmp", os.path.basename(out), folder)
    os.close(handle)
    try:
        with pq.ParquetWriter(
            fresh, table.schema(True, True), compression="zstd",
            store_schema=True,
        ) as writer:
            for part in table.parts(path, True, True):
                part = _chosen(part, rank, attempt)
                if part.num_rows:
                    writer.write_table(part, row_group_size=part.num_rows)
                written += part.num_rows
        if written:
            _put_in_place(fresh, out)
    finally:
        if os.path.exists(fresh):
            os.unlink(fresh)
    return written


def _chosen(part, rank, attempt):
    for name, value in (("rank", rank), ("attempt", attempt)):
        if value is not None:
            part = part.filter(pc.equal(part[name], value))
    return part


def _put_in_place(fresh, out):
    """With the mode that a new file gets, or the old one has."""
    try:
        mode = os.stat(out).st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    os.chmod(fresh, mode)
    with open(fresh, "rb") as f:
        os.fsync(f.fileno())
    os.replace(fresh, os.path.realpath(out))


def main(args):
    parser = argparse.ArgumentParser("tracerd.parquet")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--attempt", type=int)
    parser.add_argument("run")
    parser.add_argument("file")
    o = parser.parse_args(args)
    try:
        if write(o.run, o.file, o.rank, o.attempt):
            return 0
    except ValueError as e:
        return _fail(2, e)
    except OSError as e:
        return _fail(3, f"cannot write: {e}")
    return _fail(1, "no record to export")


def _fail(code, why):
    print(f"tracectl: {why}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
