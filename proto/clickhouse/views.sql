-- The SQL promise, with the run first: its other columns are those of the
-- views of a SQLite run, and so are their values (max and min of integers are
-- doubles here; the tables have them whole). Without its quotes nan is the
-- number.

CREATE VIEW IF NOT EXISTS v_record AS
SELECT run, attempt, rank, seq, ts_ns, pass_name AS pass, class, instance,
    if(object_id = 0, '', concat(class, '-', toString(instance))) AS object,
    module, step, iteration, microbatch, bitAnd(bits, 1) AS recompute,
    io_name AS io, position, path,
    transform(dtype_id, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        16, 17, 18, 19, 20, 21, 22, 23, 24], ['float64', 'float32', 'float16',
        'bfloat16', 'float8_e4m3fn', 'float8_e5m2', 'float8_e4m3fnuz',
        'float8_e5m2fnuz', 'float8_e8m0fnu', 'int8', 'int16', 'int32',
        'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'bool', 'complex32',
        'complex64', 'complex128', 'float4_e2m1fn_x2', 'text', 'opaque'], '')
        AS dtype,
    shape, n,
    if(is_given, multiIf(bitAnd(code, 3) = 0, finite_max, bitAnd(code, 3) = 2,
        1 / 0, bitAnd(code, 3) = 3, -1 / 0, NULL),
        multiIf(some_nan > 0, NULL, pinfs > 0, 1 / 0,
            ninfs > 0 AND isNull(finite_max), -1 / 0, finite_max)) AS max,
    if(is_given, multiIf(bitAnd(code, 12) = 0, finite_min,
        bitAnd(code, 12) = 8, 1 / 0, bitAnd(code, 12) = 12, -1 / 0, NULL),
        multiIf(some_nan > 0, NULL, ninfs > 0, -1 / 0,
            pinfs > 0 AND isNull(finite_min), 1 / 0, finite_min)) AS min,
    if(is_given, multiIf(bitAnd(code, 48) = 0, finite_mean,
        bitAnd(code, 48) = 32, 1 / 0, bitAnd(code, 48) = 48, -1 / 0, NULL),
        multiIf(some_nan > 0 OR (pinfs > 0 AND ninfs > 0), NULL,
            pinfs > 0, 1 / 0, ninfs > 0, -1 / 0, finite_mean)) AS mean,
    if(is_given, multiIf(bitAnd(code, 192) = 0, finite_std,
        bitAnd(code, 192) = 128, 1 / 0, bitAnd(code, 192) = 192, -1 / 0,
        NULL),
        if(some_nan > 0 OR pinfs > 0 OR ninfs > 0, NULL, finite_std)) AS std,
    multiIf(some_nan > 0, NULL, pinfs > 0 OR ninfs > 0, 1 / 0, finite_l2) AS l2,
    multiIf(is_given OR isNull(finite_max), NULL,
        dtype_id IN (9, 14, 15, 16, 17, 18, 22, 24), finite_max,
        finite_max > -finite_min, finite_max, -finite_min) AS absmax,
    absmin, nan_count AS `nan`, pinf, ninf, zero, subnormal,
    if(isNull(hash_bits), NULL,
        substring(concat('0000000000000000', lower(hex(hash_bits))),
            length(hex(hash_bits)) + 1)) AS hash,
    if(pass_id > 2, concat(pass_name, '-', path, '-', toString(step)),
        concat(pass_name, '-', class, '-', toString(instance), '-',
            toString(step), '-', io_name,
            if(position > 0, concat('.', toString(position)), ''))) AS name,
    concat(arrayStringConcat(arrayMap(b -> arrayElement(['recompute', 'eval',
        'local', 'final', 'scaled', 'skipped', 'exact', 'total', 'sparse',
        'complex', 'quantized', 'shard', 'materialized', 'unsupported',
        'nodata', 'text', 'copied', 'repeated', 'raised', 'packed', 'same',
        'operators', 'graph'], b + 1),
        arrayFilter(b -> bitAnd(bitShiftRight(bits, b), 1) = 1, range(23))),
        ' '), if(note = '', '', concat(' ', note))) AS labels,
    finite_max, finite_min, finite_mean, finite_std, finite_l2, samples,
    multiIf(rule = 1, concat('every ', toString(sampling_arg)), rule = 2,
        concat('random seed ', toString(sampling_arg)), NULL) AS sampling,
    histogram, stream
FROM (
    SELECT run, attempt, rank, seq, ts_ns, pass AS pass_id,
        transform(pass, [1, 2, 3, 4, 5, 6], ['forward', 'backward', 'grad',
            'param', 'user', 'optim'], '') AS pass_name,
        class, instance, object AS object_id, module, step, iteration,
        microbatch, labels AS bits, note,
        transform(io, [1, 2], ['input', 'output'], '') AS io_name, position,
        path, dtype AS dtype_id, shape, n, isNotNull(given) AS is_given,
        ifNull(given, 0) AS code, nans AS nan_count, pinf, ninf, zero,
        subnormal, ifNull(nans, 0) AS some_nan, ifNull(pinf, 0) AS pinfs,
        ifNull(ninf, 0) AS ninfs, max AS finite_max, min AS finite_min,
        mean AS finite_mean, std AS finite_std, l2 AS finite_l2, absmin,
        hash AS hash_bits, samples, sampling AS rule, sampling_arg,
        histogram, stream
    FROM record FINAL
);

CREATE VIEW IF NOT EXISTS v_object AS
SELECT DISTINCT run, id, class, instance,
    concat(class, '-', toString(instance)) AS object, module
FROM (SELECT run, object AS id, class, instance, module FROM record
      WHERE object > 0);

CREATE VIEW IF NOT EXISTS v_loss AS
SELECT run, attempt, rank, seq, last, count, bytes, cause, ts_ns, stream
FROM loss FINAL;

CREATE VIEW IF NOT EXISTS v_run AS
SELECT run, run AS name, created_ns, attempt, rank, world, host, pid, state,
    real_ns AS started_ns, toInt64(seq) - toInt64(gone) AS records, lost,
    info, id AS stream, block_ms, spool_bytes
FROM stream FINAL
GLOBAL ANY LEFT JOIN (
    SELECT run, stream AS id, epoch, sum(last - seq + 1) AS gone,
        sum(count) AS lost
    FROM loss FINAL GROUP BY run, stream, epoch
) AS losses USING (run, id, epoch);
