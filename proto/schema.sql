-- tracerd, stored run, version 1.
--
-- One file is one run. Plain tables hold the data; the views v_record,
-- v_sample, v_histogram, v_object, v_run, v_loss and v_pruned are the SQL
-- promise: their names and columns stay. Figures in tables are over finite
-- elements; the views also have numpy's form, where NaN is NULL with the count
-- in column nan.

PRAGMA application_id = 1414677316; -- "TRCD"
PRAGMA user_version = 1;

-- Facts about the run: name, job, store_id, created_ns, version; pruned, the
-- number of records taken out of it, where there are any.
CREATE TABLE meta(
    key   TEXT PRIMARY KEY,
    value ANY NOT NULL
) WITHOUT ROWID;

-- One row for each process that sent records.
-- id = attempt << 40 | rank << 12 | k, k the k-th process of that rank and
-- attempt: so the order of ids is the order of (attempt, rank, process).
CREATE TABLE stream(
    id          INTEGER PRIMARY KEY,
    attempt     INTEGER NOT NULL,
    rank        INTEGER NOT NULL,
    epoch       INTEGER NOT NULL UNIQUE, -- random, made by the process
    world       INTEGER NOT NULL,        -- ranks of the job, 0 unknown
    pid         INTEGER NOT NULL,
    start_time  INTEGER NOT NULL,        -- of pid, clock ticks since boot
    boot_id     TEXT NOT NULL,
    host        TEXT NOT NULL,
    uid         INTEGER NOT NULL,
    client      TEXT NOT NULL,           -- its version
    real_ns     INTEGER NOT NULL,        -- t_ns = 0 of its records, UTC
    mono_ns     INTEGER NOT NULL,        -- the same moment, CLOCK_MONOTONIC
    info        TEXT NOT NULL,           -- JSON about the process, or ''
    seq         INTEGER NOT NULL,        -- high-water mark: all up to it are
                                         -- stored, or counted as lost
    iteration   INTEGER NOT NULL DEFAULT 0, -- the largest of its records
    last_ns     INTEGER NOT NULL DEFAULT 0, -- the largest t_ns of them
    dict_n      INTEGER NOT NULL,        -- dictionary entries stored
    state       TEXT NOT NULL,           -- open, ended, dead, imported
    -- what the process did when its journal was full; the first runs of
    -- version 1 did not have these columns
    block_ms    INTEGER NOT NULL DEFAULT 0, -- it waited so long for room
    spool_bytes INTEGER NOT NULL DEFAULT 0  -- limit of its spool, 0 for none
);

-- The n-th instance of a class, counted per rank in module order.
CREATE TABLE object(
    id       INTEGER PRIMARY KEY,
    class    TEXT NOT NULL,
    instance INTEGER NOT NULL,
    module   TEXT NOT NULL,              -- path in the model, '' the root
    UNIQUE(class, instance, module)
);
CREATE INDEX object_module ON object(module);

-- A tensor's place in its call, a parameter's path or a user's name.
CREATE TABLE path(
    id   INTEGER PRIMARY KEY,
    text TEXT NOT NULL UNIQUE
);

CREATE TABLE shape(
    id   INTEGER PRIMARY KEY,
    dims TEXT NOT NULL UNIQUE,           -- '16 12 512'; '' has no dimension
    n    INTEGER NOT NULL                -- elements
);

-- What a label cannot say in a word, such as placements.
CREATE TABLE note(
    id   INTEGER PRIMARY KEY,
    text TEXT NOT NULL UNIQUE
);

-- How each stream numbers its dictionary.
CREATE TABLE dict(
    stream INTEGER NOT NULL,
    id     INTEGER NOT NULL,             -- the stream's number
    entry  BLOB NOT NULL,                -- as it came, see FORMAT.md
    PRIMARY KEY(stream, id)
) WITHOUT ROWID;

