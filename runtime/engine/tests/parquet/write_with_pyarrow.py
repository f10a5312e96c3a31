"""Writes files of every type, in every encoding and codec that pyarrow has, to a folder.

Beside each Parquet file stands an Arrow file with the same rows, as pyarrow reads them
back: what a reader must give.
"""

import datetime
import decimal
import itertools
import pathlib
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

N = 1301


def columns():
    mixed = [(i * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & (2**64 - 1) for i in range(N)]

    def signed(bits):
        return [(v % 2**bits) - 2 ** (bits - 1) for v in mixed]

    def times(unit, step):
        return pa.array([(v % 4_000_000_000) * step - 10**9 for v in mixed], pa.timestamp(unit))

    day = datetime.date(1970, 1, 1)
    yield "bool", pa.array([v % 5 < 2 for v in mixed])
    for bits in (8, 16, 32, 64):
        yield f"int{bits}", pa.array(signed(bits), getattr(pa, f"int{bits}")())
        yield f"uint{bits}", pa.array([v % 2**bits for v in mixed], getattr(pa, f"uint{bits}")())
    yield "small", pa.array([v % 9 for v in mixed], pa.int64())
    yield "ascending", pa.array([1_000_000 + 7 * i for i in range(N)], pa.int64())
    yield "float", pa.array([v / 3 for v in signed(16)], pa.float32())
    yield "double", pa.array([v / 7 for v in signed(40)], pa.float64())
    yield "date", pa.array([day + datetime.timedelta(v % 40000 - 9000) for v in mixed])
    yield "ms", times("ms", 1000)
    yield "us", times("us", 1000)
    yield "ns", times("ns", 1)
    for precision, scale in ((7, 2), (15, 2), (20, 0), (38, 10)):
        top = 10**precision - 1
        with decimal.localcontext() as context:
            context.prec = 60
            values = [decimal.Decimal((v * v) % (2 * top + 1) - top).scaleb(-scale) for v in mixed]
        yield f"decimal{precision}", pa.array(values, pa.decimal128(precision, scale))
    yield "text", pa.array(["größer "[: v % 8] + str(v % 1000) for v in mixed])
    yield "few", pa.array([("", "A", "N", "R", "日本")[v % 5] for v in mixed])
    yield "sorted", pa.array([f"customer/{i // 3:06}" for i in range(N)])


def with_nulls(array, pattern):
    mask = {
        "none": None,
        "some": [i % 7 == 2 for i in range(N)],
        "runs": [i % 100 < 30 for i in range(N)],
        "all": [True] * N,
    }[pattern]
    if mask is None:
        return array
    return pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)


def encodings(array):
    """Encodings of a column without a dictionary; None for a dictionary."""
    kind = array.type
    yield None
    yield "PLAIN"
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        yield "DELTA_BINARY_PACKED"
    if pa.types.is_string(kind):
        yield "DELTA_LENGTH_BYTE_ARRAY"
        yield "DELTA_BYTE_ARRAY"
    if pa.types.is_boolean(kind):
        yield "RLE"
    if pa.types.is_floating(kind) or kind in (pa.int32(), pa.int64()) or pa.types.is_decimal(kind):
        yield "BYTE_STREAM_SPLIT"


def main(folder):
    folder = pathlib.Path(folder)
    codecs = itertools.cycle(["none", "snappy", "zstd", "lz4", "gzip", "brotli"])
    number = 0
    for pattern in ("none", "some", "runs", "all"):
        arrays = {name: with_nulls(array, pattern) for name, array in columns()}
        if pattern == "none":
            # Parquet has 96-bit timestamps only where it is asked for them.
            table = pa.table({"int96": arrays["us"]})
            write(folder, "int96", table, use_deprecated_int96_timestamps=True)
        for version, page, decimals in itertools.product(
            ("1.0", "2.0"), (1, 900, 1 << 20), (False, True)
        ):
            # Every column once with each of its encodings; shorter lists go round.
            lists = {name: list(encodings(array)) for name, array in arrays.items()}
            for turn in range(max(map(len, lists.values()))):
                chosen = {name: own[turn % len(own)] for name, own in lists.items()}
                if decimals and turn > 0:
                    continue
                write(
                    folder,
                    f"{number:04}",
                    # Pages of one value are many.
                    pa.table(arrays).slice(0, 131 if page == 1 else N),
                    data_page_version=version,
                    data_page_size=page,
                    row_group_size=600,
                    compression=next(codecs),
                    use_dictionary=[name for name, own in chosen.items() if own is None],
                    column_encoding={name: own for name, own in chosen.items() if own},
                    store_decimal_as_integer=decimals,
                    write_batch_size=min(page, 1024) if page < 900 else 128,
                )
                number += 1


def write(folder, name, table, **options):
    pq.write_table(table, folder / f"{name}.parquet", **options)
    read = pq.read_table(folder / f"{name}.parquet", coerce_int96_timestamp_unit="us")
    with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file:
        with pa.ipc.new_file(file, read.schema) as writer:
            writer.write_table(read.combine_chunks())


main(sys.argv[1])
