-- tracerd in ClickHouse, version 1. Every statement may run again; `$` is
-- '_local' where a cluster is named, for there the plain names are Distributed
-- tables over the shards.
--
-- What is sent twice has the same key and is one row once merged; a reader
-- says FINAL, or asks the views, which do. Names instead of dictionaries:
-- every row says all about itself, and columns of repeated names pack well.
-- Figures are over finite elements as in SQLite. epoch, random and made by the
-- process, tells apart processes that several daemons gave the same number.
-- nans is SQLite's nan: a Distributed table forgets the quotes on its way to
-- the shards, and nan without them is a number there.

CREATE TABLE IF NOT EXISTS record$(
    run String, step UInt64, object UInt64, pass UInt8, stream UInt64,
    io UInt8, position UInt32, seq UInt64, epoch UInt64,
    attempt UInt32, rank UInt32, ts_ns Int64, t_ns Int64, iteration UInt64,
    microbatch UInt32, labels UInt32, note String, class String,
    instance UInt32, module String, path String, dtype UInt8, shape String,
    n Int64, nans Nullable(Int64), pinf Nullable(Int64), ninf Nullable(Int64),
    zero Nullable(Int64), subnormal Nullable(Int64),
    max Nullable(Float64), min Nullable(Float64), absmin Nullable(Float64),
    max_int Nullable(Int64), min_int Nullable(Int64),
    absmin_int Nullable(Int64), mean Nullable(Float64),
    std Nullable(Float64), l2 Nullable(Float64), hash Nullable(UInt64),
    samples String, given Nullable(UInt8), sampling UInt8,
    sampling_arg UInt64, histogram String
) ENGINE = ReplacingMergeTree() PARTITION BY run
ORDER BY (run, step, object, pass, stream, io, position, seq, epoch);

-- The processes, with what SQLite has in meta. The last written row counts.
CREATE TABLE IF NOT EXISTS stream$(
    run String, id UInt64, attempt UInt32, rank UInt32, epoch UInt64,
    world UInt32, pid UInt32, start_time UInt64, boot_id String, host String,
    uid UInt32, client String, real_ns Int64, mono_ns Int64, info String,
    seq UInt64, iteration UInt64, last_ns Int64, state String,
    block_ms UInt64, spool_bytes UInt64, job String, store_id String,
    created_ns Int64, version String, written_ns UInt64
) ENGINE = ReplacingMergeTree(written_ns) PARTITION BY run
ORDER BY (run, id, epoch);

CREATE TABLE IF NOT EXISTS loss$(
    run String, stream UInt64, seq UInt64, epoch UInt64, rank UInt32,
    attempt UInt32, last UInt64, count UInt64, bytes UInt64, cause String,
    t_ns Int64, ts_ns Int64, written_ns UInt64
) ENGINE = ReplacingMergeTree(written_ns) PARTITION BY run
ORDER BY (run, stream, seq, epoch);

-- Each object that a node knows, for some have no record. All of them are on
-- the shard of one rank, so that those of several nodes meet.
CREATE TABLE IF NOT EXISTS object$(
    run String, object UInt64, class String, instance UInt32, module String,
    rank UInt32
) ENGINE = ReplacingMergeTree() PARTITION BY run
ORDER BY (run, object, class, instance, module);