-- The records. Clustered with the step first: rows arrive step by step, so
-- inserts stay near the tail, and one step of one object is one seek.
CREATE TABLE record(
    step       INTEGER NOT NULL,         -- the object's own count
    object     INTEGER NOT NULL,         -- 0 for none
    pass       INTEGER NOT NULL,         -- table pass
    stream     INTEGER NOT NULL,
    io         INTEGER NOT NULL,         -- 0 none, 1 input, 2 output
    position   INTEGER NOT NULL,
    seq        INTEGER NOT NULL,         -- with stream the identity
    t_ns       INTEGER NOT NULL,         -- since stream.real_ns
    iteration  INTEGER NOT NULL,
    microbatch INTEGER NOT NULL,
    labels     INTEGER NOT NULL,         -- bits, table label
    note       INTEGER,
    path       INTEGER NOT NULL,
    dtype      INTEGER NOT NULL,         -- table dtype
    shape      INTEGER NOT NULL,
    n          INTEGER,                  -- NULL: shape.n
    -- counts; NULL: unknown
    nan        INTEGER,
    pinf       INTEGER,
    ninf       INTEGER,
    zero       INTEGER,
    subnormal  INTEGER,
    -- over finite elements; NULL: there is none. For integer dtypes max, min
    -- and absmin are integers (unsigned above 2^63 - 1 wrap). absmax is the
    -- larger one of max and -min, so it has no column.
    max,
    min,
    absmin,                              -- NULL: no element but zeros
    mean,                                -- untyped too: keeps -0.0
    std        REAL,
    l2         REAL,
    hash       INTEGER,                  -- 64 bits
    samples    BLOB,                     -- elements, little endian
    given      INTEGER,                  -- figures as a text or dump had them:
                                         -- 2 bits each for max, min, mean,
                                         -- std: 0 number 1 nan 2 inf 3 -inf
    PRIMARY KEY(step, object, pass, stream, io, position, seq)
) WITHOUT ROWID;

-- What only some records have; apart, so that the others do not pay for it.
CREATE TABLE extra(
    stream       INTEGER NOT NULL,
    seq          INTEGER NOT NULL,       -- of the record
    sampling     INTEGER,                -- table sampling; NULL: equidistant
    sampling_arg INTEGER,                -- every: the distance; random: the
                                         -- seed; 64 bits
    histogram    BLOB,                   -- how many elements have which
                                         -- exponent. Little endian: 1 byte
                                         -- kind, table histogram; 1 byte dtype
                                         -- of the record; 1 byte w; 2 bytes
                                         -- first bin; then the counts of it
                                         -- and the following bins, w bytes
                                         -- each. See v_histogram
    PRIMARY KEY(stream, seq)
) WITHOUT ROWID;

-- Records that are missing, and why: every gap in seq has a row here, or in
-- pruned.
CREATE TABLE loss(
    stream INTEGER NOT NULL,
    seq    INTEGER NOT NULL,             -- the first it stands for
    last   INTEGER NOT NULL,             -- the last
    count  INTEGER NOT NULL,             -- records lost: those of the range, or
                                         -- more, as what a process could not
                                         -- keep had no numbers: one number of
                                         -- the range tells of many
    bytes  INTEGER NOT NULL,             -- of them, 0 unknown
    cause  TEXT NOT NULL,
    t_ns   INTEGER NOT NULL,
    PRIMARY KEY(stream, seq)
) WITHOUT ROWID;

-- Records that were stored and taken out again to give room.
CREATE TABLE pruned(
    stream  INTEGER NOT NULL,
    seq     INTEGER NOT NULL,            -- the first of them
    last    INTEGER NOT NULL,            -- the last
    rule    TEXT NOT NULL,               -- what was to stay
    real_ns INTEGER NOT NULL,            -- when, UTC
    PRIMARY KEY(stream, seq)
) WITHOUT ROWID;

-- Wall clock against monotonic clock; never used to order records.
CREATE TABLE clock(
    stream  INTEGER NOT NULL,
    mono_ns INTEGER NOT NULL,
    real_ns INTEGER NOT NULL,
    PRIMARY KEY(stream, mono_ns)
) WITHOUT ROWID;

-- Words for the codes.
CREATE TABLE pass(id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE label(bit INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE io(id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE sampling(id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE histogram(id INTEGER PRIMARY KEY, name TEXT NOT NULL);

-- How the bits of a sample are read: sign, exponent, mantissa widths.
-- special: 0 integer, 1 IEEE, 2 only all ones is NaN, 3 only the sign bit
-- alone is NaN, 4 exponent only, 5 not decoded.
CREATE TABLE dtype(
    id      INTEGER PRIMARY KEY,
    name    TEXT NOT NULL,
    bytes   INTEGER NOT NULL,            -- of one part of a sample
    parts   INTEGER NOT NULL,            -- 2 for complex
    man     INTEGER NOT NULL,
    exp     INTEGER NOT NULL,
    bias    INTEGER NOT NULL,
    special INTEGER NOT NULL,
    signed  INTEGER NOT NULL
);

-- 0..4095 to number samples with, and powers of two, which SQLite may lack.
CREATE TABLE number(i INTEGER PRIMARY KEY, pow2 REAL);

INSERT INTO pass VALUES(1,'forward'),(2,'backward'),(3,'grad'),(4,'param'),
    (5,'user'),(6,'optim');
INSERT INTO io VALUES(0,''),(1,'input'),(2,'output');
INSERT INTO sampling VALUES(0,'equidistant'),(1,'every'),(2,'random');
INSERT INTO histogram VALUES(1,'rows'),(2,'exact');
INSERT INTO label VALUES(0,'recompute'),(1,'eval'),(2,'local'),(3,'final'),
    (4,'scaled'),(5,'skipped'),(6,'exact'),(7,'total'),(8,'sparse'),
    (9,'complex'),(10,'quantized'),(11,'shard'),(12,'materialized'),
    (13,'unsupported'),(14,'nodata'),(15,'text'),(16,'copied'),
    (17,'repeated'),(18,'raised'),(19,'packed'),(20,'same'),(21,'operators'),
    (22,'graph');
INSERT INTO dtype VALUES
    (1,'float64',8,1,52,11,1023,1,1),(2,'float32',4,1,23,8,127,1,1),
    (3,'float16',2,1,10,5,15,1,1),(4,'bfloat16',2,1,7,8,127,1,1),
    (5,'float8_e4m3fn',1,1,3,4,7,2,1),(6,'float8_e5m2',1,1,2,5,15,1,1),
    (7,'float8_e4m3fnuz',1,1,3,4,8,3,1),(8,'float8_e5m2fnuz',1,1,2,5,16,3,1),
    (9,'float8_e8m0fnu',1,1,0,8,127,4,0),
    (10,'int8',1,1,0,0,0,0,1),(11,'int16',2,1,0,0,0,0,1),
    (12,'int32',4,1,0,0,0,0,1),(13,'int64',8,1,0,0,0,0,1),
    (14,'uint8',1,1,0,0,0,0,0),(15,'uint16',2,1,0,0,0,0,0),
    (16,'uint32',4,1,0,0,0,0,0),(17,'uint64',8,1,0,0,0,0,0),
    (18,'bool',1,1,0,0,0,0,0),
    (19,'complex32',2,2,10,5,15,1,1),(20,'complex64',4,2,23,8,127,1,1),
    (21,'complex128',8,2,52,11,1023,1,1),
    (22,'float4_e2m1fn_x2',1,1,0,0,0,5,0),
    (23,'text',8,1,52,11,1023,1,1),(24,'opaque',1,1,0,0,0,5,0);
WITH RECURSIVE up(i, v) AS (
    VALUES(0, 1.0) UNION ALL SELECT i + 1, v * 2 FROM up WHERE i < 4095)
INSERT INTO number SELECT i, CASE WHEN i < 1024 THEN v END FROM up;
WITH RECURSIVE down(i, v) AS (
    VALUES(-1, 0.5) UNION ALL SELECT i - 1, v / 2 FROM down WHERE i > -1074)
INSERT INTO number SELECT i, v FROM down;

-- What a planner is to believe of a run: it has many records a step. So it
-- looks for an object's history in each step, and does not read them all.
ANALYZE sqlite_master;
INSERT INTO sqlite_stat1
VALUES('record', 'record', '100000000 10000 32 16 2 1 1 1');

-- Every record by name, with all figures.
-- max, min, mean, std, l2 are numpy's over all elements: infinities as IEEE
-- says, NULL where numpy has NaN (then nan > 0, or inf - inf) or where n is
-- 0. finite_* are over finite elements. A uint64 above 2^63, which wraps in its
-- table, is the nearest double. sampling is 'every 16' or 'random seed 7', and
-- NULL where samples are equidistant.
CREATE VIEW v_record AS
SELECT s.attempt, s.rank, r.seq, s.real_ns + r.t_ns AS ts_ns,
    pa.name AS pass, o.class, o.instance,
    o.class || '-' || o.instance AS object, o.module, r.step, r.iteration,
    r.microbatch, r.labels & 1 AS recompute, io.name AS io, r.position,
    p.text AS path, d.name AS dtype, h.dims AS shape,
    coalesce(r.n, h.n) AS n,
    CASE WHEN r.given THEN CASE r.given & 3 WHEN 0
             THEN iif(d.name <> 'uint64' OR r.max >= 0, r.max,
                 r.max + 18446744073709551616.0)
             WHEN 2 THEN 9e999 WHEN 3 THEN -9e999 END
         WHEN r.nan > 0 THEN NULL WHEN r.pinf > 0 THEN 9e999
         WHEN r.ninf > 0 AND r.max IS NULL THEN -9e999
         ELSE iif(d.name <> 'uint64' OR r.max >= 0, r.max,
             r.max + 18446744073709551616.0) END AS max,
    CASE WHEN r.given THEN CASE r.given >> 2 & 3 WHEN 0
             THEN iif(d.name <> 'uint64' OR r.min >= 0, r.min,
                 r.min + 18446744073709551616.0)
             WHEN 2 THEN 9e999 WHEN 3 THEN -9e999 END
         WHEN r.nan > 0 THEN NULL WHEN r.ninf > 0 THEN -9e999
         WHEN r.pinf > 0 AND r.min IS NULL THEN 9e999
         ELSE iif(d.name <> 'uint64' OR r.min >= 0, r.min,
             r.min + 18446744073709551616.0) END AS min,
    CASE WHEN r.given THEN CASE r.given >> 4 & 3 WHEN 0 THEN r.mean
             WHEN 2 THEN 9e999 WHEN 3 THEN -9e999 END
         WHEN r.nan > 0 OR (r.pinf > 0 AND r.ninf > 0) THEN NULL
         WHEN r.pinf > 0 THEN 9e999 WHEN r.ninf > 0 THEN -9e999
         ELSE r.mean END AS mean,
    CASE WHEN r.given THEN CASE r.given >> 6 & 3 WHEN 0 THEN r.std
             WHEN 2 THEN 9e999 WHEN 3 THEN -9e999 END
         WHEN r.nan > 0 OR r.pinf > 0 OR r.ninf > 0 THEN NULL
         ELSE r.std END AS std,
    CASE WHEN r.nan > 0 THEN NULL
         WHEN r.pinf > 0 OR r.ninf > 0 THEN 9e999
         ELSE r.l2 END AS l2,
    CASE WHEN r.given IS NOT NULL OR r.max IS NULL THEN NULL
         WHEN d.signed THEN max(r.max, -r.min)
         ELSE iif(d.name <> 'uint64' OR r.max >= 0, r.max,
             r.max + 18446744073709551616.0) END AS absmax,
    iif(d.name <> 'uint64' OR r.absmin >= 0, r.absmin,
        r.absmin + 18446744073709551616.0) AS absmin,
    r.nan, r.pinf, r.ninf, r.zero, r.subnormal,
    CASE WHEN r.hash IS NOT NULL THEN printf('%016x', r.hash) END AS hash,
    CASE WHEN r.pass > 2 THEN pa.name || '-' || p.text || '-' || r.step
         ELSE pa.name || '-' || o.class || '-' || o.instance || '-' || r.step
              || '-' || io.name || CASE WHEN r.position > 0
                 THEN '.' || r.position ELSE '' END END AS name,
    coalesce((SELECT group_concat(l.name, ' ') FROM label l
              WHERE r.labels >> l.bit & 1), '')
        || coalesce(' ' || t.text, '') AS labels,
    iif(d.name <> 'uint64' OR r.max >= 0, r.max,
        r.max + 18446744073709551616.0) AS finite_max,
    iif(d.name <> 'uint64' OR r.min >= 0, r.min,
        r.min + 18446744073709551616.0) AS finite_min,
    r.mean AS finite_mean, r.std AS finite_std, r.l2 AS finite_l2,
    r.samples, CASE x.sampling WHEN 1 THEN printf('every %u', x.sampling_arg)
        WHEN 2 THEN printf('random seed %u', x.sampling_arg) END AS sampling,
    x.histogram, r.stream
FROM record r JOIN stream s ON s.id = r.stream
    JOIN pass pa ON pa.id = r.pass
    JOIN io ON io.id = r.io
    JOIN path p ON p.id = r.path
    JOIN shape h ON h.id = r.shape
    JOIN dtype d ON d.id = r.dtype
    LEFT JOIN object o ON o.id = r.object
    LEFT JOIN note t ON t.id = r.note
    LEFT JOIN extra x ON x.stream = r.stream AND x.seq = r.seq;

-- One row a part of a sample: of a complex one the imaginary part is part 1.
-- x are its bytes as hex digits, v is its value. A record is looked at once
-- for all its samples, and the query behind each v reads the bits once: hence
-- the CROSS JOINs and the SELECT without a FROM.
CREATE VIEW sample_part AS
SELECT r.step, r.object, r.pass, r.stream, r.io, r.position, r.seq,
    c.i AS sample, q.i AS part, d.parts, coalesce(r.n, h.n) AS n,
    length(r.samples) / (d.bytes * d.parts) AS k, x.sampling, x.sampling_arg,
    hex(substr(r.samples, 1 + (c.i * d.parts + q.i) * d.bytes, d.bytes)) AS x,
    (SELECT CASE d.special
        WHEN 0 THEN CASE WHEN sign < 0 AND d.bytes < 8
                         THEN bits - (1 << 8 * d.bytes)
                         WHEN bits < 0 AND NOT d.signed
                         THEN (bits >> 32 & 4294967295) * 4294967296.0
                             + (bits & 4294967295)
                         ELSE bits END
        WHEN 4 THEN CASE WHEN bits < 255 THEN
            (SELECT pow2 FROM number WHERE i = bits - 127) END
        WHEN 5 THEN NULL
        ELSE CASE
            WHEN d.special = 1 AND e = (1 << d.exp) - 1
            THEN CASE m WHEN 0 THEN sign * 9e999 END
            WHEN d.special = 2 AND (bits & 127) = 127 THEN NULL
            WHEN d.special = 3 AND bits = 128 THEN NULL
            ELSE sign * (m + (e > 0) * (1 << d.man) * 1.0)
                 * (SELECT pow2 FROM number
                    WHERE i = max(max(e, 1) - d.bias - d.man, -1074))
            END
        END
     FROM (SELECT bits, bits >> d.man & ((1 << d.exp) - 1) AS e,
               bits & ((1 << d.man) - 1) AS m,
               CASE WHEN d.signed AND bits >> (8 * d.bytes - 1) & 1
                    THEN -1 ELSE 1 END AS sign
           FROM (SELECT sum((instr('123456789ABCDEF', substr(y, 2 * b.i + 1, 1))
                         << 4
                         | instr('123456789ABCDEF', substr(y, 2 * b.i + 2, 1)))
                         << 8 * b.i) AS bits
                 FROM (SELECT hex(substr(r.samples,
                           1 + (c.i * d.parts + q.i) * d.bytes, d.bytes)) AS y)
                     CROSS JOIN number b
                 WHERE b.i >= 0 AND b.i < d.bytes))) AS v
FROM record r CROSS JOIN dtype d ON d.id = r.dtype
    CROSS JOIN shape h ON h.id = r.shape
    CROSS JOIN number c ON c.i >= 0
        AND c.i < length(r.samples) / (d.bytes * d.parts)
    CROSS JOIN number q ON q.i >= 0 AND q.i < d.parts
    LEFT JOIN extra x ON x.stream = r.stream AND x.seq = r.seq;

-- One row a sample. element is its index in the flattened tensor. value is
-- NULL for NaN (bits tell); imag only for complex dtypes. of_step and so on are
-- the record's: of_step is found by the key, seq is not, so that a join with
-- v_record is quick where it has of_step = step besides stream and seq. Where
-- samples were drawn at random, z is made as FORMAT.md says, in halves of 32
-- bits, since SQL has no unsigned 64: five steps, of which each shifts by s or
-- multiplies by (ch, cl); then the upper half of z times the elements of the
-- sample's part.
CREATE VIEW v_sample AS
SELECT p.stream, p.seq, p.sample,
    CASE WHEN sampling = 1 THEN sample * sampling_arg
        WHEN sampling = 2 THEN (
            WITH RECURSIVE mix(step, s, ch, cl) AS (VALUES(0, 30, 0, 0),
                (1, 0, 3210233709, 484763065), (2, 27, 0, 0),
                (3, 0, 2496678331, 321982955), (4, 31, 0, 0)),
            z(step, hi, lo) AS (
                SELECT 0, (h + (l >> 32)) & 4294967295, l & 4294967295
                FROM (SELECT (sampling_arg & 4294967295)
                        + (sample + 1) * 2135587861 AS l,
                    (sampling_arg >> 32 & 4294967295)
                        + (sample + 1) * 2654435769 AS h)
                UNION ALL
                SELECT z.step + 1,
                    CASE WHEN s THEN (hi | (hi >> s)) - (hi & (hi >> s))
                    ELSE (((lo & 65535) * cl
                            + (((lo >> 16) * cl & 65535) << 16) >> 32)
                        + ((lo >> 16) * cl >> 16) + (lo & 65535) * ch
                        + (((lo >> 16) * ch & 65535) << 16) + (hi & 65535) * cl
                        + (((hi >> 16) * cl & 65535) << 16)) & 4294967295 END,
                    CASE WHEN s THEN (lo | ((hi << 32 - s) | (lo >> s))
                            & 4294967295)
                        - (lo & ((hi << 32 - s) | (lo >> s)))
                    ELSE (lo & 65535) * cl
                        + (((lo >> 16) * cl & 65535) << 16) & 4294967295 END
                FROM z JOIN mix ON mix.step = z.step)
            SELECT n / k * sample + min(sample, n % k) + (((((lo & 65535) * ml
                    >> 16) + (lo >> 16) * ml >> 16) + (hi & 65535) * ml
                    + (lo & 65535) * mh >> 16) + (hi >> 16) * ml
                    + (lo >> 16) * mh >> 16) + (hi & 65535) * mh
                    + ((hi >> 16) * mh << 16)
            FROM z, (SELECT m >> 32 AS mh, m & 4294967295 AS ml
                     FROM (SELECT n / k + (sample < n % k) AS m))
            WHERE step = 5)
        WHEN sample > 0 AND sample = k - 1 THEN n - 1
        ELSE CAST(sample * ((n - 1) * 1.0 / max(k - 1, 1)) AS INTEGER)
        END AS element,
    p.v AS value,
    CASE WHEN p.parts > 1 THEN (
        SELECT i.v FROM sample_part i
        WHERE i.step = p.step AND i.object = p.object AND i.pass = p.pass
            AND i.stream = p.stream AND i.io = p.io
            AND i.position = p.position AND i.seq = p.seq
            AND i.sample = p.sample AND i.part = 1) END AS imag,
    p.x AS bits, p.step AS of_step, pa.name AS of_pass,
    o.class || '-' || o.instance AS of_object, o.module AS of_module,
    s.rank AS of_rank
FROM sample_part p JOIN stream s ON s.id = p.stream
    JOIN pass pa ON pa.id = p.pass
    LEFT JOIN object o ON o.id = p.object
WHERE p.part = 0;

-- One row a bin between the first and the last that is not empty. exponent:
-- |x| < 2^(exponent + 1), and not below 2^exponent but in bin 0, which has
-- zeros and subnormals. The last bin of a dtype with infinities has them and
-- NaN. kind: 'exact' counts every element, 'rows' some of a large tensor.
CREATE VIEW v_histogram AS
WITH head AS (
    SELECT stream, seq, histogram AS h,
        instr('123456789ABCDEF', substr(x, 2, 1)) AS kind,
        instr('123456789ABCDEF', substr(x, 3, 1)) * 16
        + instr('123456789ABCDEF', substr(x, 4, 1)) AS dtype,
        instr('123456789ABCDEF', substr(x, 6, 1)) AS width,
        instr('123456789ABCDEF', substr(x, 7, 1)) * 16
        + instr('123456789ABCDEF', substr(x, 8, 1))
        + instr('123456789ABCDEF', substr(x, 9, 1)) * 4096
        + instr('123456789ABCDEF', substr(x, 10, 1)) * 256 AS first
    FROM (SELECT *, hex(substr(histogram, 1, 5)) AS x FROM extra
          WHERE histogram IS NOT NULL)
)
SELECT e.stream, e.seq, e.first + c.i AS bin, e.first + c.i - CASE
        WHEN d.parts > 1 THEN 1023 WHEN d.special = 0 THEN 1 ELSE d.bias
        END AS exponent,
    (SELECT sum(
        (instr('123456789ABCDEF', substr(y, 2 * b.i + 1, 1)) << 4
        | instr('123456789ABCDEF', substr(y, 2 * b.i + 2, 1))) << 8 * b.i)
        FROM (SELECT hex(substr(e.h, 6 + c.i * e.width, e.width)) AS y),
             number b WHERE b.i >= 0 AND b.i < e.width) AS count,
    k.name AS kind
FROM head e CROSS JOIN histogram k ON k.id = e.kind
    CROSS JOIN dtype d ON d.id = e.dtype
    CROSS JOIN number c ON c.i >= 0 AND c.i < (length(e.h) - 5) / e.width;

CREATE VIEW v_object AS
SELECT id, class, instance, class || '-' || instance AS object, module
FROM object;

CREATE VIEW v_run AS
SELECT (SELECT value FROM meta WHERE key = 'name') AS name,
    (SELECT value FROM meta WHERE key = 'created_ns') AS created_ns,
    s.attempt, s.rank, s.world, s.host, s.pid, s.state,
    s.real_ns AS started_ns,
    s.seq - CAST((SELECT total(l.last - l.seq + 1) FROM loss l
                  WHERE l.stream = s.id) AS INTEGER)
        - CAST((SELECT total(p.last - p.seq + 1) FROM pruned p
                WHERE p.stream = s.id) AS INTEGER) AS records,
    CAST((SELECT total(count) FROM loss l WHERE l.stream = s.id) AS INTEGER)
        AS lost, s.info, s.id AS stream, s.block_ms, s.spool_bytes,
    CAST((SELECT total(p.last - p.seq + 1) FROM pruned p
          WHERE p.stream = s.id) AS INTEGER) AS pruned
FROM stream s;

CREATE VIEW v_loss AS
SELECT s.attempt, s.rank, l.seq, l.last, l.count, l.bytes, l.cause,
    s.real_ns + l.t_ns AS ts_ns, l.stream
FROM loss l JOIN stream s ON s.id = l.stream;

CREATE VIEW v_pruned AS
SELECT s.attempt, s.rank, p.seq, p.last, p.last - p.seq + 1 AS count, p.rule,
    p.real_ns AS ts_ns, p.stream
FROM pruned p JOIN stream s ON s.id = p.stream;
